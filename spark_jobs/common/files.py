"""The data files of a folder, compared with what a manifest lists.

Spark reads every data file in its folders, so an extra file matters as much as a missing or changed
one. Names that Spark ignores, such as ``_SUCCESS``, are not data files.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec


class File(msgspec.Struct, frozen=True):
    """A file as it was written: its size in bytes, and its SHA-256."""

    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class FileFault:
    """The fault of one file of a folder.

    Attributes:
        path: the file, relative to the folder.
        what: what is wrong with it.
        is_foreign: whether the file does not belong there.
    """

    path: str
    what: str
    is_foreign: bool = False


def data_files(folder: Path) -> Iterator[str]:
    """Return the data files below a folder by their relative paths; links are not followed."""
    for place, folders, files in os.walk(folder):
        within = Path(place).relative_to(folder)
        folders[:] = sorted(name for name in folders if _is_data(name))
        linked = [name for name in folders if Path(place, name).is_symlink()]
        yield from (str(within / name) for name in [*linked, *files] if _is_data(name))


def paths(*folders: Path) -> list[Path]:
    """Return the data files of folders, those of each in the order of their names."""
    return [folder / name for folder in folders for name in sorted(data_files(folder))]


def _is_data(name: str) -> bool:
    """Return whether Spark reads files of this name (``HadoopFSUtils.shouldFilterOutPathName``)."""
    return not name.startswith(".") and (not name.startswith("_") or "=" in name)


def listed(folder: Path, paths: Iterable[str]) -> dict[str, File]:
    """Return files below a folder with their sizes and digests, as a manifest lists them."""
    paths = sorted(paths)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return dict(zip(paths, threads.map(lambda path: _file(folder / path), paths), strict=True))


def _file(path: Path) -> File:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return File(os.fstat(file.fileno()).st_size, digest)


def faults(folder: Path, files: Mapping[str, File], *, by_size: bool = False) -> list[FileFault]:
    """Return the differences between a folder and the files that a manifest lists."""
    found = [
        FileFault(path, "is not listed in the manifest", is_foreign=True)
        for path in sorted(set(data_files(folder)).difference(files))
    ]
    home = folder.resolve()

    def fault(path: str) -> str | None:
        return _fault(home, path, files[path], by_size=by_size)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        faulty = zip(files, threads.map(fault, files), strict=True)
        return [*found, *(FileFault(path, what) for path, what in faulty if what is not None)]


def _fault(home: Path, path: str, file: File, *, by_size: bool) -> str | None:
    if not is_within(path):
        return "is a path that leads outside of the folder of the manifest"
    place = home / path
    try:
        if place.resolve() != place:
            return "is a symbolic link or lies behind one"
        status = place.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        if status.st_size != file.size:
            return f"has {status.st_size} bytes instead of {file.size}"
        if not by_size and _file(place).digest != file.digest:
            return "has another SHA-256 than when it was written"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def is_within(path: str) -> bool:
    """Return whether a relative path stays below its folder, apart from links."""
    parts = PurePosixPath(path).parts
    return bool(parts) and "\0" not in path and not path.startswith("/") and ".." not in parts


def make_private(folder: Path) -> None:
    """Make a folder and its contents readable by their owner only: folders 0700, files 0600.

    Files of another user, such as the one that Spark's workers run as, keep their mode; the
    folder's mode protects them.
    """
    for place, _, files in os.walk(folder):
        _chmod(Path(place), 0o700)
        for name in files:
            _chmod(Path(place, name), 0o600)


def _chmod(path: Path, mode: int) -> None:
    if not path.is_symlink() and path.stat().st_uid == os.geteuid():
        path.chmod(mode)
