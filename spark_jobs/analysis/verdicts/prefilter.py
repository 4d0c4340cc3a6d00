"""Separate the groups that are in order from those that must be judged row by row.

Nearly all groups of messages are in order, and a few bytes of each message show it: numbers that
can be summed up without sorting. Whole rows are read and judged only for the other groups. This is
filter and refine, as databases do with signatures of what they search.

Groups are identified by a hash. Two groups with the same hash look like one group that is not in
order, so they are judged row by row, and no hash is relied on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.sketches.marks import Numbers
from spark_jobs.analysis.sketches.sketch import Sketch
from spark_jobs.analysis.verdicts import judging
from spark_jobs.analysis.verdicts.judging import Counts, Judged, Read
from spark_jobs.common.caching import kept_on_disk
from spark_jobs.common.concurrency import run_concurrently
from spark_jobs.session.settings import OF_LONG_ROWS, having
from spark_jobs.snapshot.progress import Progress

# Reads the messages at the positions in the column ``global_position`` of a DataFrame.
At = Callable[[DataFrame], Read]

# So few messages are read and judged as those of a small store are.
_FEW = 20_000

# Sums up fingerprints by groups, for some sketches (`spark_jobs.analysis.sketches.grouping`). Where
# they change, ``is_past`` says of the sums whether they are those before, which are subtracted.
Seen = Callable[[Sequence[Sketch]], DataFrame]


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


class GroupSums:
    """What is summed up of the groups of several jobs, and which of these are in order.

    Attributes:
        kept: what Spark caches for it; None where this process has summed up.
        is_few: whether only few messages are to be judged.
    """

    def __init__(
        self,
        jobs: Sequence[PrefilterJob],
        seen: Seen,
        progress: Progress,
        *,
        is_here: bool = False,
    ) -> None:
        sums, self.kept = seen([job.sketch(progress) for job in jobs]), None
        if not is_here:
            # The positions of messages make rows long.
            with having(sums.sparkSession, OF_LONG_ROWS):
                sums = self.kept = kept_on_disk(sums)
        self._is_here = is_here
        self._groups = {
            job.name: job.groups(sums.where(F.col("job") == n)) for n, job in enumerate(jobs)
        }
        collected = run_concurrently([partial(self._collected, job) for job in jobs])
        self._of_jobs = dict(zip(self._groups, collected, strict=True))
        self.is_few = all(one.doubtful <= _FEW for one in collected)

    def _collected(self, job: PrefilterJob) -> "_OfJob":
        groups, counts = self._groups[job.name], job.counts_in_order()
        is_past = F.col("is_past") if "is_past" in groups.columns else F.lit(False)
        # What this process has summed up, it can list too.
        is_listed = _is_watched() & F.lit(self._is_here)
        rows = groups.select(
            is_past.alias("is_past"),
            *("groups", "messages", "in_order", _is_watched().alias("is_watched")),
            F.when(is_listed, F.col("positions")).alias("positions"),
            *(count.cast("bigint").alias(f"count {name}") for name, count in counts.items()),
        ).collect()
        present = [row for row in rows if not row["is_past"]]
        doubtful = [row for row in present if not row["in_order"]]
        return _OfJob(
            {
                name: sum(
                    (row[f"count {name}"] or 0)
                    * (-row["groups"] if row["is_past"] else row["groups"])
                    for row in rows
                    if row["in_order"]
                )
                for name in counts
            },
            sum(row["messages"] for row in doubtful),
            _listed(doubtful) if self._is_here else None,
            _listed(row for row in present if row["is_watched"]) if self._is_here else None,
        )

    def counts(self, job: judging.Job) -> Counts:
        """Return what is counted of the groups of a job that are in order; or how that changes."""
        return self._of_jobs[job.name].counts

    def number_of_doubtful(self, job: judging.Job) -> int:
        """Return how many messages of a job are to be judged."""
        return self._of_jobs[job.name].doubtful

    def doubtful(self, job: judging.Job) -> DataFrame:
        """Return the global positions of the messages of a job that are to be judged."""
        groups = self._groups[job.name]
        if self._is_here or self.is_few:
            table = pa.table({"global_position": self.doubtful_here(job)})
            return groups.sparkSession.createDataFrame(table)
        return _positions(groups.where(~F.col("in_order")))

    def doubtful_here(self, job: judging.Job) -> Numbers:
        """Return the same to this process, for which they have to be few."""
        listed = self._of_jobs[job.name].doubtful_at
        if listed is None:
            groups = self._groups[job.name].where(~F.col("in_order"))
            listed = _listed(groups.select("positions").collect())
        return listed

    def watched(self, job: judging.Job) -> Numbers:
        """Return where the messages are whose groups are not in order, or may change."""
        listed = self._of_jobs[job.name].watched_at
        if listed is None:
            groups = self._groups[job.name].where(_is_watched())
            listed = _positions(groups).toArrow()["global_position"].to_numpy()
        return listed


def _is_watched() -> Column:
    """Return whether a group is to be looked at again although no message of it is new."""
    return ~F.col("in_order") | F.col("may_change")


@dataclass(frozen=True, slots=True)
class _OfJob:
    """What was collected of the groups of a job.

    Attributes:
        counts: what is counted of those in order.
        doubtful: how many messages are in the others.
        doubtful_at, watched_at: where these are, and those that are to be looked at again; None
            where Spark's workers have summed up.
    """

    counts: Counts
    doubtful: int
    doubtful_at: Numbers | None
    watched_at: Numbers | None


def _listed(groups: Iterable[Row]) -> Numbers:
    """Return the positions of collected groups."""
    return np.frombuffer(b"".join(row["positions"] for row in groups), np.int64)


def _positions(groups: DataFrame) -> DataFrame:
    """Return the positions of groups, which Spark's workers list."""
    positions = groups.select("positions")
    return positions.mapInArrow(grouping.positions, "global_position bigint")


@dataclass(frozen=True, slots=True)
class PrefilterInput:
    """The messages to prefilter.

    Attributes:
        seen: sums up their fingerprints by groups.
        at: gives what reads some of the messages.
        few_at: the same, for few of them.
    """

    seen: Seen
    at: At
    few_at: At


class Prefilter:
    """What is in order of the messages of several jobs, and what is to be judged.

    Attributes:
        sums: the sums of their groups.
    """

    def __init__(
        self, jobs: Sequence[PrefilterJob], messages: PrefilterInput, progress: Progress
    ) -> None:
        self._messages, self._progress = messages, progress
        self.sums = GroupSums(jobs, messages.seen, progress)

    def judge(self, job: PrefilterJob) -> Judged:
        """Judge what is not in order of a job."""
        at = self._messages.few_at if self.sums.is_few else self._messages.at
        judged = judging.run(job, job.rows(at(self.sums.doubtful(job))), self._progress, at)
        counts = self.sums.counts(job)
        return Judged(
            {name: count + counts.get(name, 0) for name, count in judged.counts.items()},
            judged.findings,
        )
