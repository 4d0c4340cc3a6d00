"""Runs that go on with a state: late commits behind it, changes in place, and its snapshot."""

import threading
from contextlib import closing, contextmanager
from itertools import chain

import pytest
from psycopg import connect, sql
from pyspark.sql.classic.dataframe import DataFrame

from bank import account
from spark_jobs.reconcile import reconcile as reconciled
from spark_jobs.run import Run
from spark_jobs.session.session import spark_session
from spark_jobs.session.settings import FEW
from tests.apps.bank import RESERVED, drain
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import EXAMPLES


@pytest.fixture
def state(tmp_path):
    """Give the options of a run that goes on with a state."""
    return ("--state", tmp_path / "state")


@pytest.mark.parametrize("first", [32_764, 10**17])
def test_a_run_finds_late_commits(store, connection, database_url, reconcile, state, first):
    """It finds late commits in each category, and reports none twice."""
    assert reconcile(*state).status == 0  # of an empty store
    connection.execute("SELECT setval('message_store.messages_global_position_seq', %s)", [first])
    store.write([open_(), deposit("d1")], COMMANDS)
    with closing(connect(database_url)) as slow:
        for stream, type_ in (
            (COMMANDS, "Deposit"),
            (f"{RESERVED}-123+late", "Deposit"),
            ("account-123", "Deposited"),
        ):
            # Not as our clients write: without the lock of the category.
            slow.execute(
                "INSERT INTO message_store.messages (stream_name, position, type, data, metadata) "
                """VALUES (%s, 90, %s, '{"accountId": "123", "depositId": "d1", """
                """"amount": 99}', '{}')""",
                [stream, type_],
            )
        store.write(deposit("d2"), COMMANDS)
        drain(connection)
        assert reconcile(*state).found == []
        slow.commit()
    found = reconcile(*state)
    # The consumer saw neither the command nor the copy.
    assert found.found == [
        "conflict",
        "conflict-mismatch",
        "orphan",
        "unhandled",
        "without-cause",
    ]
    assert found == reconcile()
    assert reconcile(*state) == found


def test_only_a_full_run_beside_it_finds_what_was_changed_in_place(
    store, connection, reconcile, state
):
    """A state says what it has read; it differs from a run over everything then."""
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    before = reconcile(*state)
    connection.execute(
        "UPDATE message_store.messages SET data = data || '{\"amount\": 99}' "
        "WHERE stream_name = %s AND type = 'Deposit'",
        [COMMANDS],
    )
    assert reconcile(*state) == before
    changed = reconcile()
    assert changed.found == ["conflict", "conflict", "conflict-mismatch", "conflict-mismatch"]
    connection.execute("DELETE FROM message_store.messages WHERE global_position = 2")
    assert reconcile(*state) == before
    assert reconcile().found == ["conflict", "conflict-mismatch", "orphan"]


def test_what_must_be_judged_again_and_is_gone_is_an_error(
    store, connection, reconcile, state, tmp_path
):
    """A removed message that a newer one contradicts is asked for, and the state stays."""
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    reconcile(*state)
    connection.execute("DELETE FROM message_store.messages WHERE global_position = 2")
    store.write(deposit("d2"), COMMANDS)  # contradicts nothing
    drain(connection)
    assert reconcile(*state).commands["duplicates"] == 1
    current = (tmp_path / "state" / "CURRENT").read_text()
    store.write(deposit("d1", amount="99"), COMMANDS)
    drain(connection)
    asked = reconcile(*state)
    assert asked.status == 2
    assert "lacks at least 1 of the messages that have to be judged again" in asked.error
    assert "read their archive" in asked.error
    assert (tmp_path / "state" / "CURRENT").read_text() == current


def test_a_key_of_several_runs_is_counted_once(store, connection, reconcile, state):
    """Its command, its reservation and its reissue are each read by a run of their own."""
    store.write([open_(), deposit("d1")], COMMANDS)
    reconcile(*state)
    drain(connection)
    reconcile(*state)
    store.write(deposit("d1"), COMMANDS)
    drain(connection)
    assert reconcile(*state) == reconcile()


@pytest.mark.parametrize("few", [FEW, 0])
def test_what_lies_between_the_first_and_the_last_of_a_key_is_found(
    store, connection, reconcile, state, monkeypatch, few
):
    """It is searched for, and nothing of other keys is taken for it, few or many as they are."""
    monkeypatch.setattr("spark_jobs.verdicts.rows.FEW", few)
    amounts = ("10.50", "1", "10.50", "2", "10.50", "3", "4")
    commands = [(deposit("d1", amount=one), deposit(f"n{n}")) for n, one in enumerate(amounts)]
    store.write([open_(), *chain.from_iterable(commands)], COMMANDS)
    drain(connection)
    found = reconcile(*state)
    assert found.found == ["conflict"] * 4
    assert found.commands["duplicates"] == 2
    assert reconcile() == found


def test_letters_in_another_order_are_no_change(store, connection, reconcile, state, tmp_path):
    """PostgreSQL may return rows in any order; nothing is judged again for that."""
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    store.write([deposit("d1", amount="99"), deposit("d2", amount="99")], COMMANDS)
    drain(connection)
    found = reconcile(*state)
    current = (tmp_path / "state" / "CURRENT").read_text()
    # The row of the first letter moves behind that of the second.
    connection.execute(
        "UPDATE reservation.dead_letters SET attempts = attempts WHERE global_position = "
        "(SELECT min(global_position) FROM reservation.dead_letters)"
    )
    database = sql.Identifier(connection.info.dbname)
    for plan in ("indexscan", "indexonlyscan", "bitmapscan", "mergejoin"):
        name = sql.Identifier(f"enable_{plan}")
        connection.execute(sql.SQL("ALTER DATABASE {} SET {} = off").format(database, name))
    assert reconcile(*state) == found
    assert (tmp_path / "state" / "CURRENT").read_text() == current


def test_a_state_that_does_not_fit_is_refused(
    store, reconcile, state, command, connection, tmp_path
):
    """One of another component, a damaged one, or one of another store is, in one line."""
    store.write([open_(), deposit("d1")], COMMANDS)
    assert reconcile(*state).status == 0
    other = command("reconcile", "shop:orders", *map(str, state))
    assert other.returncode == 2
    assert "of the component 'account', not " in other.stderr

    path = min((tmp_path / "state").glob("run-000001/**/*.parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    damaged = reconcile(*state)
    assert damaged.status == 2
    assert str(path) in damaged.error
    assert "name another folder" in damaged.error
    path.write_bytes(whole)

    connection.execute("UPDATE reservation.store_identity SET id = gen_random_uuid()")
    refused = reconcile(*state)
    assert refused.status == 2
    assert "and this store is " in refused.error
    assert refused.error.count("\n") == 1


SNAPSHOTS = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name IN ('reservation snapshot', 'reservation spark')
  AND datname = current_database() AND backend_xmin IS NOT NULL
"""


@pytest.fixture
def held(connection, monkeypatch):
    """Note, whenever Spark gives rows to the job, whether a snapshot of the store is held.

    The thread that starts workers has none, and may be early.
    """
    found = []
    for name in ("collect", "toArrow"):
        action = getattr(DataFrame, name)

        def noted(frame, *arguments, action=action, **options):
            if threading.current_thread() is threading.main_thread():
                ((count,),) = connection.execute(SNAPSHOTS)
                found.append(count > 0)
            return action(frame, *arguments, **options)

        monkeypatch.setattr(DataFrame, name, noted)
    return found


def test_a_snapshot_is_opened_when_spark_is_ready(spark, connection, database_url, monkeypatch):
    """VACUUM can clean up what is removed while Java starts and executors are awaited."""
    held = []

    @contextmanager
    def noted(*arguments, **options):
        with spark_session(*arguments, **options) as session:
            held.extend(connection.execute(SNAPSHOTS).fetchall())
            yield session

    monkeypatch.setattr("spark_jobs.reconcile.spark_session", noted)
    reconciled(Run(account, "bank:account", EXAMPLES, database_url))
    assert held == [(0,)]


def test_a_snapshot_is_not_held_to_the_end(store, connection, held, reconcile, archive, state):
    """It is released once the store was read, before what was found is sorted or compared."""
    store.write([open_(), deposit("a")], COMMANDS)
    drain(connection)
    runs = {
        "full": lambda: reconcile().report,
        "state": lambda: reconcile(*state).report,
        "archive": lambda: archive().result,
    }
    for how, run in runs.items():
        held.clear()
        assert run()["snapshotHeldSeconds"] > 0, how
        assert held[0] or how == "archive", how
        assert not held[-1], how
