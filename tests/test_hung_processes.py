"""A process that hangs in a transaction keeps nobody waiting once its lease has expired."""

import pytest

from consumers.group.positions import HeldPartition, Positions
from reservation import MessageStore
from reservation.postgres.connection import connect
from reservation.postgres.exchange.keeping_connection import KeepingConnection
from reservation.postgres.exchange.pipeline import Sending
from tests.controls import COMMANDS, deposit, open_

CATEGORY = "account:command"
LEASE = "1 minute"


@pytest.fixture
def hung(database_url):
    """Give the connection of the process that hangs."""
    with connect(database_url, autocommit=True, kind=KeepingConnection) as opened:
        yield opened


def join(connection):
    """Join the group; return the member."""
    ((member,),) = connection.execute(
        "SELECT member FROM reservation.join_group("
        "  'account', %s, 1, 'here:1', NULL, %s, NULL::bigint)",
        [CATEGORY, LEASE],
    ).fetchall()
    return member


def take_part(connection, member):
    """Return what the member holds after its turn."""
    rows = connection.execute(
        "SELECT held, positions, epochs FROM reservation.take_part('account', %s, %s, %s)",
        [CATEGORY, member, LEASE],
    ).fetchall()
    return list(zip(*rows[0], strict=True))


def expire(connection, member):
    """Let the lease of a member expire."""
    connection.execute(
        "UPDATE reservation.leases SET expires_at = '-infinity' WHERE member = %s", [member]
    )


def send_half_a_batch(connection, held):
    """Send a batch as far as a process has come that is paused while libpq sends the rest."""
    positions = Positions("account", CATEGORY, 1, [HeldPartition(*one) for one in held])
    moving = positions.advance(connection, positions.next(), 1, or_fail=True)
    sending = Sending(connection, moving)
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(b"BEGIN", None)
    pgconn.send_query_params(
        sending.query, sending.values, param_types=sending.types, param_formats=sending.formats
    )
    pgconn.send_flush_request()
    assert pgconn.flush() == 0


def lock_category(connection, held):
    """Do what a run begins with that holds off other writers, and no more."""
    del held
    connection.execute("BEGIN")
    MessageStore(connection).lock_categories([COMMANDS])


def wait_until_it_hangs(connection, pid):
    """Wait until the server has done all that the session sent, and got nothing for a while."""
    query = (
        "SELECT wait_event = 'ClientRead' AND state_change < clock_timestamp() - interval '1.1 s' "
        "FROM pg_stat_activity WHERE pid = %s"
    )
    while connection.execute(query, [pid]).fetchone() != (True,):
        pass


def take_over(connection, taker, pid):
    """Take what another member held, whose session is ended."""
    while take_part(connection, taker) != [(0, 0, 2)]:
        pass
    while connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall():
        pass


@pytest.mark.parametrize("hang", [send_half_a_batch, lock_category])
def test_a_process_that_hangs_in_a_transaction_loses_its_session(connection, store, hung, hang):
    """Who finds it dead ends its session, whatever it had sent until then."""
    store.write([open_()], COMMANDS)
    former, pid = join(hung), hung.info.backend_pid
    hang(hung, take_part(hung, former))
    wait_until_it_hangs(connection, pid)
    taker = join(connection)
    assert take_part(connection, taker) == []
    expire(connection, former)
    take_over(connection, taker, pid)
    store.write([deposit()], COMMANDS)
    hung.close()


def test_a_process_that_hangs_after_it_was_found_dead_loses_its_session(connection, store, hung):
    """Who finds its partition locked looks again at each turn."""
    store.write([open_()], COMMANDS)
    former, pid = join(hung), hung.info.backend_pid
    send_half_a_batch(hung, take_part(hung, former))
    taker = join(connection)
    expire(connection, former)
    assert take_part(connection, taker) == []
    assert connection.execute("SELECT member FROM reservation.members").fetchall() == [(taker,)]
    take_over(connection, taker, pid)
    hung.close()


def test_a_process_that_hangs_between_two_transactions_keeps_its_session(connection, hung):
    """It holds nothing that others wait for, and learns that it was taken for dead."""
    former = join(hung)
    take_part(hung, former)
    taker = join(connection)
    wait_until_it_hangs(connection, hung.info.backend_pid)
    expire(connection, former)
    assert take_part(connection, taker) == [(0, 0, 2)]
    assert hung.execute(
        "SELECT count(*) FROM reservation.take_part('account', %s, %s, %s)",
        [CATEGORY, former, LEASE],
    ).fetchall() == [(0,)]


@pytest.mark.parametrize("sees", [True, False])
def test_a_session_that_the_role_may_not_end_is_left(connection, database_url, hung, sees):
    """What is not locked is taken over all the same."""
    former = join(hung)
    assert take_part(hung, former) == [(0, 0, 1)]
    hung.execute("BEGIN")
    wait_until_it_hangs(connection, hung.info.backend_pid)
    expire(connection, former)
    connection.execute("CREATE ROLE taker; GRANT message_store TO taker")
    try:
        if sees:
            connection.execute("GRANT pg_read_all_stats TO taker")
        with connect(database_url, autocommit=True) as other:
            other.execute("SET ROLE taker")
            assert take_part(other, join(other)) == [(0, 0, 2)]
        hung.execute("COMMIT")
    finally:
        connection.execute("DROP ROLE taker")
