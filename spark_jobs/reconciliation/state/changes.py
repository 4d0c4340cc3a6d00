"""What has changed of the groups of messages since a state was written."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.sketches.marks import Fingerprints, Marks, Numbers
from spark_jobs.analysis.sketches.sketch import Sketch
from spark_jobs.analysis.verdicts.judging import Counts
from spark_jobs.analysis.verdicts.prefilter import GroupSums, PrefilterJob
from spark_jobs.common.concurrency import run_concurrently
from spark_jobs.reconciliation.state import known
from spark_jobs.reconciliation.state.known import Known, Watched
from spark_jobs.reconciliation.state.stored_state import StateManifest
from spark_jobs.session.session import parallelism
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import parts_of

# So many messages this process sums up sooner than Spark's workers.
HERE = 200_000


@dataclass(frozen=True, slots=True)
class Summed:
    """What was summed up of groups.

    Attributes:
        sums: the sums of all groups, or of those that may have changed.
        in_order: for each job, what is counted of all groups that are in order.
        rows: for each job, the fingerprints that were summed up; None if Spark's workers did it.
        changed: for each job, where the messages of the groups are that have changed; None if any
            group may have.
    """

    sums: GroupSums
    in_order: Mapping[str, Counts]
    rows: Mapping[str, pa.Table] | None = None
    changed: Mapping[str, Numbers] | None = None

    def watched(self, job: PrefilterJob, everything: Known) -> Watched:
        """Return the messages of groups that may change although no message of them is new."""
        positions = self.sums.watched(job)
        if len(positions) > HERE:
            return Watched(positions, None)
        if self.rows is None:
            return Watched(positions, everything.at(positions))
        rows = self.rows[job.name]
        is_watched = pc.is_in(rows["global_position"], value_set=pa.array(positions))
        return Watched(positions, rows.filter(is_watched))


def sum_up(
    spark: SparkSession, jobs: Sequence[PrefilterJob], everything: Known, progress: Progress
) -> Summed:
    """Sum up all groups."""
    rows, count = None, everything.count()
    if count <= HERE:
        table = everything.table()
        rows = {job.name: table for job in jobs}
        sums = _here(spark, jobs, [table] * len(jobs), progress)
    else:
        parts = max(parallelism(spark), parts_of(count))
        seen = partial(grouping.summed, partial(everything.apply, spark), parts=parts)
        sums = GroupSums(jobs, seen, progress)
    return Summed(sums, {job.name: sums.counts(job) for job in jobs}, rows)


def sum_up_changes(
    spark: SparkSession,
    jobs: Sequence[PrefilterJob],
    before: StateManifest,
    earlier: Known,
    watched: Mapping[str, pa.Table],
    new: pa.Table,
    progress: Progress,
) -> Summed:
    """Sum up the groups that may have changed, as they were and as they are."""
    noted = earlier.at(np.array(_recorded_since(before, progress), np.int64))
    touched = pa.concat_tables([new, noted])
    was = before.was()

    def found(job: PrefilterJob) -> tuple[pa.Table, pa.Table, Numbers]:
        column = known.group(job.name)
        groups, open_ = _values(touched[column].drop_null()), watched[job.name]
        others = np.setdiff1d(groups, _values(open_[column]))
        past = pa.concat_tables([open_, earlier.around(job.name, others)])
        present = pa.concat_tables([past, new.filter(new[column].is_valid())])
        marked = _marked_otherwise(past, job.sketch(was), job.sketch(progress))
        changed = np.concatenate([groups, _values(past.filter(marked)[column].drop_null())])
        is_changed = pc.is_in(present[column], value_set=pa.array(changed))
        return past, present, _values(present.filter(is_changed)["global_position"])

    pasts, presents, changed = zip(
        *run_concurrently([partial(found, job) for job in jobs]), strict=True
    )

    def seen(sketches: Sequence[Sketch]) -> DataFrame:
        past = grouping.summed_here(pasts, [job.sketch(was) for job in jobs])
        present = grouping.summed_here(presents, sketches)
        both = [
            table.append_column("is_past", pa.array(np.full(len(table), is_past)))
            for table, is_past in ((past, True), (present, False))
        ]
        return spark.createDataFrame(pa.concat_tables(both))

    sums = GroupSums(jobs, seen, progress, is_here=True)
    in_order = {}
    for job in jobs:
        counts = Counter(before.in_order[job.name])
        counts.update(sums.counts(job))
        in_order[job.name] = dict(counts)
    rows, changed_of = (
        {job.name: of for job, of in zip(jobs, each, strict=True)} for each in (presents, changed)
    )
    return Summed(sums, in_order, rows, None if _watches_otherwise(was, progress) else changed_of)


def _here(
    spark: SparkSession,
    jobs: Sequence[PrefilterJob],
    tables: Sequence[pa.Table],
    progress: Progress,
) -> GroupSums:
    """Sum up fingerprints for each job in this process."""

    def seen(sketches: Sequence[Sketch]) -> DataFrame:
        return spark.createDataFrame(grouping.summed_here(tables, sketches))

    return GroupSums(jobs, seen, progress, is_here=True)


def _marked_otherwise(table: pa.Table, was: Sketch, now: Sketch) -> pa.Array:
    """Return to which messages the consumers have done something since."""
    rows = Fingerprints.of(table)
    past, present = Marks.of(rows, was.consumed), Marks.of(rows, now.consumed)
    differs = np.zeros(len(table), bool)
    for field in fields(Marks):
        differs |= getattr(past, field.name) != getattr(present, field.name)
    return pa.array(differs)


def _watches_otherwise(was: Progress, now: Progress) -> bool:
    """Return whether a consumer records conflicts from another position on."""
    return any(
        one.first_position != was.consumed[category].first_position
        for category, one in now.consumed.items()
    )


def _values(column: pa.ChunkedArray) -> Numbers:
    values: Numbers = column.to_numpy()
    return values


def may_be_anywhere(before: StateManifest, now: Progress) -> bool:
    """Return whether any verdict may have changed."""
    return _goes_back(before, now) or is_corrected_since(before, now)


def is_corrected_since(before: StateManifest, now: Progress) -> bool:
    """Return whether any message was corrected, so that any may mean the same as another now.

    People do that seldom.
    """
    return set(before.was().corrections) != set(now.corrections)


def _recorded_since(before: StateManifest, now: Progress) -> list[int]:
    """Return where messages are that were known, and were recorded as conflicts since."""
    was = before.was().consumed
    return [
        at
        for category, one in now.consumed.items()
        for at in set(one.conflicts).difference(was[category].conflicts)
        if at <= before.heads[category].position
    ]


def _goes_back(before: StateManifest, now: Progress) -> bool:
    """Return whether a consumer was moved back, so that any verdict may have changed.

    A new dead letter among the messages that it had read means so too, even if the consumer is
    further on by now.
    """
    for category, one in before.was().consumed.items():
        other = now.consumed.get(category)
        if other is None or not other.reaches(one):
            return True
        known_up_to = min(one.highest, before.heads[category].position)
        came_up = set(other.letters).difference(one.letters)
        if one.position is not None and any(letter <= known_up_to for letter in came_up):
            return True
    return False
