"""The lease of a member is renewed while a block takes long, and only then."""

import threading
import time

import pytest

from consumers.group import heartbeat as module
from consumers.group.heartbeat import Heartbeat
from reservation import install
from reservation.postgres.connection import connect
from tests.processes import PATIENCE
from tests.servers import OwnServer

LEASE = 60.0


@pytest.fixture
def member(connection):
    """Return the id of a member whose lease has expired."""
    return join(connection)


def join(connection):
    ((member,),) = connection.execute(
        "INSERT INTO reservation.members (consumer, category, process, expires_at)"
        " VALUES ('purse', 'purse:command', 'here:1', now() - interval '1 day') RETURNING member"
    ).fetchall()
    return member


@pytest.fixture
def heartbeat(database_url, member, monkeypatch):
    """Return a heartbeat of that member, a hundred times as frequent as usual."""
    monkeypatch.setattr(module, "INTERVAL", module.INTERVAL / 100)
    heartbeat = Heartbeat(database_url, "reservation test", LEASE)
    heartbeat.member = member
    yield heartbeat
    heartbeat.close()
    wait_for(lambda: not threads())


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def is_renewed(connection, member):
    query = "SELECT expires_at > now() FROM reservation.leases WHERE member = %s"
    return connection.execute(query, [member]).fetchone() == (True,)


def expire(connection):
    connection.execute("UPDATE reservation.leases SET expires_at = now() - interval '1 day'")


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_lease_is_renewed_while_a_block_takes_long(connection, heartbeat, member):
    """The lease is renewed again and again while a block takes long."""
    with heartbeat:
        wait_for(lambda: is_renewed(connection, member))
        expire(connection)
        wait_for(lambda: is_renewed(connection, member))
    query = "SELECT expires_at - now() < make_interval(secs => %s) FROM reservation.leases"
    assert connection.execute(query, [LEASE]).fetchone() == (True,)


def test_a_beat_waits_for_no_standby(server_folder, monkeypatch):
    """A lease is renewed, and others see it, while a standby that commits wait for is away."""
    monkeypatch.setattr(module, "INTERVAL", module.INTERVAL / 100)
    server = OwnServer(server_folder / "postgres")
    try:
        with connect(server.address, autocommit=True) as connection:
            install(connection)
            member = join(connection)
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            connection.execute("SELECT pg_reload_conf()")
            show = "SHOW synchronous_standby_names"
            wait_for(lambda: connection.execute(show).fetchone() == ("nobody",))
            heartbeat = Heartbeat(server.address, "reservation test", LEASE)
            heartbeat.member = member
            with heartbeat:
                wait_for(lambda: is_renewed(connection, member))
            heartbeat.close()
            wait_for(lambda: not threads())
    finally:
        server.close()


def test_a_short_block_opens_no_connection(heartbeat, member, connection, monkeypatch):
    """A short block opens no connection."""
    monkeypatch.setattr(module, "INTERVAL", PATIENCE)
    for _ in range(100):
        with heartbeat:
            pass
    assert heartbeat._connection is None
    assert not is_renewed(connection, member)


def test_short_blocks_do_not_wake_the_thread(heartbeat, monkeypatch):
    """Of many short blocks one at most wakes the thread, which would delay what they do."""
    monkeypatch.setattr(module, "INTERVAL", PATIENCE)
    woken = []
    notify = heartbeat._changed.notify
    monkeypatch.setattr(heartbeat._changed, "notify", lambda: woken.append(None) or notify())
    for _ in range(100):
        with heartbeat:
            time.sleep(0)  # lets the thread run
    assert len(woken) <= 1


def test_a_block_after_a_long_rest_is_found(connection, heartbeat, member):
    """The thread that rests because there was no block renews the lease in the next long one."""
    with heartbeat:
        pass
    wait_for(lambda: heartbeat._asleep)
    with heartbeat:
        wait_for(lambda: is_renewed(connection, member))


def test_one_thread_serves_all_blocks(heartbeat):
    """One thread, started by the first block, serves all blocks."""
    assert threads() == []
    for _ in range(3):
        with heartbeat:
            assert len(threads()) == 1


def test_a_connection_that_is_lost_is_opened_again(connection, heartbeat, member):
    """A lost connection is opened again at the next heartbeat."""
    with heartbeat:
        wait_for(lambda: is_renewed(connection, member))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'reservation test' AND datname = current_database()"
        )
        expire(connection)
        wait_for(lambda: is_renewed(connection, member))


def test_an_unavailable_database_does_not_end_the_thread(database_url, member, monkeypatch):
    """The thread survives an unavailable database, while the lease expires."""
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    tried = threading.Event()

    def refuse(*_, **__):
        tried.set()
        raise OSError

    monkeypatch.setattr(module, "connect", refuse)
    heartbeat = Heartbeat(database_url, "reservation test", LEASE)
    heartbeat.member = member
    with heartbeat:
        for _ in range(3):
            assert tried.wait(PATIENCE)
            tried.clear()
    heartbeat.close()
    wait_for(lambda: not threads())


def test_closing_ends_the_thread_and_its_connection(connection, heartbeat, member):
    """Closing ends the thread and its connection, also within a block."""
    with heartbeat:
        wait_for(lambda: is_renewed(connection, member))
        heartbeat.close()
        wait_for(lambda: not threads())
    assert heartbeat._connection is None
