"""Change one thing at a time in the SQL of the strategies, and see whether their tests notice.

    python -m tests.soak.sql_mutants [--sample N] [--seed S] [--only NAME]

No tool mutates SQL. So this turns comparisons around and leaves out conditions, locks and guards,
in the named queries and in the functions, but not in tables, indexes, comments and texts.
Each mutant is written into a copy of the tree, where the tests of its file run until one fails.
The mutants that no test detects are printed, and then the counts.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import NamedTuple

from tests.support.servers import server

ROOT = Path(__file__).parents[2]
_FUNCTIONS = "reservation/store/schema/sql/reservation"
_TIME_LIMIT = 300

# The files that are changed, with the tests of each, the quickest first.
TARGETS = {
    "reservation/idempotence/processed.sql": ["consumers/test_processed"],
    f"{_FUNCTIONS}/processed.sql": ["consumers/test_processed", "consumers/test_prune"],
    f"{_FUNCTIONS}/in_events.sql": ["consumers/test_in_events"],
    f"{_FUNCTIONS}/revisions.sql": ["consumers/test_revision", "unit/test_clock_revisions"],
    f"{_FUNCTIONS}/states.sql": ["consumers/test_state_based", "unit/test_kept_states"],
    f"{_FUNCTIONS}/reserving.sql": ["store/test_reserving", "consumers/test_pattern"],
    "reservation/maintenance/pruning.sql": ["consumers/test_prune", "consumers/test_pruning"],
}
# The function that reads commands is tested elsewhere: see test_batch_bytes and test_plans.
_LEFT_OUT = {"reservation.read_commands"}

_STATEMENT = re.compile(
    r"^-- name: (?P<query>\w+)\n.*?(?=^-- name: |\Z)"
    r"|^CREATE OR REPLACE FUNCTION (?P<function>[\w.]+).*?AS \$\$(?P<body>.*?)^\$\$;",
    re.MULTILINE | re.DOTALL,
)
_HIDDEN = re.compile(
    r"--[^\n]*|'(?!-?infinity)(?:[^']|'')*'|(?<=\bBETWEEN )[^;]+?\bAND\b", re.DOTALL
)
# A condition that stands on one line by itself, up to the end of the line or to the next one.
_CONDITION = re.compile(
    r"\b(?P<word>WHERE|AND|OR|ON|IF|WHEN) (?!CONFLICT|EXISTS reservation|NOT FOUND|FOUND|true\b)"
    r"(?P<condition>[^\n;]+?)"
    r"(?= (?:AND|OR|THEN|AS|GROUP BY|ORDER BY|LIMIT|RETURNING|FOR|ON)\b|;"
    r"|\n(?!\s*(?:[<>=+|-]|BETWEEN\b|IN\b|IS\b)))"
)
_EQUALS = re.compile(r"(?<![<>!:=])=(?![=>])")
_SWAPS = {
    re.compile(pattern): replacements
    for pattern, replacements in {
        r"<=": ("<", ">"),
        r">=": (">", "<"),
        r"<(?![=>])": ("<=", ">="),
        r"(?<![<=-])>(?![=>])": (">=", "<="),
        r"<>": ("=",),
        r"\bIS NULL\b": ("IS NOT NULL",),
        r"\bIS NOT NULL\b": ("IS NULL",),
        r"\bIS DISTINCT FROM\b": ("IS NOT DISTINCT FROM",),
        r"\bIS NOT DISTINCT FROM\b": ("IS DISTINCT FROM",),
        r"\bNOT EXISTS\b": ("EXISTS",),
        r"(?<!NOT )(?<!IF )\bEXISTS\b": ("NOT EXISTS",),
        r"\bIF NOT FOUND\b": ("IF FOUND",),
        r"\bIF FOUND\b": ("IF NOT FOUND",),
        r"\bLEFT JOIN\b": ("JOIN",),
        r"\bDESC\b": ("ASC",),
        r"\bDISTINCT\b(?! FROM)": ("",),
        r"\bON CONFLICT DO NOTHING\b": ("",),
        r"\bFOR NO KEY UPDATE\b": ("",),
        r"\bgreatest\b": ("least",),
        r"\bleast\b": ("greatest",),
        r"\bmin(?=\()": ("max",),
        r"\bmax(?=\()": ("min",),
        r"(?<=[a-z]) \+ (?=[\w(])": (" - ",),
        r"(?<=[a-z)]) - (?=[\w%(])": (" + ",),
        r"\btrue\b": ("false",),
        r"\bfalse\b": ("true",),
        r"'-infinity'": ("'infinity'",),
        r"'infinity'": ("'-infinity'",),
    }.items()
}


class Mutant(NamedTuple):
    """What is put in the place of a part of a file."""

    path: str
    start: int
    end: int
    text: str

    def __str__(self) -> str:
        content = (ROOT / self.path).read_text()
        line = content.count("\n", 0, self.start) + 1
        before = content[self.start : self.end]
        return f"{self.path}:{line}: {before} -> {self.text or 'nothing'}"


def mutants(path: str, content: str) -> list[Mutant]:
    """Return every mutant of a file's queries and functions, in its order."""
    return sorted(
        {
            Mutant(path, start + first, start + last, text)
            for start, statement in _statements(content)
            for first, last, text in _changes(statement)
        }
    )


def _statements(content: str) -> Iterator[tuple[int, str]]:
    for found in _STATEMENT.finditer(content):
        if found["function"] not in _LEFT_OUT:
            group = "body" if found["function"] else 0
            yield found.start(group), _HIDDEN.sub(_hide, found[group])


def _hide(hidden: re.Match[str]) -> str:
    """Return a text of the same length in which nothing is found."""
    return "'" + "_" * (len(hidden[0]) - 2) + "'" if hidden[0][0] == "'" else " " * len(hidden[0])


def _changes(statement: str) -> Iterator[tuple[int, int, str]]:
    for pattern, replacements in _SWAPS.items():
        for found in pattern.finditer(statement):
            for replacement in replacements:
                yield found.start(), found.end(), replacement
    for found in _CONDITION.finditer(statement):
        condition, word = found["condition"], found["word"]
        while condition.endswith(")") and condition.count(")") > condition.count("("):
            condition = condition[:-1]
        if condition.count("(") != condition.count(")") or "CASE" in condition:
            continue
        first = found.start("condition")
        for text in ("true", "false") if word in {"IF", "WHEN"} else (str(word != "OR").lower(),):
            yield first, first + len(condition), text
        for equals in _EQUALS.finditer(condition):
            yield first + equals.start(), first + equals.end(), "<>"


def outcome(tree: Path, mutant: Mutant, address: str) -> str:
    """Run a mutant's tests in a copy of the tree; return detected, missed, or hangs."""
    path, tests = tree / mutant.path, [f"tests/{name}.py" for name in TARGETS[mutant.path]]
    content = path.read_text()
    path.write_text(content[: mutant.start] + mutant.text + content[mutant.end :])
    paths = f"{tree}{os.pathsep}{tree / 'examples'}"
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": paths, "RESERVATION_TEST_DATABASE_URL": address},
            capture_output=True,
            timeout=_TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    finally:
        path.write_text(content)
    return "detected" if ran.returncode else "missed"


def copy_of_the_tree(folder: Path) -> Path:
    ignored = ignore_patterns(".*", "build", "dist", "mutants", "__pycache__")
    return Path(copytree(ROOT, folder / "tree", ignore=ignored))


def main() -> None:
    """Run, and print the mutants that no test noticed and the counts of each file."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.sql_mutants")
    parser.add_argument("--sample", type=int, help="how many mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="the seed of that choice")
    parser.add_argument("--only", default="", help="a part of the paths of files")
    given = parser.parse_args()
    paths = [path for path in TARGETS if given.only in path]
    chosen = [one for path in paths for one in mutants(path, (ROOT / path).read_text())]
    if given.sample:
        chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    counts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder, server("embedded") as address:
        tree = copy_of_the_tree(Path(folder))
        for path in {mutant.path for mutant in chosen}:
            if outcome(tree, Mutant(path, 0, 0, ""), address) != "missed":
                sys.exit(f"The tests of {path} do not pass without a change.")
        for mutant in chosen:
            found = outcome(tree, mutant, address)
            counts[mutant.path, found] += 1
            if found != "detected":
                print(f"{found}: {mutant}", flush=True)
    for (path, found), count in sorted(counts.items()):
        print(f"{path}: {count} {found}")


if __name__ == "__main__":
    main()
