"""What is mutated, and which tests are to notice."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.mutation import python, sql
from tests.mutation.mutant import Mutant

_IDEMPOTENCE = Path("reservation/idempotence")
_MAINTENANCE = Path("reservation/maintenance")
_FUNCTIONS = Path("reservation/store/schema/sql/reservation")

# The modules that are mutated, by their paths without the ending, with the SQL of each.
TARGETS: dict[str, tuple[str, ...]] = {
    f"{_IDEMPOTENCE}/processed": (f"{_IDEMPOTENCE}/processed.sql", f"{_FUNCTIONS}/processed.sql"),
    f"{_IDEMPOTENCE}/in_events": (f"{_IDEMPOTENCE}/in_events.sql",),
    "reservation/messages/pseudo_event": (),
    f"{_IDEMPOTENCE}/revision": (f"{_FUNCTIONS}/revisions.sql",),
    f"{_IDEMPOTENCE}/revision_counters": (),
    f"{_IDEMPOTENCE}/state_based/strategy": (),
    f"{_IDEMPOTENCE}/state_based/check": (),
    f"{_IDEMPOTENCE}/state_based/states": (
        f"{_IDEMPOTENCE}/state_based/queries.sql",
        f"{_FUNCTIONS}/states.sql",
    ),
    f"{_IDEMPOTENCE}/state_based/delta": (),
    f"{_IDEMPOTENCE}/state_based/outputs": (),
    f"{_IDEMPOTENCE}/state_based/clean_up": (),
    f"{_IDEMPOTENCE}/reserve": (f"{_FUNCTIONS}/reserving.sql",),
    f"{_IDEMPOTENCE}/key": (),
    f"{_MAINTENANCE}/pruning": (f"{_MAINTENANCE}/pruning.sql",),
}

# Where the reading of commands is tested is tested elsewhere; see test_batch_size and test_plans.
_LEFT_OUT = {"read_commands"}

TESTS = [
    f"tests/{name}.py"
    for name in (
        "consumers/test_every_strategy",
        "consumers/test_processed",
        "consumers/test_in_events",
        "consumers/test_revision",
        "consumers/test_state_based",
        "consumers/test_explorer",
        "store/test_reserving",
        "unit/test_clock_revisions",
        "unit/test_kept_states",
        "unit/test_key",
        "consumers/test_prune",
        "consumers/test_pattern",
    )
]


class Note(NamedTuple):
    """What a test takes, in seconds, and which lines it reaches, by the modules' paths."""

    seconds: float
    lines: dict[str, list[int]]


def all_mutants(root: Path) -> dict[str, list[Mutant]]:
    """Return all mutants, by the module that they belong to."""
    found = {}
    for name, queries in TARGETS.items():
        module = f"{name}.py"
        found[name] = python.mutants(module, (root / module).read_bytes())
        for path in queries:
            found[name] += [
                mutant
                for mutant in sql.mutants(path, (root / path).read_bytes())
                if mutant.query not in _LEFT_OUT
            ]
    return found


def tests_of(mutant: Mutant, notes: dict[str, Note], root: Path, seconds: float) -> list[str]:
    """Return the tests that reach a mutant, the quickest first, as many as take so long."""
    if mutant.query:
        places = _callers(root, mutant.query)
    else:
        places = {(mutant.path, line) for line in mutant.lines}
    reached = [
        (note.seconds, test)
        for test, note in notes.items()
        if any((name, line) in places for name, lines in note.lines.items() for line in lines)
    ]
    if not reached and not mutant.query:
        # It is run when the module is imported, so whatever uses the module may notice.
        reached = [
            (note.seconds, test) for test, note in notes.items() if mutant.path in note.lines
        ]
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
    folders = [root / _IDEMPOTENCE, root / _MAINTENANCE]
    for path in (path for folder in folders for path in folder.rglob("*.sql")):
        for name, body in re.findall(
            r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", path.read_text(), re.MULTILINE | re.DOTALL
        ):
            if f"reservation.{query}(" in body:
                names.add(name)
    return {
        (str(path.relative_to(root)), node.lineno)
        for folder in folders
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in names
    }
