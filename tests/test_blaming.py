"""Which errors at the commit of a batch are faults of its messages, and which are not."""

import uuid
from datetime import UTC, datetime

import pytest

from consumers.calls.blame import transaction
from reservation import StoredMessage
from reservation.errors import MessageError, RefusedError, StoreError
from reservation.postgres.error_translation import translated
from tests.bank import event_types, wait_until_drained
from tests.poison import Poison
from tests.two_accounts import letters, start, write_two_accounts

MESSAGE = StoredMessage(
    id=str(uuid.uuid4()),
    stream_name="account:command-123",
    type="Deposit",
    position=0,
    global_position=1,
    data=None,
    metadata_json=None,
    time=datetime(2026, 1, 2, tzinfo=UTC),
)


def commit(connection, state):
    """Commit a batch whose handler wrote to a table that raises this state at the commit."""
    connection.execute(
        "CREATE TABLE own (state text);"
        "CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE 'secret' USING ERRCODE = NEW.state; END $$;"
        "CREATE CONSTRAINT TRIGGER raise AFTER INSERT ON own DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION raise()"
    )
    with transaction(connection, lambda: [MESSAGE]):
        connection.execute("INSERT INTO own VALUES (%s)", [state])


@pytest.mark.parametrize(
    "state", ["P0001", "P0004", "21000", "38000", "RS001", "ZZZZZ", "99999", "23514"]
)
def test_an_error_of_a_trigger_at_the_commit_is_a_fault_of_the_message(connection, state):
    """An error that a trigger raises at the commit is a failure of the message."""
    with pytest.raises(MessageError, match=r"Cannot write what Deposit .*refused") as caught:
        commit(connection, state)
    if state != "23514":
        assert state in str(caught.value)
        assert "secret" not in str(caught.value)


SURROUNDINGS = ["25006", "40001", "40P01", "42501", "42P01", "53100", "55000", "55P03", "57014"]


@pytest.mark.parametrize("state", [*SURROUNDINGS, "58030", "F0000", "HV000", "XX000"])
def test_an_error_of_the_environment_at_the_commit_is_no_fault_of_the_message(connection, state):
    """An error of the environment at the commit is no failure of the message."""
    with pytest.raises(StoreError):
        commit(connection, state)


def test_an_unknown_error_before_the_commit_is_one_of_the_environment(connection):
    """An unknown error of our own statements before the commit is one of the environment."""
    with pytest.raises(StoreError), transaction(connection, lambda: [MESSAGE]):
        connection.execute("DO $$ BEGIN RAISE 'secret'; END $$")


@pytest.fixture
def public_table(connection):
    """Give a table with the name of the log and the names of its constraints, which is another."""
    connection.execute(
        "CREATE TABLE public.messages ("
        "global_position bigint CONSTRAINT messages_pkey PRIMARY KEY, "
        "id int CONSTRAINT messages_id UNIQUE, stream int CONSTRAINT messages_stream UNIQUE, "
        "n int CONSTRAINT expected_version CHECK (n > 0), "
        "m int CONSTRAINT message_id UNIQUE);"
        "INSERT INTO public.messages VALUES (1, 1, 1, 1, 1)"
    )


OTHERS = {
    "messages_pkey": "(1, 2, 2, 2, 2)",
    "messages_id": "(2, 1, 2, 2, 2)",
    "messages_stream": "(2, 2, 1, 2, 2)",
    "expected_version": "(2, 2, 2, 0, 2)",
    "message_id": "(2, 2, 2, 2, 1)",
}


@pytest.mark.usefixtures("public_table")
@pytest.mark.parametrize("name", list(OTHERS))
def test_a_constraint_of_another_table_is_not_mistaken_for_one_of_the_log(connection, name):
    """A constraint of another table is not mistaken for one of the log, whatever its name."""
    with pytest.raises(RefusedError, match=name), translated():
        connection.execute(f"INSERT INTO public.messages VALUES {OTHERS[name]}")


@pytest.mark.faults
@pytest.mark.usefixtures("public_table")
def test_a_trigger_that_meets_a_duplicate_in_a_table_of_its_own_fails_its_message_alone(
    connection, store, database_url, tmp_path
):
    """A duplicate in a table that a trigger writes to fails only the message that caused it."""
    connection.execute(
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO public.messages VALUES (1); RETURN NULL; END $$;"
        "CREATE TRIGGER fill AFTER INSERT ON message_store.messages FOR EACH ROW "
        "WHEN (NEW.type = 'Deposited' AND NEW.data->>'depositId' = 'bad') EXECUTE FUNCTION fill()"
    )
    write_two_accounts(store)
    with start(database_url, Poison(tmp_path)) as started:
        dead = started.wait_for("message_dead")
        wait_until_drained(connection, started)
        assert started.stop() == 0
        assert "behind the log" not in started.log
    assert (dead["reason"], dead["attempts"]) == ("write", 3)
    assert event_types(store, "456") == ["Opened", "Deposited"]


@pytest.mark.faults
def test_one_message_that_is_refused_at_the_commit_does_not_stop_the_others(
    connection, store, database_url, tmp_path
):
    """A message that a constraint trigger refuses becomes a dead letter; others are handled."""
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE 'secret %', NEW.data; END $$;"
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON message_store.messages "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "WHEN (NEW.type = 'Deposited' AND NEW.data->>'depositId' = 'bad') "
        "EXECUTE FUNCTION refuse()"
    )
    write_two_accounts(store)
    with start(database_url, Poison(tmp_path)) as started:
        dead = started.wait_for("message_dead")
        wait_until_drained(connection, started)
        assert started.stop() == 0
        assert "database_unavailable" not in started.log
        assert "secret" not in started.log
    assert (dead["reason"], dead["attempts"]) == ("write", 3)
    assert letters(connection) == [("bad", "dead", "write", 3), ("d3", "parked", "parked", 0)]
    assert event_types(store, "456") == ["Opened", "Deposited"]
