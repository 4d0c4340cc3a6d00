"""The outputs of a run are put in place once all has succeeded, so none is half-written.

A folder holds names and payloads, so only its owner can read it. A file is a report for others; the
umask decides who may read it.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_jobs.common.errors import SparkJobError
from spark_jobs.common.files import make_private


class Outputs:
    """Files and folders, written beside their final places."""

    def __init__(self) -> None:
        self._staged: list[tuple[Path, Path]] = []

    def run(self, table: Path, name: str) -> Path:
        """Return where to write the folder of one run in a table, which may be new."""
        if table.is_symlink() and not table.exists():
            raise SparkJobError(
                f"The folder {table} is a broken symbolic link; remove the link, or name another "
                f"folder"
            )
        is_there = table.is_dir()
        for path in sorted(table.iterdir()) if is_there else ():
            if not path.name.startswith((".", "run=")):
                raise SparkJobError(
                    f"The folder {table} is not empty and contains no table of findings: it holds "
                    f"{path.name!r}; name another folder"
                )
        return self._stage(table / name, table if is_there else table.parent, table) / name

    def file(self, place: Path) -> Path:
        """Return where to write a file, which takes the place of one that is there."""
        if place.is_dir():
            raise SparkJobError(f"The output file {place} is a folder; name a file")
        return self._stage(place, place.parent, place) / place.name

    def _stage(self, place: Path, folder: Path, named: Path) -> Path:
        """Return a new folder, within another one, in which something is written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=folder))
        except OSError as error:
            raise SparkJobError(f"The output {named} cannot be made: {error.strerror}") from error
        self._staged.append((beside, place))
        return beside

    def put_in_place(self) -> None:
        """Move what was written to its places."""
        for beside, place in self._staged:
            written = beside / place.name
            if not written.exists():
                raise SparkJobError(
                    f"This machine does not see what was written to {place}: Spark's workers are "
                    f"on other machines; name a folder on storage that all of them share"
                )
            if written.is_dir():
                make_private(written)
            try:
                place.parent.mkdir(mode=0o700, exist_ok=True)
                written.replace(place)
            except OSError as error:
                raise SparkJobError(
                    f"The output cannot be moved to {place}: {error.strerror}"
                ) from error

    def clear_away(self) -> None:
        """Remove what is left beside the places."""
        for beside, _ in self._staged:
            shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def outputs() -> Iterator[Outputs]:
    """Collect outputs; put them in place at the end, or remove them after an error."""
    staged = Outputs()
    try:
        yield staged
        staged.put_in_place()
    finally:
        staged.clear_away()
