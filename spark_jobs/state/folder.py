"""The folder of a state: what runs have read and found, and from where the next run continues.

Each run writes a folder. It counts once the file ``CURRENT`` names it, so a run that fails leaves
the state as it was. Only folders that a manifest names, or that ``LOCK`` names as begun, are ever
removed.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from spark_jobs.common import files as data_files
from spark_jobs.common.errors import StateError
from spark_jobs.common.file_lock import Lock, file_lock, require_empty, require_unlocked
from spark_jobs.common.files import File

_VERSION = 10
_CURRENT = "CURRENT"
_MANIFEST = "manifest.json"
_LOCK = "LOCK"
_RUN = re.compile(r"run-[0-9]{6,}")

# The folders of a run.
SUMMARIES, MERGED, OPEN = "summaries", "merged", "open"
READ, FINDINGS = "read", "findings"

ANEW = "name another folder, or remove this one to read everything again"


class Head(msgspec.Struct, frozen=True):
    """The last message of a category that was read; 0 and None if it had none.

    Attributes:
        position: its global position.
        message_id: its id.
    """

    position: int
    message_id: str | None


class LastingViolations(msgspec.Struct, frozen=True):
    """A follower's record of the violations (`spark_jobs.follow.persistence`).

    Attributes:
        folder: the folder with the record of each violation.
        standing: how many reported violations of each kind still exist.
        waits_since: since when the oldest unreported violation exists; None without one.
    """

    folder: str
    standing: dict[str, int]
    waits_since: datetime | None


class _Version(msgspec.Struct):
    version: int


class StateManifest(msgspec.Struct, frozen=True):
    """The contents of a state.

    Attributes:
        version: the version of the form.
        component: whose it is.
        declaration: how its facts are made and judged.
        run: the number of the run that wrote it, from 1.
        heads: the last message of each category that was read.
        seed: the seed of the hashes of its facts.
        probe: how the server hashes a known text with the seed.
        summaries: the folders with the summaries of all messages, which are merged when read.
        closed: what is counted of groups whose verdicts do not depend on what consumers do.
        counts: what is counted of all groups.
        judged_with: a digest of what the verdicts depend on beside the log.
        files: for each needed folder, its files.
        needless: folders of runs that are no longer needed, and may be removed.
        store: the id of the store; None if it has none.
        lasting: since when violations persist; None without a follower.
    """

    run: int
    heads: dict[str, Head]
    seed: int
    probe: int
    summaries: list[str]
    closed: dict[str, dict[str, int]]
    counts: dict[str, dict[str, int]]
    judged_with: str
    store: str | None
    lasting: LastingViolations | None = None
    version: int = _VERSION
    component: str = ""
    declaration: str = ""
    files: dict[str, dict[str, File]] = {}
    needless: list[str] = []

    @property
    def open(self) -> str:
        """The folder with the groups that are not counted in `closed`."""
        return f"{run_name(self.run)}/{OPEN}"

    @property
    def findings(self) -> str:
        """The folder with the rows of findings."""
        return f"{run_name(self.run)}/{FINDINGS}"

    @property
    def read(self) -> str:
        """The folder with the positions that were read."""
        return f"{run_name(self.run)}/{READ}"


class StateFolder:
    """A state, locked by a run."""

    def __init__(self, folder: Path, component: str, declaration: str, lock: Lock) -> None:
        self.folder = folder
        self._component = component
        self._declaration = declaration
        self._lock = lock
        self._is_begun_anew = False
        self.manifest = self._current()
        self.require_whole()
        self.remove_leftovers()

    def _current(self) -> StateManifest | None:
        current = self.folder / _CURRENT
        if not current.exists():
            return None
        name, _, digest = current.read_text().strip().partition(" ")
        if not _RUN.fullmatch(name):
            raise StateError(
                f"The state in {self.folder} names {name!r}, which is not a run; {ANEW}"
            )
        try:
            text = (self.folder / name / _MANIFEST).read_bytes()
            version = msgspec.json.decode(text, type=_Version).version
            if version != _VERSION:
                raise StateError(
                    f"The state in {self.folder} has format {version}, and this package reads "
                    f"format {_VERSION}; {ANEW}"
                )
            if hashlib.sha256(text).hexdigest() != digest:
                raise StateError(
                    f"The manifest of the state in {self.folder} was changed after it was "
                    f"written; {ANEW}"
                )
            manifest = msgspec.json.decode(text, type=StateManifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise StateError(
                f"The state in {self.folder} cannot be read ({error}); {ANEW}"
            ) from error
        if manifest.component != self._component:
            raise StateError(
                f"The state in {self.folder} is of the component {manifest.component!r}, not "
                f"{self._component!r}; name another folder"
            )
        return manifest

    @property
    def judged(self) -> StateManifest | None:
        """The contents, if they were judged by the declaration of today; else None.

        If they were not, everything is read and judged anew.
        """
        manifest = self.manifest
        is_same = manifest is not None and manifest.declaration == self._declaration
        return manifest if is_same and not self._is_begun_anew else None

    def begin_anew(self) -> None:
        """Read and judge everything anew; violations that were reported stay so."""
        self._is_begun_anew = True

    def require_whole(self, *, by_size: bool = False) -> None:
        """Make sure that the files are those that the runs wrote."""
        if self.manifest is None:
            return
        home, lasting = self.folder.resolve(), self.manifest.lasting
        for name, files in self.manifest.files.items():
            place = home / name
            is_ours = data_files.is_within(name) and _RUN.fullmatch(name.partition("/")[0])
            if not is_ours or place.resolve() != place:
                raise StateError(
                    f"The state in {self.folder} names {name!r}, which leads outside of it; {ANEW}"
                )
            faults = data_files.faults(place, files, by_size=by_size)
            for fault in faults[:1]:
                raise StateError(f"{place / fault.path} {fault.what}; {ANEW}")
        for name in [
            *self.manifest.summaries,
            self.manifest.open,
            self.manifest.read,
            self.manifest.findings,
            *([] if lasting is None else [lasting.folder]),
        ]:
            if name not in self.manifest.files:
                raise StateError(
                    f"The state in {self.folder} does not list the files of {name!r}; {ANEW}"
                )

    def remove_leftovers(self) -> None:
        """Remove the folders of failed runs, and those that are no longer needed."""
        manifest, begun = self.manifest, self._lock.noted
        needed = set() if manifest is None else _folders(manifest)
        needless = set() if manifest is None else {*manifest.needless}
        for name in needless.union([] if begun is None else [begun]) - needed:
            path = self.folder / name
            if _RUN.fullmatch(name) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
        self._lock.note(None)

    def begin(self, run: int) -> Path:
        """Make the folder of a run, and return it."""
        folder = self.folder / run_name(run)
        if os.path.lexists(folder):
            raise StateError(f"{folder} is not part of the state in its folder; move it away")
        self._lock.note(folder.name)
        folder.mkdir(mode=0o700)
        return folder

    def check(self, holds: Mapping[str, bool], store: str | None) -> None:
        """Make sure that the state belongs to the store."""
        stored = None if self.manifest is None else self.manifest.store
        if store is not None and stored not in (None, store):
            raise StateError(
                f"The state in {self.folder} is of the store {stored}, and this store is {store}; "
                f"{ANEW}"
            )
        for category, is_there in holds.items():
            if not is_there:
                raise StateError(
                    f"The store does not hold the last message of {category} that the state in "
                    f"{self.folder} has read: it is another store, or messages were deleted; "
                    f"{ANEW}"
                )

    def put(self, manifest: StateManifest) -> None:
        """Make the result of a run, whose folder is complete, the state."""
        before = self.manifest
        former_files = {} if before is None else before.files
        folders = [*manifest.summaries, manifest.open, manifest.read, manifest.findings]
        folders += [] if manifest.lasting is None else [manifest.lasting.folder]
        files = {name: former_files.get(name) or self._listed(name) for name in folders}
        manifest = msgspec.structs.replace(
            manifest,
            component=self._component,
            declaration=self._declaration,
            files=files,
        )
        former = set() if before is None else {*before.needless} | _folders(before)
        needless = {name for name in former - _folders(manifest) if (self.folder / name).exists()}
        manifest = msgspec.structs.replace(manifest, needless=sorted(needless))
        text = msgspec.json.encode(manifest)
        place = self.folder / run_name(manifest.run)
        (place / _MANIFEST).write_bytes(text)
        data_files.make_private(place)
        next_current = self.folder / f".{_CURRENT}"
        next_current.touch(mode=0o600)
        next_current.write_text(f"{place.name} {hashlib.sha256(text).hexdigest()}\n")
        next_current.replace(self.folder / _CURRENT)
        self.manifest, self._is_begun_anew = manifest, False

    def _listed(self, name: str) -> dict[str, File]:
        place = self.folder / name
        files = data_files.listed(place, data_files.data_files(place))
        if not files:
            raise not_here(place)
        return files


@contextmanager
def open_state(folder: Path, component: str, declaration: str) -> Iterator[StateFolder]:
    """Open a state, or a folder for a new one, and lock it against other runs."""
    refuse_others(folder)
    with file_lock(folder, _LOCK, "state", StateError) as lock:
        yield StateFolder(folder, component, declaration, lock)


def refuse_others(folder: Path) -> None:
    """Refuse a folder that another run has locked, or that holds something other than a state.

    Nothing in it is changed.
    """
    require_unlocked(folder, _LOCK, "state", StateError)
    try:
        if _RUN.match((folder / _CURRENT).read_text()):
            return
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise StateError(f"The state in {folder} cannot be read ({error}); {ANEW}") from error
    require_empty(folder, _LOCK, [f".{_CURRENT}"], "state", StateError)


def not_here(place: Path) -> StateError:
    """Return the error where this machine does not see what Spark's workers have written."""
    return StateError(
        f"This machine does not see what was written to {place}: Spark's workers are on other "
        f"machines; name a folder on storage that all of them share"
    )


def run_name(run: int) -> str:
    """Return the name of a run's folder."""
    return f"run-{run:06}"


def _folders(manifest: StateManifest) -> set[str]:
    """Return the folders of runs that a state needs."""
    return {run_name(manifest.run)} | {name.partition("/")[0] for name in manifest.files}
