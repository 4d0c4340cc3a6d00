"""The SQL mutants change the right text, and their tests notice."""

from tests.soak import sql_mutants
from tests.soak.sql_mutants import ROOT, mutants

QUERY = """-- name: look
-- WHERE this = stays
SELECT s.position FROM reservation.states s
WHERE s.name = i.name AND s.position BETWEEN 1 AND i.last AND NOT EXISTS (
  SELECT FROM gone g WHERE g.name = 'x AND y')
ORDER BY s.position DESC
"""
RETIRING = "consumers/group/retiring.sql"


def test_conditions_are_left_out_and_comparisons_turned():
    """Each condition is left out once and each comparison turned, but no comment or text."""
    changed = {
        line
        for mutant in mutants("m.sql", QUERY)
        for line in (QUERY[: mutant.start] + mutant.text + QUERY[mutant.end :]).splitlines()
    } - set(QUERY.splitlines())

    assert changed == {
        "WHERE true AND s.position BETWEEN 1 AND i.last AND NOT EXISTS (",
        "WHERE s.name <> i.name AND s.position BETWEEN 1 AND i.last AND NOT EXISTS (",
        "WHERE s.name = i.name AND true AND NOT EXISTS (",
        "WHERE s.name = i.name AND s.position BETWEEN 1 AND i.last AND EXISTS (",
        "  SELECT FROM gone g WHERE true)",
        "  SELECT FROM gone g WHERE g.name <> 'x AND y')",
        "ORDER BY s.position ASC",
    }


def test_a_change_is_detected_or_missed(server_url, tmp_path, monkeypatch):
    """The tests of the file run in a copy, which is restored afterwards."""
    monkeypatch.setitem(sql_mutants.TARGETS, RETIRING, ["consumers/test_retire"])
    tree = sql_mutants.copy_of_the_tree(tmp_path)
    content = (ROOT / RETIRING).read_text()
    turned = next(one for one in mutants(RETIRING, content) if one.text == "<>")
    harmless = turned._replace(text=content[turned.start : turned.end])

    assert sql_mutants.outcome(tree, turned, server_url) == "detected"
    assert sql_mutants.outcome(tree, harmless, server_url) == "missed"
    assert (tree / RETIRING).read_text() == content
