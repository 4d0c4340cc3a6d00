"""Runs that read only what is new since the last one, and look again only at what that changes.

A state is a folder that every part of Spark can reach. It holds the rows that were read so far, and
once more, with what was found of them, those of the groups that are watched: in which something
needs attention, or may be judged otherwise later. A manifest has the counts, up to where the log
was read and how far the consumers were. A run reads what came after, brings it together with the
groups that are watched and those that it touches, and judges them twice: as they were, which is
taken off the counts, and as they are, which is added. So the sum is what a run over everything
would have counted.

A run writes a folder of its own. It counts once the file ``CURRENT`` names it, so a run that dies
on the way leaves the state as it was.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.types import StructType

from spark_jobs import judging
from spark_jobs.errors import StateError
from spark_jobs.judging import FINDING, Counts, Job, Rows
from spark_jobs.locked import locked
from spark_jobs.progress import Consumed, Progress

_VERSION = 3
_CURRENT = "CURRENT"
_MANIFEST = "manifest.json"
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


class Head(msgspec.Struct, frozen=True):
    """The last message of a category that was read; 0 and None if it had none."""

    position: int
    message_id: str | None


class _Consumed(msgspec.Struct, frozen=True):
    position: int | None
    before: datetime | None
    letters: list[int]


class Lasting(msgspec.Struct, frozen=True):
    """What whoever follows the store has noted of the violations (`spark_jobs.lasting`).

    Attributes:
        folder: where it is noted of each.
        standing: how many of each finding were told and are there still.
        waits_since: since when the first of those lasts that were not told yet; None if all were.
    """

    folder: str
    standing: dict[str, int]
    waits_since: datetime | None


class Manifest(msgspec.Struct, frozen=True):
    """What a state says of itself.

    Attributes:
        version: of the state's form.
        component: whose it is.
        declaration: how its keys were made and its messages judged.
        run: the number of the run that wrote it, from 1.
        heads: up to where each category was read.
        progress: how far the consumers were.
        counts: what each job had counted.
        rows: for each job, the folders in which its rows are.
        lasting: how long violations last; None if nobody has followed the store.
    """

    version: int
    component: str
    declaration: str
    run: int
    heads: dict[str, Head]
    progress: dict[str, _Consumed]
    counts: dict[str, Counts]
    rows: dict[str, list[str]]
    lasting: Lasting | None = None

    def was(self) -> Progress:
        """Return how far the consumers were."""
        return Progress(
            {
                name: Consumed(one.position, one.before, one.letters)
                for name, one in self.progress.items()
            }
        )


class State:
    """A state, while a run has it to itself."""

    def __init__(self, folder: Path, component: str, declaration: str) -> None:
        self.folder = folder
        self._component = component
        self._declaration = declaration
        self.manifest = self._current()
        self.remove_leftovers()

    def _current(self) -> Manifest | None:
        current = self.folder / _CURRENT
        if not current.exists():
            return None
        manifest_path = self.folder / current.read_text().strip() / _MANIFEST
        try:
            manifest = msgspec.json.decode(manifest_path.read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise StateError(
                f"The state in {self.folder} can not be read ({error}); {_ANEW}"
            ) from error
        if manifest.version != _VERSION:
            raise StateError(
                f"The state in {self.folder} has form {manifest.version}, this package knows "
                f"{_VERSION}; {_ANEW}"
            )
        if manifest.component != self._component:
            raise StateError(
                f"The state in {self.folder} is of the component {manifest.component!r}, not "
                f"{self._component!r}; name another folder"
            )
        if manifest.declaration != self._declaration:
            raise StateError(
                f"The state in {self.folder} was made when the component declared its keys or "
                f"handlers otherwise; {_ANEW}"
            )
        return manifest

    def remove_leftovers(self) -> None:
        """Remove what runs left that died, or that later ones made needless."""
        manifest = self.manifest
        needed = set()
        if manifest is not None:
            needed = {name.split("/")[0] for names in manifest.rows.values() for name in names}
            needed.add(_run_name(manifest.run))
            if manifest.lasting is not None:
                needed.add(manifest.lasting.folder.split("/")[0])
        for path in self.folder.glob("run-*"):
            if path.name not in needed:
                shutil.rmtree(path)

    def check(self, holds: Mapping[str, bool]) -> None:
        """Make sure that the store is the one that the state is of.

        Args:
            holds: for each category, whether the store holds the last message that was read of it.

        Raises:
            StateError: it does not hold one of them.
        """
        for category, is_there in holds.items():
            if not is_there:
                raise StateError(
                    f"The store does not hold the last message of {category} that the state in "
                    f"{self.folder} has read: it is another store, or messages were deleted; "
                    f"{_ANEW}"
                )

    @property
    def after(self) -> dict[str, int]:
        """Up to where each category was read."""
        heads = self.manifest.heads if self.manifest is not None else {}
        return {category: head.position for category, head in heads.items()}


_ANEW = "name another folder, or remove this one for a run over everything"


@contextmanager
def opened(folder: Path, component: str, declaration: str) -> Iterator[State]:
    """Open a state, or the place for one, to the exclusion of other runs.

    Raises:
        StateError: it is in use, another component's, or can not be read or made.
    """
    with locked(folder, "LOCK", "state", StateError):
        yield State(folder, component, declaration)


class Step:
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
    ) -> None:
        """Begin.

        Args:
            spark: the session.
            state: where to go on from.
            new: the messages that came after the state, with the columns of `looked_at`.
            heads: up to where these are the messages of each category.
            progress: how far the consumers are.
        """
        self._spark = spark
        self._state = state
        self._new = new
        self._progress = progress
        before = state.manifest
        self._before = before
        self.lasting = None if before is None else before.lasting
        self._run = 1 if before is None else before.run + 1
        self.name = _run_name(self._run)
        self._folder = state.folder / self.name
        self._heads = dict(heads)
        self._counts: dict[str, Counts] = {}
        self._rows: dict[str, list[str]] = {}
        self._added: dict[str, list[str]] = {}
        self._schemas: dict[str, StructType] = {}
        self._watched: dict[str, DataFrame] = {}

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
            watched = self._read(schema, f"{_run_name(before.run)}/{job.name}/{_WATCHED}")
            known = _touched(self._read(schema, *older), new, watched).unionByName(watched)
            marked = _twice(known, new, before.was(), self._progress)
        judged, counted = judging.judged(job, marked, is_past)
        # To be looked at again: what may be judged otherwise, and what needs attention.
        is_watched = F.max(F.col("finding").isNotNull() | F.col("is_open"))
        watched = judged.withColumn("is_watched", is_watched.over(Window.partitionBy("group")))
        if is_past is not None:
            watched = watched.where(~is_past).withColumn("group", F.col("group.of"))
        columns = dict.fromkeys([*schema.names, *FINDING])
        folder = f"{self.name}/{job.name}/{_WATCHED}"
        watched = watched.where("is_watched").select(*columns)
        self._write(watched, folder)
        self._watched[job.name] = self._read(watched.schema, folder)
        self._counts[job.name] = {name: counts[name] + more for name, more in counted().items()}
        return self._counts[job.name]

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
        manifest = Manifest(
            version=_VERSION,
            component=self._state._component,
            declaration=self._state._declaration,
            run=self._run,
            heads=self._heads,
            progress={
                name: _Consumed(one.position, one.before, list(one.letters))
                for name, one in self._progress.consumed.items()
            },
            counts=self._counts,
            rows=self._rows,
            lasting=self.lasting,
        )
        (self._folder / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        beside = self._state.folder / f".{_CURRENT}"
        beside.write_text(f"{self.name}\n")
        beside.replace(self._state.folder / _CURRENT)
        self._state.manifest = manifest

    def _write(self, rows: DataFrame, folder: str) -> None:
        writer = rows.write.mode("overwrite")
        for name in _MANY:
            writer.option(f"parquet.enable.dictionary#{name}", "false")
        writer.parquet(str(self._state.folder / folder))

    def _read(self, schema: StructType, *folders: str) -> DataFrame:
        return self._spark.read.schema(schema).parquet(
            *(str(self._state.folder / name) for name in folders)
        )


def _touched(known: DataFrame, new: DataFrame, watched: DataFrame) -> DataFrame:
    """Return the rows of groups that new ones are in, beside those that are watched.

    Mostly they are few and lie near the end, which is seen without reading more of all rows than
    hashes of their groups.
    """
    groups = new.select("group", _HASH).join(watched.select("group"), "group", "left_anti")
    position = F.col("global_position")
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


def _run_name(run: int) -> str:
    return f"run-{run:06}"


def _goes_back(manifest: Manifest, now: Progress) -> bool:
    """Tell whether a consumer was moved back, so that anything may be judged otherwise now.

    It was, even if it is further by now, where a letter has come up of what it had read.
    """
    for category, one in manifest.was().consumed.items():
        other = now.consumed.get(category)
        if other is None or (one.position is None) != (other.position is None):
            return True
        if one.position is not None and other.position is not None:
            known = min(one.position, manifest.heads[category].position)
            came_up = set(other.letters).difference(one.letters)
            if other.position < one.position or any(letter <= known for letter in came_up):
                return True
        if one.before is not None and other.before is not None and other.before < one.before:
            return True
    return False
