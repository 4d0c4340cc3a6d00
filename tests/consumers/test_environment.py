"""Faults of the environment: consumers wait, and no message fails because of them."""

import json
import threading

import pytest
from psycopg import connect

import consumers
from bank import account
from reservation import MessageStore
from reservation.errors import LogSequenceError, MissingRightError, SchemaError, StoreError
from tests.apps.bank import READS, RESERVED, broken, drain, event_types, wait_until_drained
from tests.apps.two_accounts import letters, write_two_accounts
from tests.consumers.builders import case
from tests.store.builders import as_login, grant, new_role, run, store_command
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, logging, until
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import PATIENCE

__all__ = ["new_role"]  # a fixture

SEQUENCE = "message_store.messages_global_position_seq"
SENT = READS[0]


@pytest.fixture
def consumer(connection, database_url, new_role):
    """Give the name and the address of a consumer role for this test."""
    role = new_role()
    grant(connection, "consumer", role)
    return role, as_login(connection, database_url, role)


def wait_until_awaited(logged, category=SENT):
    """Wait until a consumer has met the same cause more than once; return what it said first."""
    line = logged.wait_until("database_unavailable", category=category)
    logged.wait_until("database_awaited", category=category)
    return line["error"]


def all_handled(connection, store, *, deposits=1):
    """Check that nothing is a dead letter, no attempt is counted, and all took effect once."""
    assert letters(connection) == []
    assert event_types(store) == ["Opened"] + ["Deposited"] * deposits
    assert connection.execute("SELECT sum(attempts) FROM reservation.positions").fetchone() == (0,)
    assert broken(connection) == {}


def terminate_consumers(connection):
    """End the sessions of the consumers."""
    connection.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE application_name LIKE 'reservation account%' AND datname = current_database()"
    )


def right(granted, to):
    """Return how a right is taken from consumers, what they say then, and how it is given."""
    says = [f"lacks {granted} on {to.removeprefix('SEQUENCE ').lower()}", "grants consumer {}"]
    if granted == "EXECUTE":
        says[0] = "permission denied for function lock_categories"
    return (f"REVOKE {granted} ON {to} FROM {{}}", says, f"GRANT {granted} ON {to} TO {{}}")


# What breaks, what consumers say of it, and what mends it: statements, or a command of the store.
FAULTS = {
    # The first, because it names a position.
    "an exhausted sequence": (
        f"ALTER SEQUENCE {SEQUENCE} MAXVALUE 3",
        ["reached maximum value of sequence"],
        f"ALTER SEQUENCE {SEQUENCE} NO MAXVALUE",
    ),
    "no INSERT": right("INSERT", "message_store.messages"),
    "no sequence": right("USAGE", f"SEQUENCE {SEQUENCE}"),
    "no UPDATE": right("UPDATE", "reservation.leases"),
    "no function": right("EXECUTE", "FUNCTION reservation.lock_categories"),
    "no schema": right("USAGE", "SCHEMA reservation"),
    "a policy": (
        "ALTER TABLE message_store.messages ENABLE ROW LEVEL SECURITY",
        ["row-level security", "ALTER ROLE {} BYPASSRLS"],
        "ALTER ROLE {} BYPASSRLS",
    ),
    "positions that do not move": (
        """
        CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          RAISE check_violation USING MESSAGE = 'no position moves';
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON reservation.moves
        FOR EACH ROW WHEN (NEW.n > 0) EXECUTE FUNCTION public.refuse()
        """,
        ["no position moves"],
        "DROP TRIGGER refuse ON reservation.moves",
    ),
}
BY_A_COMMAND = {
    "a dropped function": (
        "DROP FUNCTION reservation.reserve",
        ["reservation.reserve", "run `reservation store install`"],
        ["install"],
    ),
}


@pytest.mark.parametrize(
    "faults", [FAULTS, BY_A_COMMAND], ids=["mended by statements", "mended by a command"]
)
def test_consumers_wait_for_what_is_broken_and_say_what_mends_it(
    connection, store, consumer, faults
):
    """A fault of the environment is logged once, and waited for; no message fails because of it."""
    role, address = consumer
    with logging(account, address) as logged:
        logged.wait_until("consumer_started", category=SENT)
        store.write(open_(), COMMANDS)
        wait_until_drained(connection)
        for n, (fault, (breaks, says, mends)) in enumerate(faults.items(), 1):
            with case(fault):
                before = len(logged.named("database_unavailable", category=SENT))
                with connection.transaction():  # so that consumers see both at once
                    store.write(deposit(f"d{n}"), COMMANDS)
                    run(connection, breaks, role)
                error = logged.wait_for("database_unavailable", category=SENT)["error"]
                for words in says:
                    assert words.format(role) in error
                for _ in range(2):
                    logged.wait_for("database_awaited", category=SENT)
                if isinstance(mends, list):
                    assert store_command(connection, *mends).returncode == 0
                else:
                    run(connection, mends, role)
                logged.wait_for("database_available", category=SENT)
                wait_until_drained(connection)
                said = logged.named("database_unavailable", category=SENT)[before:]
                assert len(said) == 1, [one["error"] for one in said]
    all_handled(connection, store, deposits=len(faults))


def test_the_right_to_send_is_not_asked_of_a_consumer(connection, store, consumer):
    """A role that sends and consumes gets the error of a consumer, not that of a sender."""
    role, address = consumer
    with logging(account, address) as logged:
        logged.wait_until("consumer_started", category=SENT)
        run(connection, "REVOKE INSERT ON message_store.messages FROM {}", role)
        connection.execute(
            "INSERT INTO reservation.sender_categories VALUES (%s::regrole, 'other')", [role]
        )
        store.write([open_(), deposit()], COMMANDS)
        error = wait_until_awaited(logged)
        assert "lacks INSERT on message_store.messages" in error
        assert "may not write to the category" not in error


def test_a_right_that_is_missing_from_the_start_is_an_error(connection, consumer):
    """Consumers that lack rights do not start; one line names them and the command."""
    role, address = consumer
    run(connection, "REVOKE INSERT, SELECT ON message_store.messages FROM {}", role)
    with pytest.raises(MissingRightError) as caught:
        consumers.run(account, address)
    assert "lacks INSERT on message_store.messages, SELECT on message_store" in str(caught.value)
    assert f"`reservation store grants consumer {role}`" in str(caught.value)
    assert "\n" not in str(caught.value)


# The sequence of global positions


def test_consumers_wait_until_a_sequence_behind_the_log_is_repaired(
    connection, store, database_url
):
    """With a sequence behind the log nothing more is written until it is repaired."""
    with logging(account, database_url) as logged:
        logged.wait_until("consumer_started", category=SENT)
        with connection.transaction():  # so that consumers see both at once
            store.write([open_(), *(deposit(f"d{n}") for n in range(9))], COMMANDS)
            connection.execute(f"SELECT setval('{SEQUENCE}', 1)")
        error = wait_until_awaited(logged)
        assert "behind the log" in error
        assert "`reservation store repair`" in error
        given = connection.execute(f"SELECT last_value FROM {SEQUENCE}").fetchone()
        logged.wait_until("database_awaited", times=2, category=SENT)
        assert connection.execute(f"SELECT last_value FROM {SEQUENCE}").fetchone() == given
        assert json.loads(store_command(connection, "repair", "--json").stdout)["changed"] is True
        wait_until_drained(connection)
    all_handled(connection, store, deposits=9)


@pytest.mark.parametrize("called", [True, False])
def test_a_sequence_behind_the_log_is_found_at_the_start(connection, store, database_url, called):
    """A sequence behind the log is detected at the start, also one that is unused yet."""
    store.write([open_(), deposit(), deposit()], COMMANDS)
    connection.execute(f"SELECT setval('{SEQUENCE}', 1, %s)", [called])
    with pytest.raises(
        LogSequenceError, match=f"The sequence {SEQUENCE} is behind the log"
    ) as raised:
        consumers.run(account, database_url)
    assert "up to the log's last, 3; run `reservation store repair` as the owner" in str(
        raised.value
    )
    assert "was behind" in store_command(connection, "repair").stdout
    again = store_command(connection, "repair").stdout
    assert again == f"{SEQUENCE}: is not behind the log, left as it is\n"
    drain(connection)
    all_handled(connection, store)


def test_the_sequence_of_an_empty_or_sound_log_is_not_behind(connection, store):
    """The sequence of an empty or intact log is not reported."""
    drain(connection)
    store.write(open_(), COMMANDS)
    connection.execute(f"SELECT setval('{SEQUENCE}', 2, false)")
    drain(connection)
    assert event_types(store) == ["Opened"]
    connection.execute(f"SELECT setval('{SEQUENCE}', 2, false)")
    with pytest.raises(LogSequenceError):
        drain(connection)


def test_a_sender_gets_an_error_for_a_sequence_behind_the_log(connection, store):
    """Both ways of writing raise it, for one message or a batch, whatever the key is called."""
    store.write([open_(), deposit()], COMMANDS)
    for write in (deposit("d2"), [deposit("d3"), deposit("d4")]):
        connection.execute(f"SELECT setval('{SEQUENCE}', 1, false)")
        with pytest.raises(LogSequenceError, match=r"behind the log.*reservation store repair"):
            store.write(write, COMMANDS)
    connection.execute("ALTER INDEX message_store.messages_pkey RENAME TO another_name")
    connection.execute(f"SELECT setval('{SEQUENCE}', 1, false)")
    with pytest.raises(LogSequenceError):
        store.write(deposit("d2"), COMMANDS)


def test_a_repair_waits_for_writers_and_locks_out_new_ones(connection, store, database_url):
    """A repair waits for running writers and locks out new ones."""
    store.write([open_(), deposit()], COMMANDS)
    connection.execute(f"SELECT setval('{SEQUENCE}', 100)")
    with connect(database_url) as writer:
        MessageStore(writer).write(deposit("d2"), COMMANDS)  # at 101
        connection.execute(f"SELECT setval('{SEQUENCE}', 1)")
        done = []
        thread = threading.Thread(target=lambda: done.append(store_command(connection, "repair")))
        thread.start()
        waiting = "SELECT FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND NOT granted"
        until(lambda: connection.execute(waiting).fetchall())
        writer.commit()
        thread.join(PATIENCE)
    assert done[0].returncode == 0, done[0].stderr
    store.write(deposit("d3"), COMMANDS)
    assert [message.global_position for message in store.read_stream(COMMANDS)] == [1, 2, 101, 102]


def test_starts_during_a_fault_of_the_environment_count_no_attempts(connection, store):
    """However often consumers are started meanwhile, no message fails."""
    store.write([open_(), deposit()], COMMANDS)
    connection.execute(f"ALTER SEQUENCE {SEQUENCE} MAXVALUE 4")
    for _ in range(4):  # more than a message has attempts
        with pytest.raises(StoreError, match="maximum value"):
            drain(connection)
    attempts = connection.execute("SELECT sum(attempts) FROM reservation.positions").fetchone()
    assert attempts == (0,)
    connection.execute(f"ALTER SEQUENCE {SEQUENCE} NO MAXVALUE")
    drain(connection)
    all_handled(connection, store)


# Objects of ours, and the server


def test_consumers_wait_for_a_missing_table(connection, store, database_url):
    """Consumers wait for a missing table until it is restored."""
    tables = ("dead_letters", "members", "leases", "moves")
    store.write(open_(), COMMANDS)
    with logging(account, database_url) as logged:
        logged.wait_until("consumer_started", category=SENT)
        for n, table in enumerate(tables):
            with case(table):
                connection.execute(f"ALTER TABLE reservation.{table} RENAME TO away")
                store.write(deposit(f"d{n}"), COMMANDS)
                terminate_consumers(connection)
                logged.wait_for("database_awaited", category=SENT)
                lines = logged.named("database_unavailable", category=SENT)
                assert f"reservation.{table}" in lines[-1]["error"]
                connection.execute(f"ALTER TABLE reservation.away RENAME TO {table}")
                logged.wait_for("database_available", category=SENT)
                wait_until_drained(connection)
    all_handled(connection, store, deposits=len(tables))


def test_another_version_of_the_schema_ends_a_running_consumer(connection, database_url):
    """Another version of the schema ends a running consumer."""
    running = hosted(account, database_url)
    thread = running.__enter__()
    until(lambda: connection.execute("SELECT FROM reservation.members").fetchall(), thread)
    connection.execute("INSERT INTO reservation.versions (version) VALUES (9999)")
    terminate_consumers(connection)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    with pytest.raises(SchemaError, match="newer than"):
        running.__exit__(None, None, None)


def test_consumers_wait_for_free_connections(connection, store, consumer):
    """Consumers wait while their role has no connections left."""
    role, address = consumer
    with logging(account, address) as logged:
        for category in READS:
            logged.wait_until("consumer_started", category=category)
        run(connection, "ALTER ROLE {} CONNECTION LIMIT 0", role)
        terminate_consumers(connection)
        for category in READS:
            logged.wait_until("database_awaited", category=category)
        store.write([open_(), deposit()], COMMANDS)
        run(connection, "ALTER ROLE {} CONNECTION LIMIT -1", role)
        wait_until_drained(connection)
    all_handled(connection, store)


@pytest.mark.parametrize("how", ["pg_cancel_backend(pid)", "pg_terminate_backend(pid, 60000)"])
def test_a_statement_that_is_canceled_counts_for_nothing(connection, store, database_url, how):
    """A cancelled statement is logged and retried, and counts no attempt."""
    connection.execute(
        "CREATE TABLE rounds (n int);"
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF EXISTS (SELECT FROM public.rounds) THEN PERFORM pg_sleep(3600); END IF; "
        "RETURN NULL; END $$;"
        "INSERT INTO rounds VALUES (1);"
        "CREATE TRIGGER dawdle AFTER INSERT ON message_store.messages FOR EACH ROW "
        "WHEN (NEW.type = 'Deposited') EXECUTE FUNCTION dawdle()"
    )
    store.write([open_(), deposit()], COMMANDS)
    sleeping = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' "
        "AND datname = current_database()"
    )
    with logging(account, database_url) as logged:
        for _ in range(5):  # more than a message has attempts
            ((pid,),) = until(lambda: connection.execute(sleeping).fetchall())
            connection.execute(f"SELECT {how} FROM (SELECT %s::int AS pid) AS s", [pid])
            # Or the next one could cancel the same sleep.
            until(lambda: (pid,) not in connection.execute(sleeping).fetchall())  # noqa: B023
        wait_until_awaited(logged, RESERVED)
        connection.execute("DELETE FROM rounds")

        def is_drained():
            connection.execute(f"SELECT {how} FROM ({sleeping}) AS s")
            return len(event_types(store)) == 2

        until(is_drained)
        wait_until_drained(connection)
        assert not logged.named("lock_awaited")
    all_handled(connection, store)


# What is a message's all the same

REFUSED = {
    "23 a check": "ALTER TABLE message_store.messages ADD CHECK (NOT ({bad}))",
    "22 a number": "CREATE INDEX ON message_store.messages "
    "((CASE WHEN {bad} THEN (data->>'depositId')::int END))",
    "54 a size": "CREATE INDEX ON message_store.messages "
    "((CASE WHEN {bad} THEN public.long() END))",
    "0A a feature": "CREATE INDEX ON message_store.messages "
    "((CASE WHEN {bad} THEN public.unsupported(type) END))",
    "at the commit": "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON message_store.messages "
    "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.type = 'Deposited' "
    "AND NEW.data->>'depositId' = 'at the commit') EXECUTE FUNCTION public.refuse()",
}


def test_a_message_that_the_store_cannot_hold_fails_alone(connection, store):
    """A message that the store cannot hold is found one by one, and the others go on."""
    connection.execute(
        "CREATE FUNCTION public.long() RETURNS text LANGUAGE sql IMMUTABLE AS "
        "$$ SELECT string_agg(md5(n::text), '') FROM generate_series(1, 3000) AS n $$;"
        "CREATE FUNCTION public.unsupported(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN RAISE feature_not_supported; END $$;"
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE foreign_key_violation; END $$"
    )
    expected = []
    for account_id, (how, refuses) in enumerate(REFUSED.items()):
        bad = f"type = 'Deposited' AND data->>'depositId' = '{how}'"
        connection.execute(refuses.format(bad=bad))
        sent = [deposit(how, account=str(account_id)), deposit("next", account=str(account_id))]
        store.write([open_(str(account_id)), *sent], f"account:command-{account_id}")
        expected += [(how, "dead", "write", 3), ("next", "parked", "parked", 0)]
    store.write([open_("456"), deposit(account="456")], "account:command-456")
    drain(connection)
    assert letters(connection) == expected
    assert event_types(store, "456") == ["Opened", "Deposited"]
    assert broken(connection) == {}


def test_a_dead_letter_that_is_retried_obeys_the_same_table(connection, store, database_url):
    """A retry of a dead letter waits for the environment as well."""
    connection.execute(
        "ALTER TABLE message_store.messages ADD CONSTRAINT refused "
        "CHECK (type <> 'Deposited' OR data->>'depositId' <> 'bad')"
    )
    write_two_accounts(store)
    with logging(account, database_url) as logged:
        logged.wait_until("message_dead")
        wait_until_drained(connection)
        connection.execute("ALTER TABLE message_store.messages DROP CONSTRAINT refused")
        (last,) = connection.execute(f"SELECT last_value FROM {SEQUENCE}").fetchone()
        connection.execute(f"ALTER SEQUENCE {SEQUENCE} MAXVALUE {last}")
        done = invoke_cli("dead-letters", "retry", "--all", "--database-url", database_url)
        assert done.returncode == 0, done.stderr
        wait_until_awaited(logged, RESERVED)
        assert {state for _, state, *_ in letters(connection)} <= {"waiting", "parked"}
        connection.execute(f"ALTER SEQUENCE {SEQUENCE} NO MAXVALUE")
        until(lambda: {state for _, state, *_ in letters(connection)} == {"handled"})
    assert event_types(store) == ["Opened"] + ["Deposited"] * 3
    assert broken(connection) == {}
