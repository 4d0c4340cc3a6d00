"""Separate the groups that are in order from those that must be judged row by row.

Nearly all groups of messages are in order, and a few bytes of each message show it: numbers that
can be summed up without sorting. Whole rows are read and judged only for the other groups. This is
filter and refine, as databases do with signatures of what they search.

Groups are identified by a hash. Two groups with the same hash look like one group that is not in
order, so they are judged row by row, and no hash is relied on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.storagelevel import StorageLevel

from spark_jobs.analysis.verdicts import judging
from spark_jobs.analysis.verdicts.judging import Judged, Read
from spark_jobs.common.caching import unpersisted
from spark_jobs.snapshot.progress import Progress

# Reads the messages at the positions in the column ``global_position`` of a DataFrame.
At = Callable[[DataFrame], Read]


class PrefilterJob(judging.Job, Protocol):
    """A job that can recognize from fingerprints what is in order."""

    def sketch(self, fingerprints: DataFrame, progress: Progress) -> DataFrame:
        """Return what the sums are made of, with each message's ``group`` and position."""

    def groups(self, sketch: DataFrame) -> DataFrame:
        """Return a row for each group: whether it is ``in_order``, and what is counted of it."""

    def counts_in_order(self) -> Mapping[str, Column]:
        """Return what is counted over groups in order; what is always 0 may be left out."""


@dataclass(frozen=True, slots=True)
class PrefilterInput:
    """The messages to prefilter.

    Attributes:
        fingerprints: those of all messages (`spark_jobs.analysis.verdicts.fingerprints`).
        at: gives what reads some of the messages.
    """

    fingerprints: DataFrame
    at: At


def run(job: PrefilterJob, messages: PrefilterInput, progress: Progress) -> Judged:
    """Judge all messages of a job, most of them by their fingerprints.

    Args:
        job: the job.
        messages: the messages.
        progress: how far the consumers are.
    """
    observed, counts = Observation(), job.counts_in_order()
    doubtful = (
        job.groups(job.sketch(messages.fingerprints, progress))
        .observe(
            observed,
            *(F.sum(F.when(F.col("in_order"), one)).alias(name) for name, one in counts.items()),
        )
        .where(~F.col("in_order"))
        .select("group")
        .persist(StorageLevel.DISK_ONLY)
    )
    with unpersisted([doubtful]):
        doubtful.count()
        # To which group a message belongs does not depend on how far anybody is.
        of_groups = job.sketch(messages.fingerprints, Progress()).select("group", "global_position")
        positions = of_groups.join(doubtful, "group", "left_semi")
        rows = job.rows(messages.at(positions))
        judged = judging.run(job, rows, progress, messages.at)
    in_order = {name: int(observed.get[name] or 0) for name in counts}
    return Judged(
        {name: count + in_order.get(name, 0) for name, count in judged.counts.items()},
        judged.findings,
    )
