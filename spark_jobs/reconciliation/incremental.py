"""Runs that read only new messages, and judge only the groups that these change.

A state is a folder that every part of Spark can reach. It holds all rows that were read so far. It
also holds the watched groups with their verdicts: groups that need attention, or whose verdict may
change later. A manifest holds the counts, up to where the log was read, and how far the consumers
were.

A run reads the messages that came after, together with the watched groups and the groups that the
new messages belong to. It judges these groups twice: as they were, which is subtracted from the
counts, and as they are, which is added. The sums are those of a run over everything.

Messages that differ as they are stored are compared by what they mean. The results are kept, so
each pair is decoded once, and a group as it was is judged as it was then.

What was judged by another declaration is read and judged anew; only what a follower has reported
stays.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.types import StructType

from spark_jobs.analysis.verdicts import judging
from spark_jobs.analysis.verdicts.judging import (
    FOUND,
    PAIR,
    Comparison,
    Counts,
    Job,
    Lookup,
    Read,
    Rows,
    pairs_of,
    with_alike,
)
from spark_jobs.analysis.verdicts.prefilter import Prefilter
from spark_jobs.common.caching import unpersisted
from spark_jobs.common.errors import StateError
from spark_jobs.reconciliation.stored_state import ANEW, Head, State, StateManifest, run_name
from spark_jobs.snapshot.progress import Progress

# The pairs of messages that were compared.
_COMPARED = "global_position bigint, compared_with bigint, same boolean"

# Opens, for as long as its context lasts, what reads some of the messages.
OpenLookup = Callable[[], AbstractContextManager[Lookup]]

# The column with a hash of the row's group, by which few rows are found among many.
_HASH = "hash"

# The columns with nearly no equal values, for which a dictionary is useless.
_MANY = (
    "group",
    "global_position",
    "stream_name",
    "key_stream",
    "id",
    "message_id",
    "content",
    _HASH,
)

# Rows are in one folder for each run; beyond so many folders they are combined into one.
_FOLDERS = 16


class IncrementalRun:
    """One run, which turns a state into the next.

    Attributes:
        name: the folder of the run, within that of the state.
        lasting: since when violations persist, for a follower; None without one.
    """

    def __init__(
        self,
        spark: SparkSession,
        state: State,
        new: DataFrame,
        heads: Mapping[str, Head],
        progress: Progress,
        store: str | None = None,
        opened: OpenLookup | None = None,
        *,
        has_passes: bool = False,
        log: Head | None = None,
        prefilter: Prefilter | None = None,
    ) -> None:
        """Begin.

        Args:
            spark: the session.
            state: the state to continue.
            new: the messages that came after the state, with the columns of `looked_at`.
            heads: the last message of each category that they include.
            progress: how far the consumers are.
            store: the id of the store; None if it has none.
            opened: opens what reads some of the messages, to compare them by what they mean; None
                to take what differs as it is stored for different.
            has_passes: whether there may be passes, which come without a new message.
            log: the last position of all, with the tally of the whole log; None if it is not known.
            prefilter: of a first run, what is in order and cannot change any more; None to judge
                all rows.
        """
        self._spark = spark
        self._has_passes = has_passes
        self._log = log
        self._prefilter = prefilter
        self._state = state
        self._new = new
        self._progress = progress
        last = state.manifest
        self.lasting = None if last is None else last.lasting
        self._run = 1 if last is None else last.run + 1
        before = self._before = state.judged
        self._opened = opened
        is_same = before is not None and not _is_corrected_since(before, progress)
        self._compared = [*before.compared] if before is not None and is_same else []
        self.name = run_name(self._run)
        self._store = store
        self._heads = dict(heads)
        self._counts: dict[str, Counts] = {}
        self._rows: dict[str, list[str]] = {}
        self._added: dict[str, list[str]] = {}
        self._schemas: dict[str, StructType] = {}
        self._watched: dict[str, DataFrame] = {}
        self._watched_in: list[str] = []
        state.begin(self._run)

    def add(self, job: Job, messages: DataFrame, part: str = "rows") -> None:
        """Add new messages; a part that is added again replaces itself."""
        folder = f"{self.name}/{job.name}/{part}"
        rows = _hashed(job.rows(Rows(messages)))
        self._schemas[job.name] = rows.schema
        self._write(rows, folder)
        added = self._added.setdefault(job.name, [])
        if folder not in added:
            added.append(folder)

    def take(self, job: Job) -> Counts:
        """Judge what is new and what it changes; return the counts of a run over everything.

        New are the messages that were added, or else those that were given at the beginning.
        """
        before = self._before
        if job.name not in self._added:
            self.add(job, self._new)
        schema, added = self._schemas[job.name], self._added[job.name]
        older = [] if before is None else before.rows[job.name]
        # An empty part is read only this once.
        is_empty = before is not None and before.heads == self._heads and not self._has_passes
        self._rows[job.name] = older if is_empty else [*older, *added]
        is_past, counts = None, Counter[str]()
        if before is None and self._prefilter is not None:
            counts = Counter(self._prefilter.counts(job))
            marked = self._progress.marked(_hashed(self._prefilter.rows(job)))
        elif (
            before is None
            or _goes_back(before, self._progress)
            or _is_corrected_since(before, self._progress)
        ):
            marked = self._progress.marked(self._read(schema, *older, *added))
        else:
            is_past, counts = F.col("group.is_past"), Counter(before.counts[job.name])
            new = self._read(schema, *added)
            watched = self._read(schema, watched_folder(before.run, job.name))
            recorded = _recorded_since(before, self._progress)
            known = _touched(self._read(schema, *older), new, watched, recorded)
            known = known.unionByName(watched)
            marked = _twice(known, new, before.was(), self._progress)
        self._watched_in.append(watched_folder(self._run, job.name))
        self._counts[job.name] = self._judge(job, marked, is_past, counts)
        if job.comparison is not None and self._compare(job, job.comparison):
            self._counts[job.name] = self._judge(job, marked, is_past, counts)
        return self._counts[job.name]

    def _judge(self, job: Job, marked: DataFrame, is_past: Column | None, before: Counts) -> Counts:
        """Judge rows and write those to watch: of groups that need attention, or may change.

        Args:
            job: the job.
            marked: its rows, marked with how far the consumers were or are.
            is_past: whether a row shows its group as it was; None if all rows are judged.
            before: the counts to which those of the rows are added.
        """
        schema, marked = self._schemas[job.name], self._marked_alike(job, marked)
        judged, counted = judging.judged(job, marked, is_past)
        is_kept = F.max((F.size("findings") > 0) | F.col("is_open"))
        watched = judged.withColumn("is_kept", is_kept.over(Window.partitionBy("group")))
        if is_past is not None:
            watched = watched.where(~is_past).withColumn("group", F.col("group.of"))
        differs = [] if job.comparison is None else ["compared_with"]
        columns = dict.fromkeys([*schema.names, *FOUND, *differs])
        folder = watched_folder(self._run, job.name)
        watched = watched.where("is_kept").select(*columns)
        self._write(watched, folder)
        self._watched[job.name] = self._read(watched.schema, folder)
        return {name: before.get(name, 0) + more for name, more in counted().items()}

    def _marked_alike(self, job: Job, rows: DataFrame) -> DataFrame:
        """Mark the rows that were found to mean the same as others."""
        if job.comparison is None or not self._compared:
            return rows
        return with_alike(rows, self._read(_COMPARED, *self._compared))

    def _compare(self, job: Job, comparison: Comparison) -> bool:
        """Compare what differs and was never compared; return whether anything means the same."""
        if self._opened is None or not comparison.is_needed(self._counts[job.name]):
            return False
        pairs = pairs_of(self._watched[job.name])
        if self._compared:
            known = self._read(_COMPARED, *self._compared)
            pairs = pairs.join(known, list(PAIR), "left_anti")
        pairs, folder = pairs.persist(), f"{self.name}/{job.name}/compared"
        with unpersisted([pairs]):
            if not pairs.count():
                return False
            with self._opened() as lookup:
                self._write(comparison.compared(pairs, lookup, self._progress.corrections), folder)
        self._compared.append(folder)
        return bool(self._read(_COMPARED, folder).where("same").count())

    def check(self, jobs: Sequence[Job], read: Read) -> None:
        """Make sure that the rows of the jobs are those of the store.

        Args:
            jobs: the jobs that were taken.
            read: reads all messages, under the snapshot of the new messages.

        Raises:
            StateError: messages were changed or deleted since they were read, or are missing here.
        """
        for job in jobs:
            names = [name for name in self._schemas[job.name].names if name != _HASH]
            here, there = (
                # Passes are recorded apart from the log.
                rows.where("global_position > 0").select(
                    "global_position", F.struct(*names).alias(of)
                )
                for rows, of in ((self.rows(job), "here"), (job.rows(read), "there"))
            )
            here_, there_ = F.col("here"), F.col("there")
            differences = here.join(there, "global_position", "full_outer").where(
                ~here_.eqNullSafe(there_)
            )
            found = differences.agg(
                F.count_if(here_.isNotNull() & there_.isNotNull()).alias("changed"),
                F.count_if(there_.isNull()).alias("gone"),
                F.count_if(here_.isNull()).alias("unknown"),
                F.min("global_position").alias("first"),
            ).collect()[0]
            if found["first"] is not None:
                raise StateError(
                    f"The state in {self._state.folder} is not what the store holds: "
                    f"{found['changed']:,} messages were changed since they were read, "
                    f"{found['gone']:,} are gone and {found['unknown']:,} were never read; the "
                    f"first is at global position {found['first']}; {ANEW}"
                )

    def findings(self) -> DataFrame:
        """Return all rows that need attention, of the jobs that were taken."""
        watched = [rows for _, rows in sorted(self._watched.items())]
        return judging.combined([judging.findings_of(rows) for rows in watched])

    def rows(self, job: Job) -> DataFrame:
        """Return all rows of a job that was taken."""
        return self._read(self._schemas[job.name], *self._rows[job.name])

    def bring_together(self) -> None:
        """Combine rows that are in too many folders."""
        for name, folders in self._rows.items():
            if len(folders) > _FOLDERS:
                together = f"{self.name}/{name}/together"
                self._write(self._read(self._schemas[name], *folders), together)
                self._rows[name] = [together]
        if len(self._compared) > _FOLDERS:
            self._write(self._read(_COMPARED, *self._compared), f"{self.name}/compared")
            self._compared = [f"{self.name}/compared"]

    def commit(self) -> None:
        """Make this run's result the state."""
        self.bring_together()
        self._state.put(
            self._run,
            heads=self._heads,
            log=self._log,
            progress=self._progress,
            counts=self._counts,
            rows=self._rows,
            watched=self._watched_in,
            store=self._store,
            lasting=self.lasting,
            compared=self._compared,
        )

    def _write(self, rows: DataFrame, folder: str) -> None:
        writer = rows.write.mode("overwrite")
        for name in _MANY:
            writer.option(f"parquet.enable.dictionary#{name}", "false")
        writer.parquet(str(self._state.folder / folder))

    def _read(self, schema: StructType | str, *folders: str) -> DataFrame:
        return self._spark.read.schema(schema).parquet(
            *(str(self._state.folder / name) for name in folders)
        )


def _hashed(rows: DataFrame) -> DataFrame:
    return rows.withColumn(_HASH, F.xxhash64("group"))


def watched_folder(run: int, job: str) -> str:
    """Return the folder, within that of the state, with the groups that a run watches for a job."""
    return f"{run_name(run)}/{job}/watched"


def known(spark: SparkSession, state: State) -> DataFrame:
    """Return the global positions of the messages that a state has read."""
    manifest = state.judged
    assert manifest is not None  # noqa: S101  called only after a first run
    read = [
        spark.read.parquet(*(str(state.folder / name) for name in folders))
        for folders in manifest.rows.values()
    ]
    return reduce(DataFrame.union, [rows.select("global_position") for rows in read])


def _touched(
    known: DataFrame, new: DataFrame, watched: DataFrame, recorded: Sequence[int]
) -> DataFrame:
    """Return the known rows of the groups of new rows, without the watched groups.

    The groups of messages that were recorded as conflicts since are returned too.

    Mostly the rows are few and near the end of the log. Only hashes of groups are read to find out
    where they are.
    """
    position, touched = F.col("global_position"), new.select("group", _HASH)
    if recorded:
        at = known.sparkSession.createDataFrame(pa.table({"global_position": recorded}))
        of_recorded = known.join(F.broadcast(at), "global_position", "left_semi")
        touched = touched.unionByName(of_recorded.select("group", _HASH))
    groups = touched.join(watched.select("group"), "group", "left_anti")
    place = F.abs(position)  # a pass is at the negative of its message's
    (first, last) = (
        known.select(_HASH, "global_position")
        .join(groups, _HASH, "left_semi")
        .agg(F.min(place), F.max(place))
        .collect()[0]
    )
    first, last = F.lit(first), F.lit(last)
    here = known.where(position.between(first, last) | position.between(-last, -first))
    return here.join(groups, "group", "left_semi").select(*known.columns)


def _twice(known: DataFrame, new: DataFrame, was: Progress, now: Progress) -> DataFrame:
    """Return known groups as they were, and as they are with what is new.

    Args:
        known: their rows.
        new: the rows that are new.
        was: how far the consumers were.
        now: how far the consumers are.

    Returns:
        The rows, marked with how far the consumers were or are. ``group`` is a struct: ``of``, the
        group, and ``is_past``, whether the row shows it as it was.
    """
    is_past = F.explode(F.array(F.lit(True), F.lit(False))).alias("is_past")
    both = known.select("*", is_past).unionByName(new.withColumn("is_past", F.lit(False)))
    group = F.struct("is_past", F.col("group").alias("of"))
    return now.marked(both, was=was).withColumn("group", group).drop("is_past")


def _recorded_since(manifest: StateManifest, now: Progress) -> list[int]:
    """Return where messages are that were known, and were recorded as conflicts since."""
    was = manifest.was().consumed
    return [
        at
        for category, one in now.consumed.items()
        for at in set(one.conflicts).difference(was[category].conflicts)
        if at <= manifest.heads[category].position
    ]


def _is_corrected_since(manifest: StateManifest, now: Progress) -> bool:
    """Return whether any message was corrected, so that any may mean the same as another now.

    People do that seldom.
    """
    return set(manifest.was().corrections) != set(now.corrections)


def _goes_back(manifest: StateManifest, now: Progress) -> bool:
    """Return whether a consumer was moved back, so that any verdict may have changed.

    A new dead letter among the messages that it had read means so too, even if the consumer is
    further on by now.
    """
    for category, one in manifest.was().consumed.items():
        other = now.consumed.get(category)
        if other is None or not other.reaches(one):
            return True
        known = min(one.highest, manifest.heads[category].position)
        came_up = set(other.letters).difference(one.letters)
        if one.position is not None and any(letter <= known for letter in came_up):
            return True
    return False
