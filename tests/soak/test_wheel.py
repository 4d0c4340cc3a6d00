"""The wheel: it holds what is not Python too, and its entry points lead to what is in it."""

import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePath
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("reservation", "consumers", "cli", "spark_jobs")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with what the wheel of this checkout installs."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT],
        check=True,
        timeout=200,
    )
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.fixture(scope="module")
def distribution(installed: Path) -> Distribution:
    """Give what the wheel says of itself."""
    (found,) = distributions(path=[str(installed)])
    return found


def files(root: Path) -> set[PurePath]:
    """Return the files of the packages beneath a folder."""
    return {
        path.relative_to(root)
        for package in PACKAGES
        for path in (root / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_all_files_of_the_packages(installed: Path) -> None:
    """Modules, and SQL, templates, static files and marks of typing beside them."""
    expected = files(ROOT)
    assert expected <= files(installed)
    kinds = Counter((path.parts[0], path.suffix) for path in expected)
    for kind in [("reservation", ".sql"), ("consumers", ".sql"), ("spark_jobs", ".j2")]:
        assert kinds[kind], kind
    for kind in [("cli", ".html"), ("cli", ".css"), ("cli", ".js"), ("reservation", ".typed")]:
        assert kinds[kind], kind
    assert (installed / "cli/examples/bank").is_dir()


def test_the_entry_points_are_in_the_wheel(installed: Path, distribution: Distribution) -> None:
    """The console script, and the plugin that pytest loads."""
    points = {(point.group, point.name): point.value for point in distribution.entry_points}
    assert points == {
        ("console_scripts", "reservation"): "cli.starting:main",
        ("pytest11", "reservation"): "cli.pytest_plugin",
    }
    program = """
import importlib.metadata, sys
(found,) = importlib.metadata.distributions(path=[sys.argv[1]])
for point in found.entry_points:
    point.load()
print(sys.modules["cli"].__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, installed],
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert Path(done.stdout.strip()) == installed / "cli/__init__.py"
