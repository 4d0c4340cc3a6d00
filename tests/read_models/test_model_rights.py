"""The rights that read models need beside those of a consumer or an auditor."""

import json

import pytest

import consumers
from reservation import MessageStore
from reservation.errors import MissingRightError
from tests.apps.occupancy import book, nights, one_by_one
from tests.apps.typed_rows import SEEN, Seen
from tests.apps.typed_rows import model as typed
from tests.store.builders import as_login, granted, new_role, run
from tests.support.commands import invoke_cli
from tests.support.read_models import no_differences, verify, verify_by

__all__ = ["granted", "new_role"]  # fixtures


def test_a_consumer_makes_its_tables_where_it_may_create_schemas(
    connection, database_url, store, granted
):
    """Otherwise the owner of the database creates them, and the error says how."""
    role = granted("consumer")
    login = as_login(connection, database_url, role)
    book(store, 1)
    for schema in ("occupancy_1", "occupancy"):
        with pytest.raises(MissingRightError, match=f"CREATE SCHEMA {schema} AUTHORIZATION {role}"):
            consumers.drain(one_by_one(), login)
        run(connection, f"CREATE SCHEMA {schema} AUTHORIZATION {{}}", role)
    consumers.drain(one_by_one(), login)
    assert nights(connection) == {1: 1}
    with MessageStore.open(login) as opened:
        assert one_by_one().wait_for(opened, 1, timeout=0)


def test_verifying_needs_a_schema_too(connection, database_url, store, granted):
    """It is left empty."""
    role = granted("consumer")
    login = as_login(connection, database_url, role)
    for schema in ("occupancy_1", "occupancy"):
        run(connection, f"CREATE SCHEMA {schema} AUTHORIZATION {{}}", role)
    book(store, 1)
    consumers.drain(one_by_one(), login)
    run(connection, "SET SESSION AUTHORIZATION {}", role)
    with pytest.raises(MissingRightError, match="CREATE SCHEMA occupancy_1_verify"):
        verify(connection, one_by_one())
    connection.execute("RESET SESSION AUTHORIZATION")
    run(connection, "CREATE SCHEMA occupancy_1_verify AUTHORIZATION {}", role)
    run(connection, "SET SESSION AUTHORIZATION {}", role)
    assert verify(connection, one_by_one()).is_proved


def test_a_schema_that_a_role_cannot_create_again_is_emptied(
    connection, database_url, store, granted
):
    """Of tables with partitions, types and whatever else a version has; it serves the next time."""
    role = granted("consumer")
    login = as_login(connection, database_url, role)
    for schema in ("typed_1", "typed", "typed_1_verify"):
        run(connection, f"CREATE SCHEMA {schema} AUTHORIZATION {{}}", role)
    store.write(Seen(1), f"{SEEN}-1")
    consumers.drain(typed, login)
    for _ in range(2):
        assert verify_by(no_differences, login, typed).is_proved
        left = "SELECT FROM pg_depend WHERE refobjid = 'typed_1_verify'::regnamespace"
        assert connection.execute(left).fetchall() == []


def test_an_auditor_lists_versions_and_a_sender_cannot_wait(
    connection, database_url, store, granted
):
    """Positions are nothing that a sender may read."""
    book(store, 1)
    consumers.drain(one_by_one(), database_url)
    auditor = as_login(connection, database_url, granted("auditor"))
    done = invoke_cli("models", "list", "--json", "--database-url", auditor)
    assert json.loads(done.stdout)["versions"][0]["shown"] is True
    sender = as_login(connection, database_url, granted("sender", "booking"))
    with MessageStore.open(sender) as opened, pytest.raises(MissingRightError):
        one_by_one().wait_for(opened, 1, timeout=0)
