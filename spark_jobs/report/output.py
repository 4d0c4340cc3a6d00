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

    def folder(self, place: Path) -> Path:
        """Return where to write a folder that does not exist yet."""
        if place.is_symlink() and not place.exists():
            raise SparkJobError(
                f"The output folder {place} is a symbolic link to what does not exist; remove the "
                f"link, or name another folder"
            )
        if place.exists():
            raise SparkJobError(f"The output folder {place} exists already; name one that does not")
        return self._stage(place, "folder") / place.name

    def file(self, place: Path) -> Path:
        """Return where to write a file, which takes the place of one that is there."""
        if place.is_dir():
            raise SparkJobError(f"The output file {place} is a folder; name a file")
        return self._stage(place, "file") / place.name

    def _stage(self, place: Path, kind: str) -> Path:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            beside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        except OSError as error:
            raise SparkJobError(
                f"The output {kind} {place} cannot be made: {error.strerror}"
            ) from error
        self._staged.append((beside, place))
        return beside

    def put_in_place(self) -> None:
        """Move what was written to its places."""
        for beside, place in self._staged:
            written = beside / place.name
            if not written.exists():
                raise SparkJobError(
                    f"What was to be written to {place} is not here: Spark's workers are on other "
                    f"machines; name a place on storage that they and this machine share"
                )
            if written.is_dir():
                make_private(written)
            try:
                written.replace(place)
            except OSError as error:
                raise SparkJobError(
                    f"What was written cannot be put in the place of {place}: {error.strerror}"
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
