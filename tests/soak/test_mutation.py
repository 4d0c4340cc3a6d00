"""The mutation tests change the right code and see whether the tests notice."""

from tests.mutation import python, sql, targets
from tests.mutation.__main__ import ROOT, Tree
from tests.mutation.mutant import Mutant

MODULE = "reservation/idempotence/state_based/delta.py"
TEST = "tests/consumers/test_state_based.py::test_a_delta_holds_what_changed"

SOURCE = b'''
"""A text that stays."""
def newest(rows: list[int], last: int = 7) -> int | None:
    if not rows or rows[0] <= last:
        raise ValueError("a text that stays")
    return max(n for n in rows if n)
'''

QUERY = b"""-- name: look
-- WHERE this = stays
SELECT s.position FROM reservation.states s
WHERE s.name = i.name AND s.position BETWEEN 1 AND i.last AND NOT EXISTS (
  SELECT FROM gone g WHERE g.name = 'x AND y')
ORDER BY s.position DESC
"""


def after(mutants: list[Mutant], source: bytes) -> set[str]:
    """Return the lines that mutants change, after the change."""
    old = source.decode().splitlines()
    return {
        " ".join(line.split())
        for mutant in mutants
        for line in mutant.applied(source).decode().splitlines()
        if line not in old
    }


def test_mutants_of_python():
    """Mutants change conditions, comparisons, numbers and results, but no texts for people."""
    changed = after(python.mutants("m.py", SOURCE), SOURCE)

    assert "def newest(rows: list[int], last: int = 8) -> int | None:" in changed
    assert "if True:" in changed
    assert "if False:" in changed
    assert "if not rows and rows[0] <= last:" in changed
    assert "if (rows) or rows[0] <= last:" in changed
    assert "if not rows or rows[0] < last:" in changed
    assert "if not rows or rows[0] > last:" in changed
    assert "if not rows or rows[1] <= last:" in changed
    assert "pass" in changed
    assert "return None" in changed
    assert "return min(n for n in rows if n)" in changed
    assert "return max(n for n in rows if True)" in changed
    assert len(changed) == 12


def test_mutants_of_sql():
    """Each SQL condition is dropped once and each comparison turned, but no comments or texts."""
    changed = after(sql.mutants("m.sql", QUERY), QUERY)

    between = "s.position BETWEEN 1 AND i.last"
    assert f"WHERE true AND {between} AND NOT EXISTS (" in changed
    assert f"WHERE s.name <> i.name AND {between} AND NOT EXISTS (" in changed
    assert "WHERE s.name = i.name AND true AND NOT EXISTS (" in changed
    assert f"WHERE s.name = i.name AND {between} AND EXISTS (" in changed
    assert f"WHERE s.name = i.name AND {between} AND true" in changed
    assert "SELECT FROM gone g WHERE true)" in changed
    assert "SELECT FROM gone g WHERE g.name <> 'x AND y')" in changed
    assert "ORDER BY s.position ASC" in changed
    assert len(changed) == 8


def test_every_mutant_of_python_can_be_compiled():
    """Every mutant compiles; otherwise any test would notice it."""
    for mutants in targets.all_mutants(ROOT).values():
        for mutant in mutants:
            if not mutant.query:
                compile(mutant.applied((ROOT / mutant.path).read_bytes()), mutant.path, "exec")


def test_a_change_is_noticed_or_survives(server_url, tmp_path):
    """The tests that reach a mutant run in a copy, which is restored afterwards."""
    source = (ROOT / MODULE).read_bytes()
    mutants = python.mutants(MODULE, source)
    turned = next(
        mutant for mutant in mutants if mutant.description(ROOT).endswith(" not in -> in")
    )
    as_it_is = source[turned.start : turned.end]
    harmless = Mutant(MODULE, turned.start, turned.end, as_it_is, turned.lines)
    notes = {TEST: targets.Note(0.1, {MODULE: list(turned.lines)})}
    tree = Tree(tmp_path, server_url)

    assert tree.test(turned, notes).outcome == "killed"
    assert (tree.folder / MODULE).read_bytes() == source
    assert tree.test(harmless, notes).outcome == "survived"
    assert tree.test(turned, {}).outcome == "not reached"
