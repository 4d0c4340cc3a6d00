"""One connection on which several readers of a process are notified, and one that renews leases."""

import threading
import time

import pytest
from psycopg import connect

from consumers.group.heartbeat import INTERVAL, Heartbeat
from consumers.runtime.shared_listening import SharedListening
from reservation import Notices
from reservation.errors import StoreError
from tests.support.consuming import until

NAME = "reservation test shared"
# Long enough that a test which has to wait for it fails.
NEVER = 120.0


def connections(connection, name=NAME):
    """Return the processes of the server that have the name."""
    return [
        pid
        for (pid,) in connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name]
        )
    ]


def write(connection, category):
    connection.execute(
        "INSERT INTO message_store.messages (stream_name, position, type)"
        " SELECT %s || gen_random_uuid(), 0, 'T'",
        [f"{category}-"],
    )


class Reader:
    """A reader in a thread of its own, which notes what its waits return."""

    def __init__(self, listening, url, category):
        self._connection = connect(url, autocommit=True)
        self.notices = Notices(self._connection, url, category, listening=listening)
        self.waits, self.over, self._counted = [], False, 1
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self.waits == [True])  # it asks, and returns at once

    def _run(self):
        while not self.over:
            self.waits.append(self.notices.wait(NEVER))

    def was_woken(self):
        """Return whether a wait has ended that was not counted."""
        self._counted += (ended := len(self.waits) > self._counted)
        return ended

    def end(self, connection, category):
        """Wake it up for the last time."""
        self.over = True
        before = len(self.waits)
        write(connection, category)
        until(lambda: len(self.waits) > before or not self._thread.is_alive())
        self._thread.join()
        self.notices.close()
        self._connection.close()


@pytest.fixture
def readers(connection, database_url):
    """Give the readers of two categories, by category."""
    listening = SharedListening(database_url, NAME)
    readers = {name: Reader(listening, database_url, name) for name in ("left", "right")}
    yield readers
    for name, reader in readers.items():
        reader.end(connection, name)
    until(lambda: connections(connection) == [])


def test_each_reader_is_woken_by_its_own_category(readers, connection):
    """All on one connection."""
    assert len(connections(connection)) == 1
    for _ in range(3):
        write(connection, "left")
        until(readers["left"].was_woken)
    assert readers["right"].waits == [True]
    write(connection, "right")
    until(lambda: readers["right"].waits == [True, True])


def test_readers_of_a_connection_that_is_lost_look_and_go_on_with_another(readers, connection):
    """None waits for notices that cannot come."""
    (lost,) = connections(connection)
    connection.execute("SELECT pg_terminate_backend(%s)", [lost])
    for reader in readers.values():
        until(lambda reader=reader: len(reader.waits) >= 2)
    until(lambda: len(connections(connection)) == 1 and connections(connection) != [lost])
    for name, reader in readers.items():
        before = len(reader.waits)
        write(connection, name)
        until(lambda reader=reader, before=before: len(reader.waits) > before)


def test_a_reader_that_ends_leaves_the_others_their_notices(readers, connection):
    """And its own locks are released."""
    locks = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2"
        " AND mode = 'ShareLock' AND classid::bigint = -882341236 & 4294967295"
    )
    assert connection.execute(locks).fetchone() == (32,)
    readers.pop("left").end(connection, "left")
    assert connection.execute(locks).fetchone() == (16,)
    write(connection, "right")
    until(lambda: readers["right"].waits == [True, True])


def test_one_connection_renews_all_leases_of_blocks_that_take_long(connection, database_url):
    """What else is done at a beat, and fails, keeps none from being renewed."""
    heartbeat = Heartbeat(database_url, NAME, lease=60.0)
    leases = [heartbeat.lease() for _ in range(3)]
    for member, lease in enumerate(leases, 1):
        connection.execute(
            "WITH joined AS (INSERT INTO reservation.members (consumer, category, process, worker)"
            " VALUES ('left', 'left', 'here', 'one') RETURNING member)"
            " INSERT INTO reservation.heartbeats (member, expires_at)"
            " SELECT member, now() FROM joined"
        )
        lease.member = member

    def fail(_):
        raise StoreError

    leases[0].besides = fail
    alive = (
        "SELECT array_agg(DISTINCT member ORDER BY member) FROM reservation.heartbeats"
        " WHERE expires_at > now() + interval '30 s'"
    )
    try:
        with leases[0], leases[1]:
            until(lambda: connection.execute(alive).fetchone() == ([1, 2],))
            assert len(connections(connection)) == 1
            began = time.monotonic()
            renewed = leases[1].renewed
            until(lambda: leases[1].renewed > renewed)
            assert time.monotonic() - began < INTERVAL + 5
    finally:
        for lease in leases:
            lease.close()
    until(lambda: connections(connection) == [])
