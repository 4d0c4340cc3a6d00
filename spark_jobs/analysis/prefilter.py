"""Telling the groups that are in order from those that have to be looked at row by row.

Nearly all groups of messages are in order, and that shows in a few bytes of each message: numbers
that can be summed up without sorting anything. Only of the others are whole rows read, and judged
one by one. That is to filter and then refine, as databases do with signatures of what they search.

Groups are told apart by a hash here. Two that share one look like one in which something is wrong,
so they are looked at row by row, where no hash is trusted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.storagelevel import StorageLevel

from spark_jobs.analysis import judging
from spark_jobs.analysis.judging import Judged, Read
from spark_jobs.common.caching import unpersisted
from spark_jobs.snapshot.progress import Progress

# Reads the messages at the positions in the column ``global_position`` of a DataFrame.
At = Callable[[DataFrame], Read]


class PrefilterJob(judging.Job, Protocol):
    """A job that can tell from little what is in order."""

    def sketch(self, signs: DataFrame, progress: Progress) -> DataFrame:
        """Return what the sums are made of, with each message's ``group`` and position."""

    def groups(self, sketch: DataFrame) -> DataFrame:
        """Return a row for each group: whether it is ``in_order``, and what is counted of it."""

    def counts_in_order(self) -> Mapping[str, Column]:
        """Return what is counted over groups in order; what is always 0 may be left out."""


@dataclass(frozen=True, slots=True)
class PrefilterInput:
    """What there is to sift.

    Attributes:
        signs: of all messages (`spark_jobs.analysis.fingerprints`).
        at: gives what reads some of the messages.
    """

    signs: DataFrame
    at: At


def run(job: PrefilterJob, sifted: PrefilterInput, progress: Progress) -> Judged:
    """Judge all messages of a job, most of them by their signs.

    Args:
        job: the job.
        sifted: the messages.
        progress: how far the consumers are.
    """
    observed, counts = Observation(), job.counts_in_order()
    doubtful = (
        job.groups(job.sketch(sifted.signs, progress))
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
        of_groups = job.sketch(sifted.signs, Progress()).select("group", "global_position")
        positions = of_groups.join(doubtful, "group", "left_semi")
        judged = judging.run(job, job.rows(sifted.at(positions)), progress)
    in_order = {name: int(observed.get[name] or 0) for name in counts}
    return Judged(
        {name: count + in_order.get(name, 0) for name, count in judged.counts.items()},
        judged.findings,
    )
