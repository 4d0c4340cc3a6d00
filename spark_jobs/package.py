"""What Spark's workers need of us and of the user's app, in one zip file.

It is what ``spark-submit --py-files`` takes. The same files give the same bytes, so that one can
tell whether it changed.
"""

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from reservation.app_path import COMMON_NAMES, load_component
from spark_jobs.errors import SparkJobError

PACKAGES = ("reservation", "spark_jobs")

# The earliest time that a zip file can tell.
_TIME = (1980, 1, 1, 0, 0, 0)


def build(output: Path, app: str | None = None, app_dir: str | Path = ".") -> int:
    """Write the zip file, in place of one that is there, and return how many files it holds.

    Args:
        output: where to.
        app: the app path of a component whose modules are to travel too: everything in `app_dir`
            that it imports, packages as a whole. What is installed elsewhere is left out.
        app_dir: the folder that the app path starts from.

    Raises:
        AppPathError: the app can not be imported.
        SparkJobError: the file can not be written.
    """
    files = dict(_ours())
    if app is not None:
        load_component(app, app_dir)
        files.update(_imported_from(Path(app_dir).resolve()))
    try:
        _write(output, files)
    except OSError as error:
        raise SparkJobError(f"{output} can not be written: {error.strerror}") from error
    return len(files)


def _ours() -> Iterator[tuple[str, Path]]:
    home = Path(__file__).resolve().parent.parent
    if not home.is_dir():
        raise SparkJobError("The packages are in a zip file already; hand that one on")
    for name in PACKAGES:
        yield from _files(home / name, home)


def _imported_from(folder: Path) -> Iterator[tuple[str, Path]]:
    """Give the files of each module that was imported from a folder, and of its whole package."""
    names = {
        name.partition(".")[0]
        for name, module in [*sys.modules.items()]
        if folder in Path(getattr(module, "__file__", None) or "/").parents
    }
    for name in sorted(names.difference(COMMON_NAMES)):
        if (folder / name).is_dir():
            yield from _files(folder / name, folder)
        elif (folder / f"{name}.py").is_file():
            yield f"{name}.py", folder / f"{name}.py"


def _files(package: Path, home: Path) -> Iterator[tuple[str, Path]]:
    for path in package.rglob("*"):
        parts = path.relative_to(home).parts
        passed_over = any(part == "__pycache__" or part.startswith(".") for part in parts)
        if path.is_file() and not passed_over:
            yield "/".join(parts), path


def _write(output: Path, files: dict[str, Path]) -> None:
    """Write beside the output and take its place at the end."""
    handle, beside = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, path in sorted(files.items()):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.create_system = 3  # Unix, on every machine
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, path.read_bytes())
        Path(beside).chmod(0o644)
        Path(beside).replace(output)
    finally:
        Path(beside).unlink(missing_ok=True)
