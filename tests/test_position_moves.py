"""One row for each partition, which only its holder moves, whatever happens at the same time.

Each test runs with rows that are about to get a generation, and with others, because that is when
the key of a row changes under those who wait for its lock.
"""

import contextlib
import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg import errors as pg

from consumers.group.positions import HeldPartition, Positions
from reservation import attach, detach, install
from reservation.errors import ForeignPositionError, PositionLostError
from reservation.postgres.connection import connect
from reservation.postgres.exchange.exchange import exchange
from reservation.store.schema.scripts import SCHEMA_VERSION
from tests.bank import address
from tests.chance import seeds
from tests.controls import deposit, open_
from tests.processes import PATIENCE

CATEGORY, COMMANDS = "account:command", "account:command-1"
LEASE = "1 minute"
# Updates of a row before the test. The 32nd begins a generation, and the 64th the next.
UPDATES = [0, 15, 29, 30, 31, 32, 62, 63]

updated = pytest.mark.parametrize("updates", UPDATES)


@pytest.fixture
def other(database_url):
    """Give a second connection, in autocommit."""
    with connect(database_url, autocommit=True) as opened:
        yield opened


def move(positions, connection, part, to):
    """Move positions, in the transaction at hand."""
    exchange(connection, [positions.advance(connection, part, to)])


def join(connection, former=None, partitions=1):
    """Join the group; return the member."""
    ((member,),) = connection.execute(
        "SELECT member FROM reservation.join_group("
        "  'account', %s, %s, 'here:1', NULL, %s, %s::bigint)",
        [CATEGORY, partitions, LEASE, former],
    ).fetchall()
    return member


def take_part(connection, member):
    """Return what the member holds after its turn; None if it is no member any more."""
    found = connection.execute(
        "SELECT held, positions, epochs FROM reservation.take_part('account', %s, %s, %s)",
        [CATEGORY, member, LEASE],
    ).fetchall()
    return list(zip(*found[0], strict=True)) if found else None


def holding(connection, member, size=1):
    """Return the positions that the member holds after its turn."""
    held = [HeldPartition(*one) for one in take_part(connection, member)]
    return Positions("account", CATEGORY, size, held)


def expire(connection, member):
    """Let the lease of a member expire, as if its process were paused."""
    connection.execute(
        "UPDATE reservation.leases SET expires_at = now() - interval '1 second' WHERE member = %s",
        [member],
    )


def touch(connection, updates):
    """Update the rows of all partitions and members, and change nothing else in them."""
    for _ in range(updates):
        connection.execute("UPDATE reservation.positions SET attempts = attempts")
        connection.execute("UPDATE reservation.leases SET expires_at = expires_at")


def rows(connection):
    """Return the position, epoch and holder of each row that there is."""
    return connection.execute(
        "SELECT position, epoch, holder FROM reservation.positions ORDER BY category, partition"
    ).fetchall()


@contextlib.contextmanager
def waiting(connection, call, *arguments):
    """Let another session wait for a lock inside a block; give what it will have returned."""
    with ThreadPoolExecutor(1) as pool:
        future: Future = pool.submit(call, connection, *arguments)
        with connect(address(connection), autocommit=True) as watching:
            deadline = time.monotonic() + PATIENCE
            while not watching.execute(
                "SELECT cardinality(pg_blocking_pids(%s)) > 0", [connection.info.backend_pid]
            ).fetchone()[0]:
                assert not future.done(), future.result()
                assert time.monotonic() < deadline
                time.sleep(0.005)
        yield future
        future.result(timeout=PATIENCE)


@updated
def test_a_partition_is_not_taken_while_its_former_holder_commits(
    connection, other, store, updates
):
    """The taker passes the row over, gets it at its next turn, and begins behind the commit."""
    connection.execute(  # this is about the row's lock, however long the transaction idles
        "CREATE OR REPLACE FUNCTION reservation.end_hung_session(member bigint) RETURNS void "
        "LANGUAGE plpgsql AS 'BEGIN END'"
    )
    store.write([open_(), deposit()], COMMANDS)
    former = join(connection)
    positions = holding(connection, former)
    touch(connection, updates)
    with connection.transaction():
        move(positions, connection, positions.next(), 1)
        taker = join(other)
        expire(other, former)
        assert take_part(other, taker) == []
    assert take_part(other, taker) == [(0, 1, 2)]
    assert rows(connection) == [(1, 2, taker)]
    positions.committed(positions.next(), 1)
    with pytest.raises(PositionLostError):
        move(positions, connection, positions.next(), 2)
    assert rows(connection) == [(1, 2, taker)]


@updated
def test_a_holder_that_commits_during_a_takeover_loses(connection, other, store, updates):
    """It waits for the taker, and then moves nothing; if the taker gives up, it goes on."""
    store.write([open_(), deposit()], COMMANDS)
    former = join(connection)
    positions = holding(connection, former)
    touch(connection, updates)
    taker = join(other)
    expire(other, former)

    def advance(mine):
        move(positions, mine, positions.next(), 1)

    with contextlib.ExitStack() as stack, other.transaction() as taking:
        assert take_part(other, taker) == [(0, 0, 2)]
        moved = stack.enter_context(waiting(connection, advance))
        raise psycopg.Rollback(taking)
    assert moved.result() is None
    assert [row[:2] for row in rows(connection)] == [(1, 1)]
    positions.committed(positions.next(), 1)

    def lose(mine):
        with pytest.raises(PositionLostError):
            move(positions, mine, positions.next(), 2)

    with contextlib.ExitStack() as stack, other.transaction():
        assert take_part(other, taker) == [(0, 1, 2)]
        stack.enter_context(waiting(connection, lose))
    assert rows(connection) == [(1, 2, taker)]


@updated
def test_a_process_keeps_what_it_was_just_committing(connection, other, store, updates):
    """It joins again on a new connection while the commit on the lost one is under way."""
    store.write([open_(), deposit()], COMMANDS)
    former = join(connection)
    positions = holding(connection, former)
    touch(connection, updates)
    with contextlib.ExitStack() as stack, connection.transaction():
        move(positions, connection, positions.next(), 2)
        joined = stack.enter_context(waiting(other, join, former))
    (again,) = {joined.result()}
    assert rows(connection) == [(2, 1, again)]
    assert take_part(other, again) == [(0, 2, 1)]


@updated
def test_a_member_that_renews_its_lease_at_the_last_moment_lives(connection, other, store, updates):
    """Who finds it expired, and being renewed, takes nothing."""
    store.write([open_()], COMMANDS)
    member = join(connection)
    assert take_part(connection, member) == [(0, 0, 1)]
    touch(connection, updates)
    taker = join(other)
    expire(connection, member)
    with connection.transaction():
        connection.execute("SELECT reservation.renew_lease(%s, %s)", [member, LEASE])
        assert take_part(other, taker) == []
    assert take_part(other, taker) == []
    assert take_part(connection, member) == [(0, 0, 1)]


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_of_two_that_add_the_partitions_at_once_one_does(connection, other, store, level):
    """The second waits, and adds none; or fails to serialize, and adds none at its next try."""
    connection.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions, first_position) "
        "VALUES ('account', %s, 4, 0)",
        [CATEGORY],
    )

    def join_later(mine):
        with contextlib.suppress(pg.SerializationFailure), mine.transaction():
            return join(mine)
        assert level is IsolationLevel.REPEATABLE_READ
        with mine.transaction():
            return join(mine)

    other.isolation_level = level
    with contextlib.ExitStack() as stack, connection.transaction():
        join(connection)
        # Whatever the first does with them before the second goes on.
        touch(connection, 100)
        stack.enter_context(waiting(other, join_later))
    assert [row[:2] for row in rows(connection)] == [(0, 0)] * 4


@updated
def test_a_second_row_of_a_partition_is_refused(connection, store, updates):
    """Or nothing is inserted, where that is asked for."""
    join(connection)
    touch(connection, updates)
    insert = "INSERT INTO reservation.positions (consumer, category) VALUES ('account', %s)"
    with pytest.raises(pg.UniqueViolation, match="positions_pkey"):
        connection.execute(insert, [CATEGORY])
    connection.execute(f"{insert} ON CONFLICT DO NOTHING", [CATEGORY])
    assert len(rows(connection)) == 1


@updated
def test_a_move_in_another_log_is_refused(connection, store, updates):
    """The message at the position is gone, so the position moves no further."""
    store.write([open_(), deposit()], COMMANDS)
    positions = holding(connection, join(connection))
    move(positions, connection, positions.next(), 1)
    positions.committed(positions.next(), 1)
    touch(connection, updates)
    connection.execute("DELETE FROM message_store.messages WHERE global_position = 1")
    with pytest.raises(ForeignPositionError):
        move(positions, connection, positions.next(), 2)
    assert [row[:2] for row in rows(connection)] == [(1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3))
def test_each_message_is_passed_once_whoever_holds_the_partition(
    connection, database_url, store, seed
):
    """Processes are paused, rolled back and taken for dead; no position is lost or doubled."""
    messages, processes = 150, 4
    store.write([deposit(f"d{n}") for n in range(messages)], COMMANDS)
    connection.execute("CREATE TABLE passed (global_position bigint)")
    failed = []

    def consume(number):
        chance = random.Random(seed * processes + number)
        with connect(database_url, autocommit=True) as mine:
            member = join(mine)
            while not failed:
                held = take_part(mine, member)
                if held is None:
                    member = join(mine, member)
                    continue
                positions = Positions("account", CATEGORY, 1, [HeldPartition(*h) for h in held])
                part = positions.next()
                if part is None:
                    with contextlib.suppress(psycopg.Error):  # two expire one another
                        mine.execute(
                            "UPDATE reservation.leases SET expires_at = '-infinity'"
                            " WHERE member <> %s AND random() < 0.3",
                            [member],
                        )
                    if rows(mine)[0][0] >= messages:
                        return
                    continue
                for _ in range(chance.randrange(50)):
                    to = part.after + 1
                    if to > messages:
                        return
                    try:
                        with mine.transaction() as batch:
                            mine.execute("INSERT INTO passed VALUES (%s)", [to])
                            move(positions, mine, part, to)
                            if chance.random() < 0.2:
                                raise psycopg.Rollback(batch)
                            positions.committed(part, to)
                    except PositionLostError:
                        break
                    part = positions.next()

    def guarded(number):
        try:
            while True:
                with contextlib.suppress(psycopg.OperationalError):  # it hung for a second
                    return consume(number)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failed
    passed = connection.execute("SELECT global_position FROM passed ORDER BY 1").fetchall()
    assert passed == [(n,) for n in range(1, messages + 1)]
    ((position, epoch, _),) = rows(connection)
    assert position == messages
    assert epoch > 2


def test_attaching_again_begins_anew(connection, store):
    """What was detached is gone with its generations and leases."""
    store.write([open_(), deposit()], COMMANDS)
    member = join(connection)
    positions = holding(connection, member)
    move(positions, connection, positions.next(), 2)
    touch(connection, 64)
    connection.execute("SELECT pg_advisory_unlock_all()")
    assert detach(connection).positions == (("account", CATEGORY, 2),)
    assert attach(connection).to_version == SCHEMA_VERSION
    assert rows(connection) == []
    assert take_part(connection, join(connection)) == [(0, 0, 1)]


def test_an_upgrade_keeps_positions_and_members(connection, store):
    """Those of version 25 keep their holders, epochs and leases, and go on from there."""
    store.write([open_(), deposit()], COMMANDS)
    member = join(connection, partitions=3)
    assert len(take_part(connection, member)) == 3
    connection.execute("UPDATE reservation.positions SET position = 1 WHERE partition = 1")
    before = rows(connection)
    connection.execute(
        "DROP TABLE reservation.leases;"
        "DROP FUNCTION reservation.count_update, reservation.refuse_second_position,"
        "  reservation.store_lease, reservation.positions_of CASCADE;"
        "ALTER TABLE reservation.positions DROP COLUMN updates, DROP COLUMN generation,"
        "  ADD PRIMARY KEY (consumer, category, partition);"
        "DELETE FROM reservation.upgrades WHERE version > 25;"
        "DELETE FROM reservation.versions WHERE version > 25"
    )
    installed = install(connection)
    assert (installed.from_version, installed.to_version) == (25, SCHEMA_VERSION)
    assert rows(connection) == before
    assert take_part(connection, member) == [(0, 0, 1), (1, 1, 1), (2, 0, 1)]
