"""Runs that read only what is new since the last one, and look again only at what that changes.

A state is a folder that every part of Spark can reach. It holds the rows that were read so far, the
counts, what needs attention, and the rows of the groups that were open, in Parquet; a manifest says
up to where the log was read and how far the consumers were. A run reads what came after, brings it
together with the older rows of the groups that it touches and of those that were open, and judges
these groups twice: as they were, which is taken off the counts, and as they are, which is added. So
the sum is what a run over everything would have counted.

A run writes a folder of its own. It counts once the file ``CURRENT`` names it, so a run that dies
on the way leaves the state as it was.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs import judging
from spark_jobs.errors import StateError
from spark_jobs.judging import Counts, Job, Read
from spark_jobs.locked import locked
from spark_jobs.progress import Consumed, Progress

_VERSION = 2
_CURRENT = "CURRENT"
_MANIFEST = "manifest.json"

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
        declaration: how its keys were made.
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
                f"The state in {self.folder} was made when the component declared its keys "
                f"otherwise; {_ANEW}"
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
        read: Read,
        heads: Mapping[str, Head],
        progress: Progress,
    ) -> None:
        """Begin.

        Args:
            spark: the session.
            state: where to go on from.
            read: reads what came after the state.
            heads: up to where that reads each category.
            progress: how far the consumers are.
        """
        self._spark = spark
        self._state = state
        self._read_new = read
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
        self._goes_back = before is not None and _goes_back(before.was(), progress)

    def add(self, job: Job, read: Read, part: str = "rows") -> None:
        """Take in rows of a job that are new; a part that is taken in again is the same part."""
        folder = f"{self.name}/{job.name}/{part}"
        job.rows(read).write.mode("overwrite").parquet(str(self._state.folder / folder))
        added = self._added.setdefault(job.name, [])
        if folder not in added:
            added.append(folder)

    def take(self, job: Job) -> Counts:
        """Judge what is new, and what it changes; return what a run over everything would count.

        What is new is what was added, or else what is read now.
        """
        before, folder = self._before, self._state.folder / self.name / job.name
        if job.name not in self._added:
            self.add(job, self._read_new)
        older = [] if before is None else before.rows[job.name]
        self._rows[job.name] = [*older, *self._added[job.name]]
        rows = new = self._read(*self._added[job.name])
        if before is not None:
            was = f"{_run_name(before.run)}/{job.name}"
            opened, known = self._read(f"{was}/open"), self._read(*older)
            if not self._goes_back:
                known = opened.unionByName(_touched(known, new, opened)).persist()
            rows = known.unionByName(new)
        kept, counted = judging.judged(job, rows, self._progress)
        if before is not None and not self._goes_back:
            again = rows.select("group").distinct()
            others = judging.findings_of(self._read(f"{was}/kept"))
            kept = kept.unionByName(others.join(again, "group", "left_anti"))
        kept.write.parquet(str(folder / "kept"))
        counts = counted()
        if before is not None:
            earlier, all_of = judging.counted(job, known, before.was()), before.counts[job.name]
            counts = {name: all_of[name] - earlier[name] + now for name, now in counts.items()}
        is_open = self._read(f"{self.name}/{job.name}/kept").where("is_open")
        still_open = rows.join(is_open, "group", "left_semi").select(*new.columns)
        still_open.write.parquet(str(folder / "open"))
        if before is not None:
            known.unpersist()
        self._counts[job.name] = counts
        return counts

    def findings(self) -> DataFrame:
        """Return all rows that need attention, of the jobs that were taken."""
        folders = [f"{self.name}/{name}/kept" for name in sorted(self._rows)]
        return judging.together([judging.findings_of(self._read(folder)) for folder in folders])

    def rows(self, job: Job) -> DataFrame:
        """Return all rows of a job that was taken."""
        return self._read(*self._rows[job.name])

    def bring_together(self) -> None:
        """Put rows that lie in too many folders into one."""
        for name, folders in self._rows.items():
            if len(folders) > _FOLDERS:
                together = f"{self.name}/{name}/together"
                self._read(*folders).write.parquet(str(self._state.folder / together))
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

    def _read(self, *folders: str) -> DataFrame:
        return self._spark.read.parquet(*(str(self._state.folder / name) for name in folders))


def _touched(known: DataFrame, new: DataFrame, opened: DataFrame) -> DataFrame:
    """Return the rows of groups that new ones are in, beside those of open groups.

    Mostly they are few and lie near the end, which is seen without reading more of all rows than
    their groups.
    """
    groups = new.select("group").distinct().join(opened.select("group"), "group", "left_anti")
    position = F.col("global_position")
    (first, last) = (
        known.select("group", "global_position")
        .join(F.broadcast(groups), "group", "left_semi")
        .agg(F.min(position), F.max(position))
        .collect()[0]
    )
    here = known.where(position.between(F.lit(first), F.lit(last)))
    return here.join(groups, "group", "left_semi").select(*known.columns)


def _run_name(run: int) -> str:
    return f"run-{run:06}"


def _goes_back(was: Progress, now: Progress) -> bool:
    """Tell whether a consumer is before where it was, so that nothing is judged for good."""
    for category, one in was.consumed.items():
        other = now.consumed.get(category)
        if other is None or (one.position is None) != (other.position is None):
            return True
        if (
            one.position is not None
            and other.position is not None
            and other.position < one.position
        ):
            return True
        if one.before is not None and other.before is not None and other.before < one.before:
            return True
    return False
