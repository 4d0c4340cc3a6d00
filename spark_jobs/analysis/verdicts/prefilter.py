"""Separate the groups that are in order from those that must be judged row by row.

Nearly all groups of messages are in order, and a few bytes of each message show it: numbers that
can be summed up without sorting. Whole rows are read and judged only for the other groups. This is
filter and refine, as databases do with signatures of what they search.

Groups are identified by a hash. Two groups with the same hash look like one group that is not in
order, so they are judged row by row, and no hash is relied on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.storagelevel import StorageLevel

from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.sketches.sketch import Sketch
from spark_jobs.analysis.verdicts import judging
from spark_jobs.analysis.verdicts.judging import Counts, Judged, Read
from spark_jobs.common.concurrency import run_concurrently
from spark_jobs.snapshot.progress import Progress

# Reads the messages at the positions in the column ``global_position`` of a DataFrame.
At = Callable[[DataFrame], Read]

# So few messages are read and judged as those of a small store are.
_FEW = 20_000

# The name of the number of messages in groups that are not in order.
_DOUBTFUL = "doubtful"


class PrefilterJob(judging.Job, Protocol):
    """A job that can recognize from fingerprints what is in order."""

    def sketch(self, progress: Progress) -> Sketch:
        """Return what is summed up of fingerprints."""

    def groups(self, seen: DataFrame) -> DataFrame:
        """Add to what is seen of groups what is counted of them.

        Added are also whether they are ``in_order``, and whether a verdict in them ``may_change``
        once a consumer has read more.
        """

    def counts_in_order(self) -> Mapping[str, Column]:
        """Return what is counted over groups in order; what is always 0 may be left out."""


@dataclass(frozen=True, slots=True)
class PrefilterInput:
    """The messages to prefilter.

    Attributes:
        seen: sums up their fingerprints by groups (`spark_jobs.analysis.sketches.grouping`).
        at: gives what reads some of the messages.
        few_at: the same, for few of them.
    """

    seen: Callable[[Sequence[Sketch]], DataFrame]
    at: At
    few_at: At


class Prefilter:
    """What is in order of the messages of several jobs, and what is to be judged.

    Attributes:
        kept: what Spark caches for it.
        is_few: whether only few messages are to be judged.
    """

    def __init__(
        self,
        jobs: Sequence[PrefilterJob],
        messages: PrefilterInput,
        progress: Progress,
        *,
        judges_open: bool = False,
    ) -> None:
        """Sum up the fingerprints of all messages, in one pass.

        Args:
            jobs: the jobs.
            messages: the messages.
            progress: how far the consumers are.
            judges_open: whether groups are judged too in which a verdict may change.
        """
        self._messages, self._progress = messages, progress
        # To disk, so that a large store takes no more memory than a small one.
        self.kept = messages.seen([job.sketch(progress) for job in jobs]).persist(
            StorageLevel.DISK_ONLY
        )
        self._groups = {
            job.name: job.groups(self.kept.where(F.col("job") == n)) for n, job in enumerate(jobs)
        }
        if judges_open:
            is_settled = F.col("in_order") & ~F.col("may_change")
            self._groups = {
                name: groups.withColumn("in_order", is_settled)
                for name, groups in self._groups.items()
            }
        counted = run_concurrently([partial(self._count, job) for job in jobs])
        self._counts = dict(zip(self._groups, counted, strict=True))
        self.is_few = all(counts[_DOUBTFUL] <= _FEW for counts in counted)

    def _count(self, job: PrefilterJob) -> dict[str, int]:
        """Return what is counted of groups in order, and how many messages are in the others."""
        in_order, counts = F.col("in_order"), job.counts_in_order()
        (row,) = (
            self._groups[job.name]
            .agg(
                F.sum(F.when(~in_order, F.col("messages"))).alias(_DOUBTFUL),
                *(
                    F.sum(F.when(in_order, one * F.col("groups"))).alias(name)
                    for name, one in counts.items()
                ),
            )
            .collect()
        )
        return {name: int(row[name] or 0) for name in (_DOUBTFUL, *counts)}

    def counts(self, job: judging.Job) -> Counts:
        """Return what is counted of the groups of a job that are in order."""
        return {name: of for name, of in self._counts[job.name].items() if name != _DOUBTFUL}

    def rows(self, job: judging.Job) -> DataFrame:
        """Return the rows of a job that are to be judged."""
        doubtful = self._groups[job.name].where(~F.col("in_order")).select("positions")
        if self.is_few:
            found = [np.frombuffer(row["positions"], np.int64) for row in doubtful.collect()]
            table = pa.table({"global_position": np.concatenate([*found, np.empty(0, np.int64)])})
            positions = doubtful.sparkSession.createDataFrame(table)
        else:
            positions = doubtful.mapInArrow(grouping.positions, "global_position bigint")
        return job.rows(self._at(positions))

    def judge(self, job: PrefilterJob) -> Judged:
        """Judge what is not in order of a job."""
        judged, counts = (
            judging.run(job, self.rows(job), self._progress, self._at),
            self.counts(job),
        )
        return Judged(
            {name: count + counts.get(name, 0) for name, count in judged.counts.items()},
            judged.findings,
        )

    @property
    def _at(self) -> At:
        return self._messages.few_at if self.is_few else self._messages.at
