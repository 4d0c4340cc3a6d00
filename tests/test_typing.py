"""What mypy and pyright accept and refuse of a program that uses the public names."""

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import consumers
import consumers.testing
import reservation
import reservation.testing

pytestmark = [pytest.mark.slow, pytest.mark.check]

ROOT = Path(__file__).parent.parent
ACCEPTED, REFUSED = (ROOT / "tests" / "typing" / f"{name}.py" for name in ("accepted", "refused"))

Errors = dict[tuple[str, int], set[str]]  # the rules that are broken, by file and line


def expected(checker: str) -> Errors:
    """Return the errors that a checker must report for the refused declarations."""
    lines = enumerate(REFUSED.read_text().splitlines(), 1)
    marks = ((number, re.search(rf"\S  # .*\b{checker}: ([\w-]+)", line)) for number, line in lines)
    return {(REFUSED.name, number): {mark[1]} for number, mark in marks if mark}


def mypy(*paths: Path) -> Errors:
    """Return what mypy reports in its strict mode."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--output=json", *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    errors = defaultdict(set)
    for report in map(json.loads, done.stdout.splitlines()):
        errors[Path(report["file"]).name, report["line"]].add(report["code"])
    return errors


def pyright(folder: Path, *paths: Path, mode: str = "strict") -> Errors:
    """Return what pyright reports of files, in one of its modes."""
    settings = folder / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [f"{path.relative_to(ROOT)}" for path in paths],
                "extraPaths": [str(ROOT)],
                "typeCheckingMode": mode,
            }
        )
    )
    for path in paths:  # pyright includes no file outside the folder of its settings
        link = folder / path.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "--project", str(settings)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    reported = json.loads(done.stdout)
    assert reported["summary"]["filesAnalyzed"] >= len(paths)
    errors = defaultdict(set)
    for report in reported["generalDiagnostics"]:
        place = Path(report["file"]).name, report["range"]["start"]["line"] + 1
        errors[place].add(report.get("rule", report["message"]))
    return errors


def test_mypy_accepts_and_refuses_what_it_must():
    """mypy refuses each marked line and no other."""
    assert mypy(ACCEPTED, REFUSED) == expected("mypy")


def test_pyright_accepts_and_refuses_what_it_must(tmp_path):
    """pyright in strict mode refuses the same lines."""
    assert pyright(tmp_path, ACCEPTED, REFUSED) == expected("pyright")


def test_every_line_is_refused_by_both():
    """No line is marked for only one of the checkers."""
    assert set(expected("mypy")) == set(expected("pyright"))
    assert len(expected("mypy")) > 30


def test_pyright_finds_no_error_in_the_modules_of_public_names(tmp_path):
    """pyright accepts the modules that define the exported names."""
    modules = {"cli.pytest_plugin"}
    for package in (reservation, consumers, reservation.testing, consumers.testing):
        exported = [getattr(package, name) for name in package.__all__]
        modules |= {item.__module__ for item in exported if hasattr(item, "__module__")}
        modules |= {item.__name__ for item in exported if inspect.ismodule(item)}
    files = [Path(importlib.import_module(name).__file__) for name in sorted(modules)]
    assert len(files) > 15
    assert pyright(tmp_path, *files, mode="standard") == {}
