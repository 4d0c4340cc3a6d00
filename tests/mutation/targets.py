"""What is mutated, and which tests are to notice."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.mutation import python, sql
from tests.mutation.mutant import Mutant

_MODULES = Path("reservation/idempotence")
_FUNCTIONS = Path("reservation/store/sql/reservation")

# The modules that are mutated, with the SQL that belongs to each.
TARGETS: dict[str, tuple[str, ...]] = {
    "processed": (f"{_MODULES}/processed.sql", f"{_FUNCTIONS}/processed.sql"),
    "message_id": (),
    "in_events": (f"{_MODULES}/in_events.sql",),
    "pseudo_event": (),
    "sequence": (),
    "revision": (f"{_FUNCTIONS}/revisions.sql",),
    "counters": (),
    "state_based": (),
    "states": (f"{_MODULES}/states.sql", f"{_FUNCTIONS}/states.sql"),
    "delta": (),
    "outputs": (),
    "state_clean_up": (),
    "reserve": (f"{_FUNCTIONS}/reserving.sql",),
    "key": (),
    "pruning": (f"{_MODULES}/pruning.sql",),
}

# Where the reading of commands is tested is told by other tests; see test_portions and test_plans.
_LEFT_OUT = {"read_commands"}

TESTS = [
    f"tests/test_{name}.py"
    for name in (
        "processed",
        "in_events",
        "revision",
        "state_based",
        "reserving",
        "key",
        "one_category",
        "prune",
        "pattern",
    )
]


class Note(NamedTuple):
    """What a test takes, in seconds, and which lines it reaches, by the modules' file names."""

    seconds: float
    lines: dict[str, list[int]]


def all_mutants(root: Path) -> dict[str, list[Mutant]]:
    """Return all mutants, by the module that they belong to."""
    found = {}
    for name, queries in TARGETS.items():
        module = f"{_MODULES}/{name}.py"
        found[name] = python.mutants(module, (root / module).read_bytes())
        for path in queries:
            found[name] += [
                one
                for one in sql.mutants(path, (root / path).read_bytes())
                if one.query not in _LEFT_OUT
            ]
    return found


def tests_of(mutant: Mutant, notes: dict[str, Note], root: Path, seconds: float) -> list[str]:
    """Return the tests that reach a mutant, the quickest first, as many as take so long."""
    if mutant.query:
        places = _callers(root, mutant.query)
    else:
        places = {(Path(mutant.path).name, line) for line in mutant.lines}
    reached = [
        (note.seconds, test)
        for test, note in notes.items()
        if any((name, line) in places for name, lines in note.lines.items() for line in lines)
    ]
    if not reached and not mutant.query:
        # It is run when the module is imported, so whatever uses the module may notice.
        module = Path(mutant.path).name
        reached = [(note.seconds, test) for test, note in notes.items() if module in note.lines]
    chosen, total = [], 0.0
    for needed, test in sorted(reached):
        total += needed
        if total > seconds and chosen:
            break
        chosen.append(test)
    return chosen


@cache
def _callers(root: Path, query: str) -> set[tuple[str, int]]:
    """Return the places in the modules that name a query, or one that calls a function."""
    names = {query}
    for path in (root / _MODULES).glob("*.sql"):
        for name, body in re.findall(
            r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", path.read_text(), re.MULTILINE | re.DOTALL
        ):
            if f"reservation.{query}(" in body:
                names.add(name)
    return {
        (path.name, node.lineno)
        for path in (root / _MODULES).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
