"""What is public: the names that are exported, and that examples and pages use no other."""

import ast
import importlib.metadata
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import reservation
from reservation import errors

ROOT = Path(__file__).parent.parent
PUBLIC = {"reservation", "reservation.testing", "consumers", "consumers.testing"}
PUBLIC |= {"reservation.http", "spark_jobs.source"}
OURS = ("reservation", "consumers", "cli", "spark_jobs")
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Give the modules of ours that a text of Python imports from, each with the name it takes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        yield from ((module, name) for module, name in found if module.split(".")[0] in OURS)


def check(source: str) -> None:
    """Refuse imports of what is private."""
    for module, name in imported(source):
        public = importlib.import_module(module) if module in PUBLIC else None
        assert public is not None, f"{module} is private"
        exported = getattr(public, "__all__", vars(public))
        assert not name or name in exported, f"{module} does not export {name}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_example_imports_only_what_is_public(path):
    """Examples import public names only."""
    check(path.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_imports_only_what_is_public(page):
    """The Python of each page imports public names only."""
    for block in re.findall(r"^ *```python[^\n]*\n(.*?)^ *```$", page.read_text(), re.M | re.S):
        check(re.sub(r"^ {4}", "", block, flags=re.M) if block.startswith(" ") else block)


def test_private_imports_are_found():
    """The check finds imports of private modules and names."""
    for source in (
        "import reservation.errors",
        "from reservation.store.client import MessageStore",
        "from reservation import Component, errors",
        "from consumers.supervisor.supervisor import run",
        "def f():\n    from spark_jobs.session import session",
    ):
        with pytest.raises(AssertionError, match=r"is private|does not export"):
            check(source)
    check("import json\nfrom reservation import Component\nimport consumers")


def test_every_error_is_exported():
    """Every error is exported, so that a program can catch it."""
    tree = {name for name, error in vars(errors).items() if isinstance(error, type)}
    tree = {name for name in tree if issubclass(getattr(errors, name), errors.ReservationError)}
    assert tree <= set(reservation.__all__)


def test_the_errors_are_drawn_in_one_tree():
    """The tree in the module's docstring equals the classes."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([ │├└─]*)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            path = [*path[:depth], found[2]]
            drawn[found[2]] = path[depth - 1] if depth else "Exception"
    classes = [error for error in vars(errors).values() if isinstance(error, type)]
    known = {
        class_.__name__: class_.__base__.__name__
        for class_ in classes
        if issubclass(class_, Exception)
    }
    assert drawn == known


def test_the_version_is_that_of_the_distribution():
    """The version of the module is that of the distribution."""
    assert reservation.__version__ == importlib.metadata.version("reservation")


def test_nothing_is_exported_twice_or_missing():
    """`__all__` is sorted, without repetition, and every name exists."""
    assert len(set(reservation.__all__)) == len(reservation.__all__)
    for name in reservation.__all__:
        assert hasattr(reservation, name)
