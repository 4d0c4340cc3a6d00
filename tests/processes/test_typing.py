"""What mypy and pyright accept and refuse of a program that uses the public names."""

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import consumers
import consumers.testing
import reservation
import reservation.admin
import reservation.strategies
import reservation.testing
from tests.support.pages import ROOT

ACCEPTED, REFUSED = (ROOT / "tests" / "typing" / f"{name}.py" for name in ("accepted", "refused"))

# What pyright adds where no overload accepts an argument.
FOLLOWING = {"reportCallIssue", "reportUntypedFunctionDecorator"}

Errors = dict[tuple[str, int], set[str]]  # the rules that are broken, by file and line


def expected(checker: str) -> Errors:
    """Return the errors that a checker must report for the refused declarations."""
    lines = enumerate(REFUSED.read_text().splitlines(), 1)
    marks = ((number, re.search(rf"\S  # .*\b{checker}: ([\w-]+)", line)) for number, line in lines)
    return {(REFUSED.name, number): {mark[1]} for number, mark in marks if mark}


def public_modules() -> list[Path]:
    """Return the files that define the exported names."""
    modules = {"cli.pytest_plugin"}
    packages = (reservation, reservation.admin, reservation.strategies, reservation.testing)
    for package in (*packages, consumers, consumers.testing):
        exported = [getattr(package, name) for name in package.__all__]
        modules |= {item.__module__ for item in exported if hasattr(item, "__module__")}
        modules |= {item.__name__ for item in exported if inspect.ismodule(item)}
    return [Path(importlib.import_module(name).__file__) for name in sorted(modules)]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a checker in a folder."""
    command = [sys.executable, "-m", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def output(checker: subprocess.Popen[str]) -> str:
    """Wait for a checker, and return what it reports."""
    reported, problems = checker.communicate()
    assert checker.returncode in (0, 1), problems
    return reported


def mypy_errors(reported: str) -> Errors:
    """Return what mypy reports, line by line."""
    errors = defaultdict(set)
    for report in map(json.loads, reported.splitlines()):
        errors[Path(report["file"]).name, report["line"]].add(report["code"])
    return errors


def pyright_errors(reported: str) -> Errors:
    """Return what pyright reports, without what follows from another error of the line."""
    errors = defaultdict(set)
    for report in json.loads(reported)["generalDiagnostics"]:
        place = Path(report["file"]).name, report["range"]["start"]["line"] + 1
        errors[place].add(report.get("rule", report["message"]))
    return {place: rules - FOLLOWING or rules for place, rules in errors.items()}


def start_pyright(folder: Path, strict: list[Path], standard: list[Path]) -> subprocess.Popen[str]:
    """Start pyright on files, some of them in its strict mode."""
    settings = folder / "pyrightconfig.json"
    named = {path: str(path.relative_to(ROOT)) for path in (*strict, *standard)}
    options = {
        "include": list(named.values()),
        "strict": [named[path] for path in strict],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",
    }
    settings.write_text(json.dumps(options))
    for path, name in named.items():  # it includes no file outside the folder of its settings
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    arguments = ["--outputjson", "--pythonpath", sys.executable, "--project", str(settings)]
    return start(folder, "pyright", *arguments)


def test_mypy_and_pyright_accept_and_refuse_what_they_must(tmp_path):
    """In their strict modes, each refuses the marked lines and no other.

    pyright also accepts the modules of the public names.
    """
    declarations, modules = [ACCEPTED, REFUSED], public_modules()
    mypy = start(ROOT, "mypy", "--strict", "--output=json", *map(str, declarations))
    pyright = start_pyright(tmp_path, declarations, modules)
    assert mypy_errors(output(mypy)) == expected("mypy")
    reported = output(pyright)
    assert json.loads(reported)["summary"]["filesAnalyzed"] >= len(declarations + modules) > 17
    assert pyright_errors(reported) == expected("pyright")
    assert set(expected("mypy")) == set(expected("pyright"))
    assert len(expected("mypy")) > 30
