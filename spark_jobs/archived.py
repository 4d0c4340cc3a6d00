"""The folder in which an archive is: what each run has put there, and whether it still is.

    run=000001/_manifest.json
    run=000001/category=account%3Acommand/day=2026-01-01/part-….zstd.parquet

A run writes beside these, in a folder that no reader looks into. Its manifest is written last, and
then the whole takes its name at once, so a run that dies on the way leaves the archive as it was.
The manifest tells how much there is and what it adds up to, and the size and the digest of every
file, by which damage is found later without the store.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from spark_jobs.errors import ArchiveError, SparkJobError
from spark_jobs.locked import locked

if TYPE_CHECKING:
    from spark_jobs.snapshot import Snapshot

_VERSION = 1
_MANIFEST = "_manifest.json"
_NEW = ".new"

# About as many messages as a small log has (`spark_jobs.size`).
_FEW = 200_000


class Kept(msgspec.Struct, frozen=True):
    """How many messages there are, and what their hashes add up to (`spark_jobs.sums`)."""

    count: int
    hash: str


class Part(msgspec.Struct, frozen=True):
    """What a run has put there of a category.

    Attributes:
        first, last: the global positions of the first and last message.
        last_id: the id of the last one.
        kept: all of it.
        days: the same by day.
    """

    first: int
    last: int
    last_id: str
    kept: Kept
    days: dict[str, Kept]


class File(msgspec.Struct, frozen=True):
    """A file as it was written: its size in bytes, and its SHA-256."""

    size: int
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """What a run says of itself.

    Attributes:
        version: of the archive's form.
        component: whose messages they are.
        declaration: how its keys were made.
        run: the run's number, from 1.
        time: when the snapshot was taken that it read.
        before: what all messages are older than.
        categories: what there is of each.
        files: every file, by its path within the run's folder.
    """

    version: int
    component: str
    declaration: str
    run: int
    time: datetime
    before: datetime
    categories: dict[str, Part]
    files: dict[str, File]


class Archive:
    """What runs have put into a folder."""

    def __init__(self, folder: Path, component: str, declaration: str) -> None:
        """Look at what there is.

        Raises:
            ArchiveError: it is another component's, of another declaration, or can not be read.
        """
        self.folder = folder
        self._component = component
        self._declaration = declaration
        self.runs: list[Manifest] = []
        for number, path in enumerate(sorted(folder.glob("run=*")), start=1):
            if path.name != _name(number):
                raise ArchiveError(
                    f"The archive in {folder} lacks {_name(number)}; put it back from a copy"
                )
            self.runs.append(self._manifest(path))

    def _manifest(self, path: Path) -> Manifest:
        try:
            manifest = msgspec.json.decode((path / _MANIFEST).read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise ArchiveError(
                f"The archive in {self.folder} can not be read ({error}); put {path.name} back "
                f"from a copy"
            ) from error
        if manifest.version != _VERSION:
            raise ArchiveError(
                f"The archive in {self.folder} has form {manifest.version}, this package knows "
                f"{_VERSION}; name another folder"
            )
        if manifest.component != self._component:
            raise ArchiveError(
                f"The archive in {self.folder} is of the component {manifest.component!r}, not "
                f"{self._component!r}; name another folder"
            )
        if manifest.declaration != self._declaration:
            raise ArchiveError(
                f"The archive in {self.folder} was made when the component declared its keys "
                f"otherwise; use it with the code of then, and begin another folder with this one"
            )
        return manifest

    def head(self, category: str) -> tuple[int, str | None]:
        """Return the global position and id of a category's last message here, or 0 and None."""
        for one in reversed(self.runs):
            if category in one.categories:
                part = one.categories[category]
                return part.last, part.last_id
        return 0, None

    @property
    def after(self) -> dict[str, int]:
        """Up to where each category is here."""
        categories = {category for one in self.runs for category in one.categories}
        return {category: self.head(category)[0] for category in categories}

    @property
    def counts(self) -> dict[str, int]:
        """How many messages there are of each category."""
        return {
            category: sum(
                one.categories[category].kept.count
                for one in self.runs
                if category in one.categories
            )
            for category in self.after
        }

    @property
    def is_small(self) -> bool:
        """Whether there is so little that it takes longer to divide work than to do it."""
        return sum(self.counts.values()) < _FEW

    @property
    def folders(self) -> list[str]:
        """Where the files of each run are."""
        return [str(self.folder / _name(one.run)) for one in self.runs]

    def check(self, snapshot: "Snapshot", category: str) -> None:
        """Make sure that the store is the one that the archive is of.

        Args:
            snapshot: of the store.
            category: one whose last message here stays in the store, whatever else is removed.

        Raises:
            ArchiveError: it is another one.
        """
        position, message_id = self.head(category)
        if message_id is not None and not snapshot.holds(position, message_id):
            raise ArchiveError(
                f"The store does not hold the last message of {category} that is in the archive in "
                f"{self.folder}: it is another store, or messages were deleted; name another folder"
            )

    def damaged(self, *, by_size: bool = False) -> list[str]:
        """Return the files that are not what was written, by their paths within the archive.

        Args:
            by_size: whether it is enough that they are there, and of the same size.
        """
        return [
            f"{_name(one.run)}/{path}"
            for one in self.runs
            for path, file in one.files.items()
            if not _is_whole(self.folder / _name(one.run) / path, file, by_size=by_size)
        ]

    def ids(self, category: str, number: int) -> Iterator[tuple[list[int], list[str]]]:
        """Give the global positions and ids of a category's messages, in portions.

        Args:
            category: the category.
            number: how many a portion holds at most.

        Raises:
            ArchiveError: a file is not what was written; nothing of it is given.
        """
        from pyarrow.parquet import ParquetFile

        for one in self.runs:
            for path, file in sorted(one.files.items()):
                if unquote(path.partition("/")[0]) != f"category={category}":
                    continue
                place = self.folder / _name(one.run) / path
                if not _is_whole(place, file, by_size=False):
                    raise ArchiveError(f"{place} is not what was archived; put it back from a copy")
                with ParquetFile(place) as opened:
                    for batch in opened.iter_batches(number, columns=["global_position", "id"]):
                        positions, ids = batch.columns
                        yield positions.to_pylist(), ids.to_pylist()

    def begin(self) -> Path:
        """Return the folder that the next run is to write, which is not there yet."""
        beside = self.folder / _NEW
        beside.mkdir()
        return beside / _name(len(self.runs) + 1)

    def put(
        self,
        written: Path,
        files: Mapping[str, File],
        *,
        time: datetime,
        before: datetime,
        categories: Mapping[str, Part],
    ) -> None:
        """Let what was written be a part of the archive, once it is sure to stay.

        Args:
            written: the folder that `begin` gave.
            files: what `files_in` gave of it.
            time, before, categories: as in `Manifest`.
        """
        manifest = Manifest(
            version=_VERSION,
            component=self._component,
            declaration=self._declaration,
            run=len(self.runs) + 1,
            time=time,
            before=before,
            categories=dict(categories),
            files=dict(files),
        )
        (written / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        for path in [*written.rglob("*"), written]:
            _sync(path)
        written.replace(self.folder / _name(manifest.run))
        _sync(self.folder)
        self.runs.append(manifest)


@contextmanager
def opened(folder: Path, component: str, declaration: str) -> Iterator[Archive]:
    """Open an archive, or the place for one, to the exclusion of other runs.

    What a run left that died is removed.

    Raises:
        ArchiveError: it is in use, another component's, or can not be read or made.
    """
    with locked(folder, "_LOCK", "archive", ArchiveError):
        archive = Archive(folder, component, declaration)
        shutil.rmtree(folder / _NEW, ignore_errors=True)
        try:
            yield archive
        finally:
            shutil.rmtree(folder / _NEW, ignore_errors=True)


def there(
    folder: Path, component: str, declaration: str, *, as_of: datetime | None = None
) -> Archive:
    """Return an archive to read.

    Args:
        folder: where it is.
        component, declaration: whose it has to be, and how its keys have to be made.
        as_of: what runs have put there that read the store later does not count.

    Raises:
        ArchiveError: there is none, it is another component's, or can not be read, or files are
            missing.
    """
    archive = Archive(folder, component, declaration)
    if as_of is not None:
        archive.runs = [one for one in archive.runs if one.time <= as_of]
    if not archive.runs:
        raise ArchiveError(
            f"There is no archive in {folder}; make one with `reservation archive`, or name the "
            f"folder in which it is"
        )
    for path in archive.damaged(by_size=True):
        raise ArchiveError(f"{folder / path} is not what was archived; put it back from a copy")
    return archive


def files_in(written: Path) -> dict[str, File]:
    """Return the files that Spark has written, by their paths within the folder.

    Raises:
        SparkJobError: they are not here, because Spark's workers wrote them where they are.
    """
    found = {}
    for path in written.rglob("*.parquet"):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        found[str(path.relative_to(written))] = File(path.stat().st_size, digest)
    if not found:
        raise SparkJobError(
            f"What was to be written to {written.parent.parent} is not here: Spark's workers are "
            f"on other machines; name a place on storage that they and this machine share"
        )
    return found


def _is_whole(path: Path, file: File, *, by_size: bool) -> bool:
    try:
        if path.stat().st_size != file.size:
            return False
        if by_size:
            return True
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == file.digest
    except OSError:
        return False


def _name(run: int) -> str:
    return f"run={run:06}"


def _sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk, before anything is deleted elsewhere."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
