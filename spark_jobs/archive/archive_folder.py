"""The folder of an archive: what each run has archived, and whether it is still intact.

    run=000001/_manifest.json
    run=000001/category=account%3Acommand/day=2026-01-01/part-….zstd.parquet

A run writes to a folder that readers ignore. The file ``_LOCK`` names it, so that the next run can
remove it. The manifest is written last, then the folder is renamed, so a run that fails leaves the
archive as it was. The manifest holds the counts and checksums of the messages, and the size and the
digest of every file, by which later damage is found without the store.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from reservation.errors import ArchiveError
from reservation.maintenance.pruning import ArchivePortion
from spark_jobs.archive.manifest import ArchiveManifest, ArchivePart
from spark_jobs.archive.messages import portions
from spark_jobs.common import files as data_files
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.errors import SparkJobError
from spark_jobs.common.file_lock import Lock, file_lock, require_empty, require_unlocked
from spark_jobs.common.files import File, FileFault
from spark_jobs.common.given_data import GivenData

if TYPE_CHECKING:  # what reads an archive needs no Spark
    from spark_jobs.snapshot.snapshot import Snapshot

_VERSION = 1
_MANIFEST = "_manifest.json"
_LOCK = "_LOCK"


class Archive:
    """The messages that runs have archived in a folder."""

    def __init__(self, folder: Path, component: str | None, declaration: str) -> None:
        """List the runs; those of any component if None is named."""
        self.folder = folder
        self._component = component
        self._declaration = declaration
        self.runs: list[ArchiveManifest] = []
        for number, path in enumerate(sorted(folder.glob("run=*")), start=1):
            if path.name != _name(number):
                raise ArchiveError(
                    f"The archive in {folder} lacks {_name(number)}; put it back from a copy"
                )
            if path.is_symlink():
                raise ArchiveError(
                    f"The archive in {folder} has a symbolic link instead of the folder "
                    f"{path.name}; put the folder itself in its place"
                )
            self.runs.append(self._manifest(path))

    def _manifest(self, path: Path) -> ArchiveManifest:
        try:
            manifest = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=ArchiveManifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise ArchiveError(
                f"The archive in {self.folder} cannot be read ({error}); put {path.name} back "
                f"from a copy"
            ) from error
        if manifest.version != _VERSION:
            raise ArchiveError(
                f"The archive in {self.folder} has format {manifest.version}, and this package "
                f"reads format {_VERSION}; name another folder"
            )
        if manifest != manifest.digested():
            raise ArchiveError(
                f"The archive in {self.folder} has a manifest in {path.name} that was changed "
                f"after it was written; put it back from a copy"
            )
        if manifest.run != len(self.runs) + 1:
            raise ArchiveError(
                f"The archive in {self.folder} has the manifest of run {manifest.run} in "
                f"{path.name}; put it back from a copy"
            )
        if self._component is None:
            self._component = manifest.component
        if manifest.component != self._component:
            raise ArchiveError(
                f"The archive in {self.folder} is of the component {manifest.component!r}, not "
                f"{self._component!r}; name another folder"
            )
        return manifest

    def _is_as_today(self, manifest: ArchiveManifest) -> bool:
        """Return whether the columns that a run has made of its messages are those of today."""
        try:
            former = Declaration.from_json(manifest.declaration)
        except msgspec.MsgspecError:
            return False
        return former.keys == Declaration.from_json(self._declaration).keys

    def head(self, category: str) -> tuple[int, str | None]:
        """Return the global position and id of a category's last message here, or 0 and None."""
        for run in reversed(self.runs):
            if category in run.categories:
                part = run.categories[category]
                return part.last, part.last_id
        return 0, None

    @property
    def after(self) -> dict[str, int]:
        """The global position up to which each category is archived."""
        categories = {category for run in self.runs for category in run.categories}
        return {category: self.head(category)[0] for category in categories}

    @property
    def counts(self) -> dict[str, int]:
        """The archived messages of each category, counted."""
        return {
            category: sum(
                run.categories[category].kept.count
                for run in self.runs
                if category in run.categories
            )
            for category in self.after
        }

    @property
    def former(self) -> list[int]:
        """The numbers of the runs that were made when the component declared other keys."""
        return [run.run for run in self.runs if not self._is_as_today(run)]

    @property
    def folders(self) -> list[str]:
        """The folders of the runs."""
        return [str(self.folder / _name(run.run)) for run in self.runs]

    @property
    def files(self) -> list[str]:
        """The files of the runs."""
        return [str(self.folder / _name(run.run) / path) for run in self.runs for path in run.files]

    def check(self, snapshot: "Snapshot", category: str) -> None:
        """Make sure that the archive belongs to the store."""
        self.require_store(snapshot.store)
        position, message_id = self.head(category)
        if message_id is not None and not snapshot.holds(position, message_id):
            raise ArchiveError(
                f"The store does not hold the last message of {category} that is in the archive in "
                f"{self.folder}: it is another store, or messages were deleted; name another folder"
            )

    def require_store(self, store: str | None) -> None:
        """Make sure that the archive does not belong to a store with another id."""
        for run in self.runs:
            if store is not None and run.store not in (None, store):
                raise ArchiveError(
                    f"The archive in {self.folder} is of the store {run.store}, and this store is "
                    f"{store}; name another database, or another folder"
                )

    def require_runs(self) -> None:
        """Make sure that there is anything."""
        if not self.runs:
            raise ArchiveError(
                f"There is no archive in {self.folder}; make one with `reservation archive`, or "
                f"name the folder in which it is"
            )

    def faults(self) -> list[FileFault]:
        """Return the differences to the archived files, by their digests."""
        runs = {path.parent.name for path in self.folder.glob(f"run=*/{_MANIFEST}")}
        beside = [
            FileFault(path, "is not listed in a manifest", is_foreign=True)
            for path in data_files.data_files(self.folder)
            # The files of a run that is added meanwhile have a manifest too.
            if path.partition("/")[0] not in runs
        ]
        return beside + [
            FileFault(f"{_name(run.run)}/{fault.path}", fault.what, fault.is_foreign)
            for run in self.runs
            for fault in data_files.faults(self.folder / _name(run.run), run.files)
        ]

    def require_whole(self) -> None:
        """Make sure that the files are those that were archived, by their digests."""
        found = self.faults()
        for fault in found[:1]:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            mend = "move it away" if fault.is_foreign else "put it back from a copy"
            raise ArchiveError(f"{self.folder / fault.path} {fault.what}; {mend}{more}")

    def portions(self, category: str, number: int) -> Iterator[ArchivePortion]:
        """Return a category's messages in portions; see `spark_jobs.archive.messages`."""
        for run in self.runs:
            for path in self.files_of(run, category):
                yield from portions(path, number)

    def files_of(self, run: ArchiveManifest, category: str) -> list[Path]:
        """Return the files of a category in a run."""
        return [
            self.folder / _name(run.run) / path
            for path in sorted(run.files)
            if unquote(path.partition("/")[0]) == f"category={category}"
        ]

    def begin(self, lock: Lock) -> Path:
        """Return the folder for Spark to write, which does not exist yet."""
        beside = f".new-{secrets.token_hex(4)}"
        lock.note(beside)
        (self.folder / beside).mkdir(mode=0o700)
        return self.folder / beside / _name(len(self.runs) + 1)

    def put(
        self,
        written: Path,
        files: Mapping[str, File],
        *,
        time: datetime,
        before: datetime,
        categories: Mapping[str, ArchivePart],
        store: str | None,
        given: Sequence[GivenData] = (),
    ) -> None:
        """Make what was written part of the archive, once it is flushed to disk."""
        manifest = ArchiveManifest(
            version=_VERSION,
            component=self._component or "",
            declaration=self._declaration,
            run=len(self.runs) + 1,
            time=time,
            before=before,
            categories=dict(categories),
            files=dict(files),
            store=store,
            given=list(given),
        ).digested()
        (written / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        data_files.make_private(written)
        for path in [*written.rglob("*"), written]:
            _sync(path)
        written.replace(self.folder / _name(manifest.run))
        _sync(self.folder)
        self.runs.append(manifest)


@contextmanager
def open_archive(folder: Path, component: str, declaration: str) -> Iterator[tuple[Archive, Lock]]:
    """Open an archive, or a folder for a new one, and lock it against other runs.

    What a failed run left is removed.
    """
    refuse_others(folder)
    with file_lock(folder, _LOCK, "archive", ArchiveError) as lock:
        archive = Archive(folder, component, declaration)
        _remove_new(folder, lock)
        try:
            yield archive, lock
        finally:
            _remove_new(folder, lock)


def refuse_others(folder: Path) -> None:
    """Refuse a folder that another run has locked, or that holds something else."""
    require_unlocked(folder, _LOCK, "archive", ArchiveError)
    if not any(folder.glob(f"run=*/{_MANIFEST}")):
        require_empty(folder, _LOCK, (), "archive", ArchiveError)


def _remove_new(folder: Path, lock: Lock) -> None:
    """Remove the folder of an unfinished run, which the lock names."""
    name = lock.noted
    if name is not None and re.fullmatch(r"\.new-[0-9a-f]{8}", name):
        shutil.rmtree(folder / name, ignore_errors=True)
        if not (folder / name).exists():
            lock.note(None)


def read_archive(
    folder: Path, component: str, declaration: str, *, as_of: datetime | None = None
) -> Archive:
    """Open an archive for reading."""
    archive = Archive(folder, component, declaration)
    if as_of is not None:
        archive.runs = [run for run in archive.runs if run.time <= as_of]
    archive.require_runs()
    archive.require_whole()
    return archive


def files_in(written: Path) -> dict[str, File]:
    """Return the files that Spark wrote, by their paths within the folder."""
    found = data_files.listed(written, data_files.data_files(written))
    if not found:
        raise SparkJobError(
            f"This machine does not see what was written to {written.parent.parent}: Spark's "
            f"workers are on other machines; name a folder on storage that all of them share"
        )
    return found


def _name(run: int) -> str:
    return f"run={run:06}"


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk, before messages are removed elsewhere."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
