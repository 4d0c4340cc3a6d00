"""The examples for data pipelines that run here: DuckDB and Delta on the findings of three runs."""

import duckdb
import pytest
from deltalake import DeltaTable

from tests.apps.bank import RESERVED
from tests.support.controls import deposit
from tests.support.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/pipelines.md"


@pytest.fixture
def run(reconcile, tmp_path, monkeypatch):
    """Give a function that adds a run to the table ``findings`` of the current folder."""
    monkeypatch.chdir(tmp_path)

    def add():
        found = reconcile("--findings", tmp_path / "findings")
        assert found.error == ""
        return {row["id"] for row in found.report["samples"]}

    return add


def lose(store, name):
    """Write a reservation that no command has."""
    store.write(deposit(name), f"{RESERVED}-123+{name}")


def test_duckdb_shows_what_is_new_and_what_is_gone(run, store, connection, command):
    """A run without findings counts: what the run before it found is gone."""
    views, trend, change = (block.text for block in blocks(PAGE, "sql"))
    lose(store, "o1")
    first = run()
    lose(store, "o2")
    second = run()
    duck = duckdb.connect()
    duck.execute(views)
    assert [new for _, new in duck.execute(trend).fetchall()] == [1, 1]
    assert duck.execute(change).fetchall() == [(*(second - first), "new")]

    connection.execute("DELETE FROM message_store.messages WHERE stream_name LIKE '%o1'")
    (accepted,) = second - first
    assert command("findings", "accept", accepted, "--reason", "looked at").returncode == 0
    assert run() == set()
    assert [new for _, new in duck.execute(trend).fetchall()] == [1, 1, 0]
    assert duck.execute(change).fetchall() == [(id_, "gone") for id_ in sorted(second)]


def test_delta_gets_each_run_once(run, store, connection):
    """Repeating the program adds nothing, and later runs are added to earlier ones."""
    (program,) = (block.text for block in blocks(PAGE, "python") if "deltalake" in block.text)
    append = compile(program, str(PAGE), "exec")

    def appended():
        exec(append, {})
        return DeltaTable("lake/findings").to_pyarrow_table()

    assert run() == set()
    assert appended().num_rows == 0
    lose(store, "o1")
    (first,) = run()
    for _ in range(2):
        table = appended()
        assert (table["id"].to_pylist(), table["finding"].to_pylist()) == ([first], ["orphan"])
    lose(store, "o2")
    second = run()
    table = appended()
    assert sorted(table["id"].to_pylist()) == sorted([first, *second])
    assert len(set(table["run"].to_pylist())) == 2
