"""Runs that read only what is new since the last one, and look again only at what that changes.

A state is a folder that every part of Spark can reach. It holds the rows that were read so far, and
once more, with what was found of them, those of the groups that are watched: in which something
needs attention, or may be judged otherwise later. A manifest has the counts, up to where the log
was read and how far the consumers were. A run reads what came after, brings it together with the
groups that are watched and those that it touches, and judges them twice: as they were, which is
taken off the counts, and as they are, which is added. So the sum is what a run over everything
would have counted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.types import StructType

from spark_jobs.analysis import judging
from spark_jobs.analysis.judging import FOUND, Counts, Job, Read, Rows
from spark_jobs.common.errors import StateError
from spark_jobs.reconciliation.stored_state import ANEW, Head, State, StateManifest, run_name
from spark_jobs.snapshot.progress import Progress

_WATCHED = "watched"

# The column with a hash of the group that a row is of, by which few are found among many.
_HASH = "hash"

# The columns in which nearly every value is another, so that a dictionary of them is of no use.
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

# Rows lie in as many folders as runs have written some, until they are brought together.
_FOLDERS = 16


class IncrementalRun:
    """One run's way from a state to the next.

    Attributes:
        name: the folder of the run, within that of the state.
        lasting: what is noted of how long violations last.
    """

    def __init__(
        self,
        spark: SparkSession,
        state: State,
        new: DataFrame,
        heads: Mapping[str, Head],
        progress: Progress,
        store: str | None = None,
    ) -> None:
        """Begin.

        Args:
            spark: the session.
            state: where to go on from.
            new: the messages that came after the state, with the columns of `looked_at`.
            heads: up to where these are the messages of each category.
            progress: how far the consumers are.
            store: the id of the store; None if it has none.
        """
        self._spark = spark
        self._state = state
        self._new = new
        self._progress = progress
        before = state.manifest
        self._before = before
        self.lasting = None if before is None else before.lasting
        self._run = 1 if before is None else before.run + 1
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
        """Take in messages that are new; a part that is taken in again is the same part."""
        folder = f"{self.name}/{job.name}/{part}"
        rows = job.rows(Rows(messages)).withColumn(_HASH, F.xxhash64("group"))
        self._schemas[job.name] = rows.schema
        self._write(rows, folder)
        added = self._added.setdefault(job.name, [])
        if folder not in added:
            added.append(folder)

    def take(self, job: Job) -> Counts:
        """Judge what is new, and what it changes; return what a run over everything would count.

        What is new is what was added, or else the messages that were given at the beginning.
        """
        before = self._before
        if job.name not in self._added:
            self.add(job, self._new)
        schema, added = self._schemas[job.name], self._added[job.name]
        older = [] if before is None else before.rows[job.name]
        # What is empty is read this once.
        is_empty = before is not None and before.heads == self._heads
        self._rows[job.name] = older if is_empty else [*older, *added]
        is_past, counts = None, Counter[str]()
        if before is None or _goes_back(before, self._progress):
            marked = self._progress.marked(self._read(schema, *older, *added))
        else:
            is_past, counts = F.col("group.is_past"), Counter(before.counts[job.name])
            new = self._read(schema, *added)
            watched = self._read(schema, f"{run_name(before.run)}/{job.name}/{_WATCHED}")
            recorded = _recorded_since(before, self._progress)
            known = _touched(self._read(schema, *older), new, watched, recorded)
            known = known.unionByName(watched)
            marked = _twice(known, new, before.was(), self._progress)
        judged, counted = judging.judged(job, marked, is_past)
        # To be looked at again: what may be judged otherwise, and what needs attention.
        is_kept = F.max((F.size("findings") > 0) | F.col("is_open"))
        watched = judged.withColumn("is_kept", is_kept.over(Window.partitionBy("group")))
        if is_past is not None:
            watched = watched.where(~is_past).withColumn("group", F.col("group.of"))
        columns = dict.fromkeys([*schema.names, *FOUND])
        folder = f"{self.name}/{job.name}/{_WATCHED}"
        watched = watched.where("is_kept").select(*columns)
        self._write(watched, folder)
        self._watched[job.name] = self._read(watched.schema, folder)
        self._watched_in.append(folder)
        self._counts[job.name] = {name: counts[name] + more for name, more in counted().items()}
        return self._counts[job.name]

    def check(self, jobs: Sequence[Job], read: Read) -> None:
        """Make sure that the rows of the jobs are those of the store.

        Args:
            jobs: those that were taken.
            read: reads all messages, under the snapshot that what is new was read under.

        Raises:
            StateError: messages were changed or deleted since they were read, or are missing here.
        """
        for job in jobs:
            names = [name for name in self._schemas[job.name].names if name != _HASH]
            here, there = (
                rows.select("global_position", F.struct(*names).alias(of))
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
        return judging.together([judging.findings_of(rows) for rows in watched])

    def rows(self, job: Job) -> DataFrame:
        """Return all rows of a job that was taken."""
        return self._read(self._schemas[job.name], *self._rows[job.name])

    def bring_together(self) -> None:
        """Put rows that lie in too many folders into one."""
        for name, folders in self._rows.items():
            if len(folders) > _FOLDERS:
                together = f"{self.name}/{name}/together"
                self._write(self._read(self._schemas[name], *folders), together)
                self._rows[name] = [together]

    def commit(self) -> None:
        """Let the state be what this run made of it."""
        self.bring_together()
        self._state.put(
            self._run,
            heads=self._heads,
            progress=self._progress,
            counts=self._counts,
            rows=self._rows,
            watched=self._watched_in,
            store=self._store,
            lasting=self.lasting,
        )

    def _write(self, rows: DataFrame, folder: str) -> None:
        writer = rows.write.mode("overwrite")
        for name in _MANY:
            writer.option(f"parquet.enable.dictionary#{name}", "false")
        writer.parquet(str(self._state.folder / folder))

    def _read(self, schema: StructType, *folders: str) -> DataFrame:
        return self._spark.read.schema(schema).parquet(
            *(str(self._state.folder / name) for name in folders)
        )


def known(spark: SparkSession, state: State) -> DataFrame:
    """Return the global positions of the messages that a state has read."""
    manifest = state.manifest
    assert manifest is not None  # noqa: S101  nobody asks what was read before anything was
    read = [
        spark.read.parquet(*(str(state.folder / name) for name in folders))
        for folders in manifest.rows.values()
    ]
    return reduce(DataFrame.union, [rows.select("global_position") for rows in read])


def _touched(
    known: DataFrame, new: DataFrame, watched: DataFrame, recorded: Sequence[int]
) -> DataFrame:
    """Return the rows of groups that new ones are in, beside those that are watched.

    So are the groups of messages at some global positions that were recorded as conflicts since.

    Mostly they are few and lie near the end, which is seen without reading more of all rows than
    hashes of their groups.
    """
    position, touched = F.col("global_position"), new.select("group", _HASH)
    if recorded:
        at = known.sparkSession.createDataFrame(pa.table({"global_position": recorded}))
        of_recorded = known.join(F.broadcast(at), "global_position", "left_semi")
        touched = touched.unionByName(of_recorded.select("group", _HASH))
    groups = touched.join(watched.select("group"), "group", "left_anti")
    (first, last) = (
        known.select(_HASH, "global_position")
        .join(groups, _HASH, "left_semi")
        .agg(F.min(position), F.max(position))
        .collect()[0]
    )
    here = known.where(position.between(F.lit(first), F.lit(last)))
    return here.join(groups, "group", "left_semi").select(*known.columns)


def _twice(known: DataFrame, new: DataFrame, was: Progress, now: Progress) -> DataFrame:
    """Return known groups as they were, and as they are with what is new.

    Args:
        known: their rows.
        new: the rows that are new.
        was, now: how far the consumers were and are.

    Returns:
        The rows, marked with how far the consumers were or are. ``group`` says ``of`` which group
        they are and whether that is as it was, ``is_past``.
    """
    is_past = F.explode(F.array(F.lit(True), F.lit(False))).alias("is_past")
    both = known.select("*", is_past).unionByName(new.withColumn("is_past", F.lit(False)))
    group = F.struct("is_past", F.col("group").alias("of"))
    return now.marked(both, was=was).withColumn("group", group).drop("is_past")


def _recorded_since(manifest: StateManifest, now: Progress) -> list[int]:
    """Return where messages are that were known and have been recorded as conflicts since."""
    was = manifest.was().consumed
    return [
        at
        for category, one in now.consumed.items()
        for at in set(one.conflicts).difference(was[category].conflicts)
        if at <= manifest.heads[category].position
    ]


def _goes_back(manifest: StateManifest, now: Progress) -> bool:
    """Tell whether a consumer was moved back, so that anything may be judged otherwise now.

    It was, even if it is further by now, where a letter has come up of what it had read.
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
