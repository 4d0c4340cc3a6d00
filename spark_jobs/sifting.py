"""Telling the groups that are in order from those that have to be looked at row by row.

Nearly all groups of messages are in order, and that shows in a few bytes of each message: numbers
that can be summed up without sorting anything. Only of the others are whole rows read, and judged
one by one. That is to filter and then refine, as databases do with signatures of what they search.

Groups are told apart by a hash here. Two that share one look like one in which something is wrong,
so they are looked at row by row, where no hash is trusted.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.storagelevel import StorageLevel

from spark_jobs import judging
from spark_jobs.judging import Judged, Read
from spark_jobs.progress import Progress

# Reads the messages at the positions in the column ``global_position`` of a DataFrame.
At = Callable[[DataFrame], Read]


class Sieve(judging.Job, Protocol):
    """A job that can tell from little what is in order."""

    def sketch(self, read: Read, progress: Progress) -> DataFrame:
        """Return a few bytes of each message, with its ``group`` and ``global_position``."""

    def groups(self, sketch: DataFrame) -> DataFrame:
        """Return a row for each group: whether it is ``in_order``, and what is counted of it."""

    def counts_in_order(self) -> Mapping[str, Column]:
        """Return what is counted over groups in order; what is always 0 may be left out."""


def run(job: Sieve, read: Read, at: At, progress: Progress) -> Judged:
    """Judge all messages of a job, most of them without reading them as a whole.

    Args:
        job: the job.
        read: reads the categories.
        at: gives what reads some messages of them.
        progress: how far the consumers are.
    """
    observed, counts = Observation(), job.counts_in_order()
    # To disk, so that a large store takes no more memory than a small one.
    sketch = job.sketch(read, progress).persist(StorageLevel.DISK_ONLY)
    doubtful = (
        job.groups(sketch)
        .observe(
            observed,
            *(F.sum(F.when(F.col("in_order"), one)).alias(name) for name, one in counts.items()),
        )
        .where(~F.col("in_order"))
        .select("group")
        .persist(StorageLevel.DISK_ONLY)
    )
    doubtful.count()
    positions = sketch.join(doubtful, "group", "left_semi")
    judged = judging.run(job, job.rows(at(positions)), progress)
    in_order = observed.get
    doubtful.unpersist()
    sketch.unpersist()
    return Judged(
        {name: count + int(in_order.get(name) or 0) for name, count in judged.counts.items()},
        judged.kept,
    )
