"""Late commits behind what a state has read, and changes that only a comparison finds."""

import dataclasses
from contextlib import closing

import pytest

from bank import account
from reservation.postgres.connection import connect
from spark_jobs.common.errors import StateError
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.snapshot.snapshot import Snapshot, exported_snapshot
from tests.bank import RESERVED, drain
from tests.controls import COMMANDS, deposit, open_
from tests.processes import EXAMPLES, run_cli
from tests.spark.following import Following

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # of several runs each

# Not as our clients write: without the lock of the category.
INSERT = """
INSERT INTO message_store.messages (stream_name, position, type, data, metadata)
VALUES (%s, 90, %s, '{"accountId": "123", "depositId": "d1", "amount": 99}', '{}')
"""
LATE = [
    (COMMANDS, "Deposit"),
    (f"{RESERVED}-123+late", "Deposit"),
    ("account-123", "Deposited"),
]


@pytest.fixture
def slow(spark_database_url):
    """Give a connection whose inserted messages have positions but are not committed."""
    with closing(connect(spark_database_url)) as connection:
        yield connection


@pytest.fixture
def reconcile(spark, spark_database_url, tmp_path):
    """Give a function that reconciles the bank with or without the state."""

    def run(*, with_state=True, verify=False):
        state = tmp_path / "state" if with_state else None
        run = Run(account, "bank:account", EXAMPLES, spark_database_url, state=state, verify=verify)
        with exported_snapshot(spark_database_url) as snapshot:
            report = in_session(run, snapshot, spark)
        return dataclasses.replace(report, time=None)

    return run


@pytest.mark.long
def test_a_run_finds_late_commits(spark_store, spark_connection, slow, reconcile):
    """A run finds late commits in each category, and reports none twice."""
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    for stream_name, type_ in LATE:
        slow.execute(INSERT, [stream_name, type_])
    spark_store.write(deposit("d2"), COMMANDS)
    drain(spark_connection)
    assert reconcile() == reconcile(with_state=False)
    slow.commit()
    found = reconcile(verify=True)
    assert found == reconcile(with_state=False)
    assert {name: found.count(name) for name in ("conflict", "orphan", "without-cause")} == {
        "conflict": 1,
        "orphan": 1,
        "without-cause": 1,
    }
    assert found.count("conflict-mismatch") == 1  # the consumer never saw it
    assert reconcile() == found


def test_categories_are_counted_only_where_the_log_has_changed(
    spark_store, spark_connection, slow, reconcile, monkeypatch
):
    """One index says that nothing became visible; a message of another category is not late."""
    counted, tallies = [], Snapshot.tallies

    def counting(snapshot, until):
        counted.append(until)
        return tallies(snapshot, until)

    monkeypatch.setattr(Snapshot, "tallies", counting)
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    slow.execute(INSERT, ["elsewhere-1", "Deposit"])
    drain(spark_connection)
    found = reconcile()
    counted.clear()
    assert reconcile() == found
    assert counted == []
    slow.commit()
    assert reconcile() == found
    assert len(counted) == 1
    assert reconcile() == found
    assert len(counted) == 1


@pytest.mark.long
def test_a_follower_finds_late_commits(
    spark, spark_database_url, spark_store, spark_connection, slow, tmp_path
):
    """A follower finds late commits in its next round, each once."""
    following = Following(spark, spark_database_url, tmp_path / "state")
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    for stream_name, type_ in LATE:
        slow.execute(INSERT, [stream_name, type_])
    spark_store.write(deposit("d2"), COMMANDS)
    drain(spark_connection)
    with following.started():
        assert following.round(0) == []
        slow.commit()
        assert following.round(1) == []
        reported = following.round(100)
        assert sorted(finding for _, finding in reported) == [
            "conflict",
            "conflict-mismatch",
            "orphan",
            "unhandled",
            "without-cause",
        ]
        assert following.round(200) == []
        everything = following.everything()
        assert following.follower.report.categories == everything.categories
        assert following.follower.report.effects == everything.effects
        assert following.follower.report.events == everything.events


@pytest.mark.long
def test_only_a_comparison_finds_what_was_changed_in_place(
    spark_store, spark_connection, reconcile
):
    """A comparison counts messages that were changed in place, and keeps the state."""
    spark_store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(spark_connection)
    before = reconcile()
    assert reconcile(verify=True) == before
    spark_connection.execute(
        "UPDATE message_store.messages SET data = data || '{\"amount\": 99}' "
        "WHERE stream_name = %s AND type = 'Deposit'",
        [COMMANDS],
    )
    assert reconcile() == before
    with pytest.raises(StateError, match=r"2 messages were changed .* first is at .* position 2;"):
        reconcile(verify=True)
    spark_connection.execute("DELETE FROM message_store.messages WHERE global_position = 2")
    with pytest.raises(StateError, match=r"1 messages were changed .*, 1 are gone and 0 were"):
        reconcile(verify=True)
    assert reconcile() == before


def test_a_state_of_an_empty_store_can_be_compared(spark_store, spark_connection, reconcile):
    """A state begins with nothing, and goes on."""
    assert reconcile(verify=True) == reconcile(with_state=False)
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    drain(spark_connection)
    assert reconcile(verify=True) == reconcile(with_state=False)


def test_what_must_be_judged_again_and_is_gone_is_an_error(
    spark_store, spark_connection, reconcile, tmp_path
):
    """A removed message that a newer one contradicts is asked for, and the state stays."""
    spark_store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(spark_connection)
    reconcile()
    spark_connection.execute("DELETE FROM message_store.messages WHERE global_position = 2")
    spark_store.write(deposit("d2"), COMMANDS)  # contradicts nothing
    drain(spark_connection)
    assert reconcile().count("duplicates") == 1
    current = (tmp_path / "state" / "CURRENT").read_text()
    spark_store.write(deposit("d1", amount=99), COMMANDS)
    drain(spark_connection)
    with pytest.raises(StateError, match=r"does not hold 1 messages any more .*read their archive"):
        reconcile()
    assert (tmp_path / "state" / "CURRENT").read_text() == current


def test_a_comparison_needs_a_state(database_url):
    """A comparison without a state is refused before anything begins."""
    done = run_cli("reconcile", "bank:account", "--verify", "--database-url", database_url)
    assert done.returncode == 2
    assert "name its folder with --state" in done.stderr
