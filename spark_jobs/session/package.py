"""One zip file with what Spark's workers need of this package and of the user's app.

``spark-submit --py-files`` takes such a file. The same modules give the same bytes, so a change is
easy to detect. Others can read the files and logs of Spark's workers, so only two kinds of files of
the app's folder are added: Python modules, and package data that its pyproject.toml declares.
"""

import os
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from reservation.app_path import COMMON_NAMES, load_component
from spark_jobs.common.errors import SparkJobError

PACKAGES = ("reservation", "spark_jobs")

_MODULES = "*.py"

# The files that this package reads beside its modules.
_OUR_DATA = {"*": ["*.sql", "*.css", "*.j2", "*.json", "py.typed"]}

# The folders of packages that pip or Debian have installed.
_INSTALLED = frozenset({"site-packages", "dist-packages"})

# The earliest time that a zip file can hold.
_TIME = (1980, 1, 1, 0, 0, 0)


def build(output: Path, app: str | None = None, app_dir: str | Path = ".") -> int:
    """Write the zip file, replacing an existing one, and return how many files it holds."""
    files = dict(_ours())
    if app is not None:
        load_component(app, app_dir)
        files.update(_imported_from(Path(app_dir).resolve()))
    try:
        _write(output, files)
    except OSError as error:
        raise SparkJobError(f"{output} cannot be written: {error.strerror}") from error
    return len(files)


def _ours() -> Iterator[tuple[str, Path]]:
    home = Path(__file__).resolve().parents[2]
    if not home.is_dir():
        raise SparkJobError("This package is in a zip file already; pass that one on")
    for name in PACKAGES:
        yield from _files(home / name, home, _OUR_DATA)


def _imported_from(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of each module that was imported from a folder, and of its whole package.

    Installed packages are left out, also if their virtual environment is in the folder.
    """
    imported = [
        Path(getattr(module, "__file__", None) or "/") for module in [*sys.modules.values()]
    ]
    imported = [
        path
        for path in imported
        if folder in path.parents and _INSTALLED.isdisjoint(path.relative_to(folder).parts)
    ]
    data = _declared_data(folder)
    for name in sorted({path.relative_to(folder).parts[0] for path in imported}):
        if name.removesuffix(".py") in COMMON_NAMES:
            continue
        if (folder / name).is_dir():
            yield from _files(folder / name, folder, data)
        elif name.endswith(".py"):
            yield name, _inside(folder / name, folder)
    for path in imported:
        _inside(path, folder)


def _declared_data(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return the patterns of package data, by package, that the app's project declares."""
    for place in (folder / "pyproject.toml", folder.parent / "pyproject.toml"):
        if place.is_file():
            try:
                project = tomllib.loads(place.read_text())
                declared = project.get("tool", {}).get("setuptools", {}).get("package-data", {})
                return {str(name): [*patterns] for name, patterns in declared.items()}
            except (OSError, ValueError, AttributeError, TypeError) as error:
                raise SparkJobError(f"{place} cannot be read: {error}") from error
    return {}


def _files(
    package: Path, home: Path, data: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Path]]:
    """Yield the modules and the package data of a package and its subpackages."""
    for folder in [package, *(path for path in package.rglob("*") if path.is_dir())]:
        if folder != package and not _is_inside(folder, home):
            continue  # an import from there is refused
        parts = folder.relative_to(home).parts
        patterns = [_MODULES, *data.get("*", ()), *data.get(".".join(parts), ())]
        for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
            parts = path.relative_to(home).parts
            passed_over = any(part == "__pycache__" or part.startswith(".") for part in parts)
            if path.is_file() and not passed_over:
                yield "/".join(parts), _inside(path, home)


def _inside(path: Path, home: Path) -> Path:
    """Return a path that leads to a file within a folder."""
    if not _is_inside(path, home):
        raise SparkJobError(
            f"{path} is, or lies behind, a symbolic link that leads out of {home}; put a copy in "
            f"its place, or install what it leads to on the workers"
        )
    return path


def _is_inside(path: Path, home: Path) -> bool:
    return home.resolve() in path.resolve().parents


def _folders(name: str) -> Iterator[str]:
    """Yield an entry for each folder that a file lies in.

    Python finds a folder without ``__init__.py`` in a zip file only if it has an entry of its own.
    """
    return (f"{folder}/" for folder in PurePosixPath(name).parents if folder.name)


def _write(output: Path, files: dict[str, Path]) -> None:
    """Write beside the output and take its place at the end, for its owner alone (mode 0600)."""
    handle, beside = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            folders = {folder for name in files for folder in _folders(name)}
            for name in sorted({*files, *folders}):
                entry = zipfile.ZipInfo(name, _TIME)
                entry.create_system = 3  # Unix, on every machine
                if name in folders:
                    entry.external_attr = 0o755 << 16
                    archive.writestr(entry, b"")
                else:
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    entry.external_attr = 0o644 << 16
                    archive.writestr(entry, files[name].read_bytes())
        Path(beside).replace(output)
    finally:
        Path(beside).unlink(missing_ok=True)
