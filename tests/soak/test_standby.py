"""Stores on a standby: of Message DB, and ours."""

import json
from contextlib import closing

import pytest
from psycopg import connect
from psycopg.types.json import Jsonb

from reservation import MessageStore
from reservation.admin import install
from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.message_db import imitate
from tests.support.servers import OwnServer, Standby
from tests.support.started import run_cli


def reconcile(address, *arguments, status):
    """Run the command on a store, and return its report."""
    done = run_cli(
        "reconcile",
        "bank:account",
        "--json",
        *arguments,
        env={"RESERVATION_DATABASE_URL": address},
    )
    assert done.returncode == status, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def write(connection, stream_name, type_, data):
    """Write a message with Message DB's function."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s)",
        [stream_name, type_, Jsonb(data)],
    )


@pytest.fixture
def primary(server_folder):
    """Give a server on which nothing else runs."""
    server = OwnServer(server_folder / "primary")
    yield server
    server.close()


@pytest.fixture
def standby(primary, server_folder):
    """Give a function that makes a hot standby of it, and gives its address."""
    with Standby(primary, server_folder) as made:

        def make():
            made.start()
            return made.address

        yield make


def test_a_standby_of_a_store_that_is_not_ours(primary, standby):
    """On a standby of Message DB, Eventide's positions or else ages tell what was read."""
    with closing(connect(primary.address, autocommit=True)) as connection:
        imitate(connection)
        # Message DB's functions call each other by their names alone.
        connection.execute("SET search_path = message_store")
        for name in ("lost", "early"):
            write(connection, COMMANDS, "Deposit", {"accountId": "123", "depositId": name})
        address = standby()
        (of_age,) = reconcile(address, "--grace", "1d", status=0)["categories"]
        assert (of_age["pending"], of_age["missing"]) == (2, 0)
        (of_age,) = reconcile(address, "--grace", "0s", status=1)["categories"]
        assert (of_age["pending"], of_age["missing"]) == (0, 2)
        (position,) = connection.execute(
            "SELECT min(global_position) FROM message_store.messages"
        ).fetchone()
        write(connection, "account:command+position", "Recorded", {"position": position})
        with closing(connect(address, autocommit=True)) as replica:
            while not replica.execute(
                "SELECT 1 FROM message_store.messages WHERE type = 'Recorded'"
            ).fetchone():
                pass
        (counts,) = reconcile(address, status=1)["categories"]
        assert (counts["pending"], counts["missing"]) == (1, 1)


def test_an_own_store_can_be_read_on_a_standby(primary, standby):
    """On a standby of our store positions and dead letters are read too."""
    with closing(connect(primary.address, autocommit=True)) as connection:
        install(connection)
        MessageStore(connection).write([open_(), deposit("d1"), deposit("d1")], COMMANDS)
        drain(connection)
        (counts,) = reconcile(standby(), status=0)["categories"]
    assert (counts["reserved"], counts["duplicates"], counts["pending"]) == (1, 1, 0)
