"""What ``reservation status`` shows of consumers, on a real store."""

import json
import os
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.support.commands import invoke_cli
from tests.support.consuming import until
from tests.support.started import PATIENCE
from tests.support.stored_positions import store_position

COMMANDS = "account:command"
REASONS = ["dead", "retry", "running", "limited", "breaker_open", "paused", "parked"]

MESSAGES = """
INSERT INTO message_store.messages (global_position, stream_name, position, type, data, time)
SELECT n, %(category)s || '-' || n %% %(streams)s, n, 'Deposit', '{}',
       now() AT TIME ZONE 'utc' - interval '1 second' * %(age)s
FROM generate_series(%(first)s::bigint, %(last)s) AS n
"""


def messages(connection, first, last, *, category=COMMANDS, streams=100, age=0):
    """Store messages at these global positions."""
    parameters = {"category": category, "streams": streams, "age": age}
    connection.execute(MESSAGES, {**parameters, "first": first, "last": last})


def group(connection, positions, *, category=COMMANDS, consumer="account", former_positions=None):
    """Store a group with these positions, partition by partition."""
    connection.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions, former_positions) "
        "VALUES (%s, %s, %s, %s)",
        [consumer, category, len(positions), former_positions],
    )
    for partition, position in enumerate(positions):
        store_position(connection, consumer, category, position, partition)


def left(connection, partition, partitions, position):
    """Count the unread messages of a partition, without any limit."""
    return connection.execute(
        "SELECT count(*) FROM message_store.messages WHERE global_position > %s "
        "AND reservation.partition_of(stream_name, %s) = %s",
        [position, partitions, partition],
    ).fetchone()[0]


@pytest.fixture
def table(database_url):
    """Give a function that returns what is shown to people, in one line."""

    def run(*arguments):
        named = ("--database-url", database_url)
        done = invoke_cli("status", *arguments, *named, env={"COLUMNS": "300"})
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        return " ".join(done.stdout.split())

    return run


@pytest.fixture
def status(database_url):
    """Give a function that returns what is shown as JSON."""

    def run(*arguments, address=database_url):
        done = invoke_cli("status", *arguments, "--json", "--database-url", address)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def of_each(shown, *names):
    """Return these fields of each partition."""
    return [tuple(one[name] for name in names) for one in shown["partitions"]]


def test_a_consumer_that_was_never_run_is_shown_at_the_start(connection, status):
    """It has its lag and no holder; without an app, none is shown."""
    messages(connection, 1, 5, age=90)
    shown = status("bank:account")
    fields = ("category", "position", "head", "lagMessages", "holder", "updatedAt")
    assert of_each(shown, *fields) == [
        (COMMANDS, 0, 5, 5, None, None),
        ("accountTransaction", 0, 0, 0, None, None),
    ]
    ((behind,), (idle,)) = of_each(shown, "lagSeconds")
    assert 90 <= behind < 90 + PATIENCE
    assert idle is None
    assert status()["partitions"] == []


def test_each_partition_has_a_lag_of_its_own(connection, status):
    """It counts the messages of its own streams, and the age of the oldest of them."""
    messages(connection, 1, 500, age=300)
    messages(connection, 501, 600, age=20)
    positions = [100, 600, 550, 0]
    group(connection, positions)
    shown = status()
    expected = [left(connection, n, 4, position) for n, position in enumerate(positions)]
    assert of_each(shown, "position", "lagMessages", "lagAtLeast") == [
        (position, lag, False) for position, lag in zip(positions, expected, strict=True)
    ]
    assert expected[1] == 0 < min(expected[0], expected[2], expected[3])
    ((first,), (second,), (third,), (fourth,)) = of_each(shown, "lagSeconds")
    assert second is None
    assert first >= 300
    assert 20 <= third < 300 <= fourth


def test_what_was_handled_in_earlier_partitions_is_not_counted(connection, status):
    """It was carried over when the number of partitions changed."""
    messages(connection, 1, 100)
    group(connection, [0], former_positions=[100, 0])
    assert of_each(status(), "lagMessages") == [(left(connection, 1, 2, 0),)]


def test_dead_letters_are_counted_where_they_belong(connection, status, table):
    """In the partition of their stream, if they are open."""
    group(connection, [100, 100])
    states = ["dead", "parked", "parked", "waiting", "handled", "handled", "handled", "discarded"]
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
        "message_id, stream_name, type, state, reason, process, next_attempt_at) "
        "SELECT 'account', %s, n, gen_random_uuid(), 'account:command-7', 'Deposit', state, "
        "'HandlerError', 'a:1', CASE state WHEN 'waiting' THEN now() END"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS s (state, n)",
        [COMMANDS, states],
    )
    (where,) = connection.execute(
        "SELECT reservation.partition_of('account:command-7', 2)"
    ).fetchone()
    counts = of_each(status(), "dead", "parked", "waiting")
    assert (counts[where], counts[1 - where]) == ((1, 2, 1), (0, 0, 0))
    assert f"{COMMANDS} by account 1 dead; 1 retry; 2 parked; no consumer" in table()


def test_an_auditor_may_run_status(connection, database_url, status):
    """Its usual grants are enough."""
    role = f"test_status_{os.getpid()}"
    messages(connection, 1, 5)
    group(connection, [2])
    invoke_cli("store", "grants", "auditor", role, "--database-url", database_url)
    try:
        address = psycopg.conninfo.make_conninfo(database_url, options=f"-c role={role}")
        assert of_each(status(address=address), "lagMessages") == [(3,)]
    finally:
        connection.execute(f"DROP OWNED BY {role}")
        connection.execute(f"DROP ROLE {role}")


def test_the_table_escapes_what_comes_from_the_store(connection, table):
    """Names are shown as they are, without colour in a pipe."""
    connection.execute(
        "INSERT INTO message_store.messages (global_position, stream_name, position, type, data) "
        "VALUES (1234567, E'a\\x1b[31m-1', 0, 'Deposit', '{}')"
    )
    group(connection, [0], category="a\x1b[31m", consumer="[bold]x")
    shown = table()
    for text in ("a\\x1b[31m", "[bold]x", "1,234,567", "nobody"):
        assert text in shown


def test_the_json_is_as_documented(connection, status):
    """It is one object with the documented keys, and times in ISO format."""
    messages(connection, 1, 3, age=10)
    group(connection, [1])
    shown = status("bank:account")
    assert datetime.fromisoformat(shown["time"]) <= datetime.now(UTC)
    assert shown["oldestSnapshot"] is None
    first = shown["partitions"][0]
    age, updated = first.pop("lagSeconds"), first.pop("updatedAt")
    assert age >= 10
    assert datetime.fromisoformat(updated).tzinfo is not None
    assert first == {
        "consumer": "account",
        "category": COMMANDS,
        "partition": 0,
        "partitions": 1,
        "position": 1,
        "messageId": None,
        "foreign": False,
        "epoch": 1,
        "head": 3,
        "lagMessages": 2,
        "unreadable": None,
        "lagAtLeast": False,
        "holder": None,
        "dead": 0,
        "parked": 0,
        "waiting": 0,
        "reasons": dict.fromkeys(REASONS, 0),
        "nextAttemptAt": None,
    }


def test_command_categories_that_nobody_reads_are_named(connection, status, table):
    """Those of ours and of Eventide's consumers are read, and those of the app will be."""
    messages(connection, 1, 3, category="inventry:command", streams=1)
    messages(connection, 11, 12, category="inventory:command")
    messages(connection, 21, 22, category="eventide:command")
    messages(connection, 31, 31, category="eventide:command+position", streams=1)
    messages(connection, 41, 42, category="inventory")
    messages(connection, 51, 51, category=COMMANDS)
    messages(connection, 1001, 2100, category="zeal:command")
    group(connection, [0], category="inventory:command", consumer="inventory")
    named = [
        {"category": COMMANDS, "messages": 1, "atLeast": False},
        {"category": "inventry:command", "messages": 3, "atLeast": False},
        {"category": "zeal:command", "messages": 1000, "atLeast": True},
    ]
    assert status()["unread"] == named
    assert status("bank:account")["unread"] == named[1:]
    line = "Nobody reads: inventry:command holds 3 messages, and no consumer has a position in it"
    assert line in table()


def test_looking_for_unread_categories_is_bounded(connection, status):
    """Of thousands some are named, without a scan of all messages."""
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type, data) "
        "SELECT format('c%s:command-1', n % 3000), n / 3000, 'T', '{}' "
        "FROM generate_series(0, 14999) AS n"
    )

    def scanned():
        connection.execute("SELECT pg_stat_clear_snapshot()")
        return connection.execute(
            "SELECT seq_tup_read, idx_scan FROM pg_stat_user_tables WHERE relname = 'messages'"
        ).fetchone()

    rows, scans = scanned()
    assert len(status()["unread"]) == 20
    until(lambda: scanned()[1] > scans)  # a session reports what it read as it ends
    assert scanned()[0] == rows


OLD = "reservation.inspection.oldest_snapshot.OLD"


def test_the_session_with_the_oldest_snapshot_is_named(
    connection, database_url, status, table, monkeypatch
):
    """A session that holds a snapshot for long is named, with what ends it; others are not."""
    monkeypatch.setattr(OLD, timedelta(0))
    with psycopg.connect(database_url) as forgotten, psycopg.connect(database_url) as later:
        for session, name in ((forgotten, "[bold]report\x1b"), (later, "later")):
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            session.execute("SELECT set_config('application_name', %s, false)", [name])
            session.execute("SELECT count(*) FROM message_store.messages")
        pid = forgotten.info.backend_pid
        shown = status()
        held = shown["oldestSnapshot"]
        assert (held["kind"], held["name"]) == ("session", str(pid))
        assert datetime.fromisoformat(held["since"]) <= datetime.fromisoformat(shown["time"])
        line = table()
        assert f"the session {pid} (role " in line
        assert "application [bold]report" in line
        assert f"SELECT pg_terminate_backend({pid})" in line
        forgotten.rollback()
        assert status()["oldestSnapshot"]["name"] == str(later.info.backend_pid)
        monkeypatch.setattr(OLD, timedelta(hours=1))
        assert status()["oldestSnapshot"] is None


def test_a_transaction_that_only_waits_holds_no_snapshot(database_url, status, monkeypatch):
    """Between statements a read committed transaction that wrote nothing holds nothing back."""
    monkeypatch.setattr(OLD, timedelta(0))
    with psycopg.connect(database_url) as waiting:
        waiting.execute("SELECT 1")
        assert status()["oldestSnapshot"] is None
        waiting.execute("CREATE TEMPORARY TABLE written (n int)")
        assert status()["oldestSnapshot"]["name"] == str(waiting.info.backend_pid)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["--watch", "1", "--json"], "leave out one"), (["--watch"], "--watch needs a terminal")],
)
def test_watching_is_for_people(database_url, arguments, problem):
    """Watching is refused where the output is no terminal."""
    done = invoke_cli("status", *arguments, "--database-url", database_url, env={"COLUMNS": "200"})
    assert done.returncode == 2
    assert problem in done.stderr


def test_a_holder_without_lease_or_session_is_gone(connection, database_url, status):
    """So is one that is no member any more."""
    group(connection, [0, 0, 0, 0, 0])
    with psycopg.connect(database_url, autocommit=True) as theirs:
        join = (
            "WITH joined AS (INSERT INTO reservation.members (consumer, category, process, worker)"
            " VALUES ('account', %s, 'host:' || %s, 'w') RETURNING member), "
            "lease AS (INSERT INTO reservation.heartbeats (member, expires_at) "
            "SELECT member, now() + %s::interval FROM joined) "
            "UPDATE reservation.leases SET holder = member FROM joined WHERE partition = %s"
        )
        for partition, until_ in enumerate(("1 minute", "-1 second", "1 minute")):
            theirs.execute(join, [COMMANDS, partition, until_, partition])
        theirs.execute(
            "SELECT pg_advisory_lock(-1201006963, member::integer) FROM reservation.members "
            "WHERE process <> 'host:2'"
        )
        theirs.execute("UPDATE reservation.leases SET holder = 999 WHERE partition = 3")
        assert of_each(status(), "holder") == [
            ({"process": "host:0", "gone": False},),
            ({"process": "host:1", "gone": True},),
            ({"process": "host:2", "gone": True},),
            ({"process": None, "gone": True},),
            (None,),
        ]


def test_status_works_on_a_store_of_message_db(make_database, message_db_template, status):
    """Message DB has the same messages and functions."""
    address = make_database(message_db_template)
    with psycopg.connect(address, autocommit=True) as connection:
        messages(connection, 1, 200)
        group(connection, [150, 0], former_positions=[0, 200, 50])
        ((close,), (behind,)) = of_each(status(address=address), "lagMessages")
        assert 0 < close < 50
        assert 0 < behind < 100
