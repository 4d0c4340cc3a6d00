"""Faults of the environment: consumers wait, and no message fails because of them."""

import itertools
import json
import os
import threading
import time

import pytest
from psycopg import conninfo, sql

from bank import account
from bank.invariants import progress
from reservation import MessageStore
from reservation.errors import LogSequenceError, MissingRightError, StoreError
from reservation.postgres.connection import connect
from reservation.store.schema.preconditions import check_preconditions
from reservation.store.schema.roles import grant
from tests.bank import READS, RESERVED, broken, event_types, wait_until_drained
from tests.controls import COMMANDS, deposit, open_
from tests.poison import Poison
from tests.processes import PATIENCE, Started, run_cli
from tests.two_accounts import letters, start, write_two_accounts
from tests.watching import Watched, until

pytestmark = pytest.mark.faults

SEQUENCE = "message_store.messages_global_position_seq"
_numbers = itertools.count(1)


@pytest.fixture
def consumer(connection, database_url):
    """Give the name and the address of a consumer role for this test."""
    name = f"test_surroundings_{os.getpid()}_{next(_numbers)}"
    identifier = sql.Identifier(name)
    connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(identifier))
    grant(connection, "consumer", name)
    yield name, conninfo.make_conninfo(database_url, user=name, password="secret")
    connection.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = %s", [name]
    )
    connection.execute(sql.SQL("DROP OWNED BY {}").format(identifier))
    connection.execute(sql.SQL("DROP ROLE {}").format(identifier))


def on(connection, statements, role=""):
    """Execute statements in which ``{role}`` stands for the consumer's role."""
    connection.execute(sql.SQL(statements).format(role=sql.Identifier(role)))


def wait_until_awaited(started, *categories):
    """Wait until consumers have met the same cause more than once; return each first line."""
    lines = []
    for category in categories:
        lines.append(started.wait_for("database_unavailable", category=category))
        started.wait_for("database_awaited", category=category)
    return lines


def all_handled(connection, store, *, deposits=1):
    """Check that nothing is a dead letter, no attempt is counted, and all took effect once."""
    assert letters(connection) == []
    assert event_types(store) == ["Opened"] + ["Deposited"] * deposits
    assert connection.execute("SELECT sum(attempts) FROM reservation.positions").fetchone() == (0,)
    assert broken(connection) == {}


# What is taken away, what restores it, which consumer meets it, and what its line says.
RIGHTS = {
    "insert": (
        "REVOKE INSERT ON message_store.messages FROM {role}",
        "GRANT INSERT ON message_store.messages TO {role}",
        "account:command",
        "lacks INSERT on message_store.messages",
    ),
    "sequence": (
        f"REVOKE ALL ON SEQUENCE {SEQUENCE} FROM {{role}}",
        f"GRANT USAGE ON SEQUENCE {SEQUENCE} TO {{role}}",
        "account:command",
        f"lacks USAGE on {SEQUENCE}",
    ),
    "positions": (
        "REVOKE UPDATE ON reservation.positions FROM {role}",
        "GRANT UPDATE ON reservation.positions TO {role}",
        "account:command",
        "lacks UPDATE on reservation.positions",
    ),
    "function": (
        "REVOKE EXECUTE ON FUNCTION reservation.lock_categories FROM {role}",
        "GRANT EXECUTE ON FUNCTION reservation.lock_categories TO {role}",
        "account:command",
        "permission denied for function lock_categories",
    ),
    "schema": (
        "REVOKE USAGE ON SCHEMA reservation FROM {role}",
        "GRANT USAGE ON SCHEMA reservation TO {role}",
        "account:command",
        "lacks USAGE on schema reservation",
    ),
}


def test_what_keeps_a_position_from_moving_is_no_fault_of_messages(connection, store, database_url):
    """A position moves in one round trip with what is written, and only the latter is theirs."""
    with Started(database_url) as started:
        store.write(open_(), COMMANDS)
        wait_until_drained(connection, started)
        connection.execute(
            """
            CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
              RAISE check_violation USING MESSAGE = 'no position moves';
            END $$;
            CREATE TRIGGER refuse BEFORE UPDATE OF position ON reservation.positions
            FOR EACH ROW WHEN (OLD.position <> NEW.position) EXECUTE FUNCTION pg_temp.refuse()
            """
        )
        store.write(deposit(), COMMANDS)  # for one category
        (line,) = wait_until_awaited(started, "account:command")
        assert "no position moves" in line["error"]
        connection.execute("DROP TRIGGER refuse ON reservation.positions")
        wait_until_drained(connection, started)
    all_handled(connection, store)


@pytest.mark.parametrize("right", list(RIGHTS))
def test_consumers_wait_for_a_revoked_right(connection, store, consumer, right):
    """Consumers wait for a missing right, which is logged once and shown in readiness."""
    role, address = consumer
    revoke, give, category, words = RIGHTS[right]
    with Watched(address) as started:
        started.ready()
        on(connection, revoke, role)
        store.write([open_(), deposit()], COMMANDS)
        (line,) = wait_until_awaited(started, category)
        assert words in line["error"]
        assert f"grants consumer {role}" in line["error"]
        status, text = started.ask("/readyz")
        assert status == 503
        assert words.split(";")[0][:40] in text
        assert started.ask("/livez") == (200, "ok\n")
        on(connection, give, role)
        started.wait_for("database_available", category=category)
        wait_until_drained(connection, started)
        until(lambda: started.ask("/readyz")[0] == 200)
        assert started.stop() == 0
        logged = [line for line in started.lines if words in line and f'"{category}"' in line]
        assert len(logged) == 1
        assert "message_dead" not in started.log
    all_handled(connection, store)


def test_consumers_wait_for_policies_that_hide_rows_and_name_them(connection, store, consumer):
    """Consumers wait while row security policies hide messages, and name the remedy."""
    role, address = consumer
    with Watched(address) as started:
        started.ready()
        connection.execute("ALTER TABLE message_store.messages ENABLE ROW LEVEL SECURITY")
        store.write([open_(), deposit()], COMMANDS)
        (line,) = wait_until_awaited(started, "account:command")
        assert "row-level security" in line["error"]
        assert f"ALTER ROLE {role} BYPASSRLS" in line["error"]
        assert "grant" not in line["error"]
        done = run_cli("start", "bank:account", "--database-url", address)
        assert (done.returncode, line["error"] in done.stderr) == (2, True), done.stderr
        on(connection, "ALTER ROLE {role} BYPASSRLS", role)
        wait_until_drained(connection, started)
        assert started.stop() == 0
    all_handled(connection, store)


def test_a_role_that_sends_and_consumes_gets_the_error_of_a_consumer(connection, store, consumer):
    """The error names the consumer's missing right, not the sender's."""
    role, address = consumer
    with Watched(address) as started:
        started.ready()
        on(connection, "REVOKE INSERT ON message_store.messages FROM {role}", role)
        connection.execute(
            "INSERT INTO reservation.sender_categories VALUES (%s::regrole, 'other')", [role]
        )
        store.write([open_(), deposit()], COMMANDS)
        (line,) = wait_until_awaited(started, "account:command")
        assert "may not write to the category" not in started.lines[-1]
        assert "lacks INSERT on message_store.messages" in line["error"]
        on(connection, "GRANT INSERT ON message_store.messages TO {role}", role)
        wait_until_drained(connection, started)
        assert started.stop() == 0
    all_handled(connection, store)


def test_a_right_that_is_missing_from_the_start_ends_with_status_2(connection, consumer):
    """Rights missing at the start end the command with one line and status 2."""
    role, address = consumer
    on(connection, "REVOKE INSERT, SELECT ON message_store.messages FROM {role}", role)
    done = run_cli("start", "bank:account", "--database-url", address)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "lacks INSERT on message_store.messages, SELECT on message_store" in done.stderr
    assert f"`reservation store grants consumer {role}`" in done.stderr


# The sequence of global positions


def set_back(connection, store):
    """Write commands, and set the sequence back, so that consumers see both at once."""
    with connection.transaction():
        store.write([open_(), *(deposit(f"d{n}") for n in range(9))], COMMANDS)
        connection.execute(f"SELECT setval('{SEQUENCE}', 1)")


def test_consumers_wait_until_a_sequence_behind_the_log_is_repaired(
    connection, store, database_url
):
    """With a sequence behind the log nothing more is written until it is repaired."""
    with Watched(database_url) as started:
        started.ready()
        set_back(connection, store)
        lines = wait_until_awaited(started, "account:command")
        assert "behind the log" in lines[0]["error"]
        assert "`reservation store repair`" in lines[0]["error"]
        assert started.ask("/readyz")[0] == 503
        given = connection.execute(f"SELECT last_value FROM {SEQUENCE}").fetchone()
        started.wait_for("database_awaited", category="account:command")
        assert connection.execute(f"SELECT last_value FROM {SEQUENCE}").fetchone() == given
        done = run_cli("store", "repair", "--json", "--database-url", database_url)
        assert json.loads(done.stdout)["changed"] is True, done.stderr
        wait_until_drained(connection, started)
        assert started.stop() == 0
        assert started.log.count("behind the log") == 1
    all_handled(connection, store, deposits=9)


@pytest.mark.parametrize("called", [True, False])
def test_a_sequence_behind_the_log_is_found_at_the_start(connection, store, database_url, called):
    """A sequence behind the log is detected at the start, also one that is unused yet."""
    store.write([open_(), deposit(), deposit()], COMMANDS)
    connection.execute(f"SELECT setval('{SEQUENCE}', 1, %s)", [called])
    done = run_cli("start", "bank:account", "--database-url", database_url)
    assert done.returncode == 2
    assert f"The sequence {SEQUENCE} is behind the log" in done.stderr
    assert "up to the log's last, 3; run `reservation store repair` as the owner" in done.stderr
    repaired = run_cli("store", "repair", "--database-url", database_url)
    assert (repaired.returncode, "was behind" in repaired.stdout) == (0, True)
    again = run_cli("store", "repair", "--database-url", database_url)
    assert again.stdout == f"{SEQUENCE}: is not behind the log, left as it is\n"
    with Started(database_url) as started:
        wait_until_drained(connection, started)
        assert started.stop() == 0
    all_handled(connection, store)


def test_the_sequence_of_an_empty_or_sound_log_is_not_behind(connection, store):
    """The sequence of an empty or intact log is not reported."""
    check_preconditions(connection)
    store.write(open_(), COMMANDS)
    check_preconditions(connection)
    connection.execute(f"SELECT setval('{SEQUENCE}', 2, false)")
    check_preconditions(connection)
    connection.execute(f"SELECT setval('{SEQUENCE}', 1, false)")
    with pytest.raises(LogSequenceError):
        check_preconditions(connection)


def test_a_sender_gets_an_error_for_a_sequence_behind_the_log(connection, store, database_url):
    """Both clients raise an error for a sequence behind the log, for one message or a batch."""
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
        thread = threading.Thread(
            target=lambda: done.append(run_cli("store", "repair", "--database-url", database_url))
        )
        thread.start()
        waiting = "SELECT FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND NOT granted"
        until(lambda: connection.execute(waiting).fetchall())
        writer.commit()
        thread.join(PATIENCE)
    assert done[0].returncode == 0, done[0].stderr
    store.write(deposit("d3"), COMMANDS)
    assert [message.global_position for message in store.read_stream(COMMANDS)] == [1, 2, 101, 102]


def test_consumers_wait_for_an_exhausted_sequence(connection, store, database_url):
    """Consumers wait for an exhausted sequence, though its SQLSTATE class is a message's."""
    with Watched(database_url) as started:
        started.ready()
        with connection.transaction():
            store.write([open_(), deposit()], COMMANDS)
            connection.execute(f"ALTER SEQUENCE {SEQUENCE} MAXVALUE 2")
        lines = wait_until_awaited(started, "account:command")
        assert "reached maximum value of sequence" in lines[0]["error"]
        connection.execute(f"ALTER SEQUENCE {SEQUENCE} NO MAXVALUE")
        wait_until_drained(connection, started)
        assert started.stop() == 0
    all_handled(connection, store)


# Objects of ours


def test_consumers_wait_until_a_dropped_function_is_installed_again(
    connection, store, database_url
):
    """Consumers wait for a dropped function, which installing again restores."""
    with Watched(database_url) as started:
        started.ready()
        connection.execute("DROP FUNCTION reservation.reserve")
        with connection.transaction():
            store.write([open_(), deposit()], COMMANDS)
        lines = wait_until_awaited(started, "account:command")
        assert "reservation.reserve" in lines[0]["error"]
        assert "run `reservation store install`" in lines[0]["error"]
        done = run_cli("store", "install", "--database-url", database_url)
        assert "1 function was missing, made again" in done.stdout
        wait_until_drained(connection, started)
        assert started.stop() == 0
    all_handled(connection, store)


@pytest.mark.parametrize("table", ["dead_letters", "members", "positions"])
def test_consumers_wait_for_a_missing_table(connection, store, database_url, table):
    """Consumers wait for a missing table until it is restored."""
    with Watched(database_url) as started:
        started.ready()
        connection.execute(f"ALTER TABLE reservation.{table} RENAME TO away")
        store.write([open_(), deposit()], COMMANDS)
        terminate_consumers(connection)
        wait_until_awaited(started, "account:command")
        assert f"reservation.{table}" in started.ask("/readyz")[1]
        connection.execute(f"ALTER TABLE reservation.away RENAME TO {table}")
        wait_until_drained(connection, started)
        assert started.stop() == 0
    all_handled(connection, store)


def terminate_consumers(connection):
    connection.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE application_name LIKE 'reservation account %' AND datname = current_database()"
    )


def test_another_version_of_the_schema_ends_a_running_consumer(connection, store, database_url):
    """Another version of the schema ends a running consumer."""
    with Watched(database_url) as started:
        started.ready()
        connection.execute("INSERT INTO reservation.versions (version) VALUES (9999)")
        terminate_consumers(connection)
        assert started.process.wait(PATIENCE) == 2
        assert "newer than" in started.lines[-1]


# The server


def test_consumers_wait_for_free_connections(connection, store, consumer):
    """Consumers wait while their role has no connections left."""
    role, address = consumer
    with Watched(address) as started:
        started.ready()
        on(connection, "ALTER ROLE {role} CONNECTION LIMIT 0", role)
        terminate_consumers(connection)
        for category in READS:
            started.wait_for("database_awaited", category=category)
        assert "too many connections" in started.ask("/readyz")[1]
        store.write([open_(), deposit()], COMMANDS)
        on(connection, "ALTER ROLE {role} CONNECTION LIMIT -1", role)
        wait_until_drained(connection, started)
        assert started.stop() == 0
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
    with Watched(database_url) as started:
        for _ in range(account.attempts + 2):
            ((pid,),) = until(lambda: connection.execute(sleeping).fetchall())
            connection.execute(f"SELECT {how} FROM (SELECT %s::int AS pid) AS s", [pid])
            # Or the next one could cancel the same sleep.
            until(lambda: (pid,) not in connection.execute(sleeping).fetchall())  # noqa: B023
        (line,) = wait_until_awaited(started, RESERVED)
        until(lambda: connection.execute(sleeping).fetchall())
        status, body = started.ask("/readyz")
        assert (status, line["error"] in body) == (503, True)
        connection.execute("DELETE FROM rounds")
        end = time.monotonic() + PATIENCE
        while progress(connection)[RESERVED][0]:
            connection.execute(f"SELECT {how} FROM ({sleeping}) AS s")
            assert time.monotonic() < end
        wait_until_drained(connection, started)
        assert started.stop() == 0
        assert "lock_awaited" not in started.log
    all_handled(connection, store)


@pytest.mark.long
def test_restarts_during_a_fault_of_the_environment_count_no_attempts(
    connection, store, database_url, tmp_path
):
    """Restarts during a fault of the environment count no attempts."""
    store.write([open_(), deposit()], COMMANDS)
    poison = Poison(tmp_path, d1="kill")
    with start(database_url, poison) as started:
        started.wait_for("consumer_died", category=RESERVED)
        started.process.kill()
    poison.set()
    connection.execute(f"ALTER SEQUENCE {SEQUENCE} MAXVALUE 4")
    counted = "SELECT sum(attempts) FROM reservation.positions"
    before = connection.execute(counted).fetchone()[0]
    for _ in range(account.attempts + 2):
        with start(database_url, poison) as started:
            started.wait_for("database_unavailable", category=RESERVED)
            assert started.stop() == 0
        assert connection.execute(counted).fetchone()[0] <= max(before, 1)
    connection.execute(f"ALTER SEQUENCE {SEQUENCE} NO MAXVALUE")
    with start(database_url, poison) as started:
        wait_until_drained(connection, started)
        assert started.stop() == 0
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
}


@pytest.mark.parametrize("how", list(REFUSED))
def test_a_message_that_the_store_cannot_hold_fails_alone(
    connection, store, database_url, tmp_path, how
):
    """A message that the store cannot hold is found one by one, and the others go on."""
    connection.execute(
        "CREATE FUNCTION public.long() RETURNS text LANGUAGE sql IMMUTABLE AS "
        "$$ SELECT string_agg(md5(n::text), '') FROM generate_series(1, 3000) AS n $$;"
        "CREATE FUNCTION public.unsupported(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN RAISE feature_not_supported; END $$"
    )
    bad = "type = 'Deposited' AND data->>'depositId' = 'bad'"
    connection.execute(REFUSED[how].format(bad=bad))
    write_two_accounts(store)
    with start(database_url, Poison(tmp_path)) as started:
        dead = started.wait_for("message_dead")
        wait_until_drained(connection, started)
        assert started.stop() == 0
        assert "database_unavailable" not in started.log
    assert (dead["reason"], dead["attempts"]) == ("write", 3)
    assert letters(connection) == [("bad", "dead", "write", 3), ("d3", "parked", "parked", 0)]
    assert event_types(store, "456") == ["Opened", "Deposited"]
    assert broken(connection) == {}


def test_a_message_refused_at_the_commit_fails(connection, store, database_url, tmp_path):
    """A message that a deferred constraint refuses at the commit fails."""
    connection.execute(
        "CREATE TABLE known (id text PRIMARY KEY);"
        "INSERT INTO known VALUES ('d1'), ('d3'), ('e1');"
        "CREATE TABLE seen (id text REFERENCES known DEFERRABLE INITIALLY DEFERRED);"
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.seen VALUES (NEW.data->>'depositId'); RETURN NULL; END $$;"
        "CREATE TRIGGER see AFTER INSERT ON message_store.messages FOR EACH ROW "
        "WHEN (NEW.type = 'Deposited') EXECUTE FUNCTION see()"
    )
    write_two_accounts(store)
    with start(database_url, Poison(tmp_path)) as started:
        dead = started.wait_for("message_dead")
        wait_until_drained(connection, started)
        assert started.stop() == 0
    assert (dead["reason"], dead["attempts"]) == ("write", 3)
    assert letters(connection) == [("bad", "dead", "write", 3), ("d3", "parked", "parked", 0)]
    assert event_types(store, "456") == ["Opened", "Deposited"]


def test_a_dead_letter_that_is_retried_obeys_the_same_table(
    connection, store, database_url, tmp_path
):
    """A retry of a dead letter waits for the environment as well."""
    poison = Poison(tmp_path, bad="raise")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        started.wait_for("message_dead")
        wait_until_drained(connection, started)
        poison.set()
        last = connection.execute("SELECT max(global_position) FROM message_store.messages")
        connection.execute(f"ALTER SEQUENCE {SEQUENCE} MAXVALUE {last.fetchone()[0]}")
        done = run_cli("dead-letters", "retry", "--all", "--database-url", database_url)
        assert done.returncode == 0, done.stderr
        wait_until_awaited(started, RESERVED)
        assert {state for _, state, *_ in letters(connection)} <= {"retry", "parked"}
        connection.execute(f"ALTER SEQUENCE {SEQUENCE} NO MAXVALUE")
        started.wait_for("dead_letters_retried", dead=0)
        until(lambda: {state for _, state, *_ in letters(connection)} == {"handled"})
        assert started.stop() == 0
    assert event_types(store) == ["Opened"] + ["Deposited"] * 3
    assert broken(connection) == {}


def test_faults_of_the_environment_raise_store_errors(connection, consumer):
    """Faults of the environment raise StoreErrors."""
    role, address = consumer
    on(connection, "REVOKE SELECT ON reservation.positions FROM {role}", role)
    with connect(address) as own, pytest.raises(MissingRightError) as caught:
        check_preconditions(own)
    assert isinstance(caught.value, StoreError)
