"""Positions, leases and rates while somebody holds an old snapshot, which keeps what they were."""

from contextlib import contextmanager

import pytest
from psycopg import IsolationLevel

from bank import account
from consumers.group.compatibility import living_differences
from consumers.group.inspection.stored_positions import is_drained
from consumers.group.positions import HeldPartition, HeldPartitions
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.postgres.connection import connect
from reservation.postgres.exchange.exchange import exchange
from tests.support.controls import deposit, open_
from tests.support.large_log import run

CATEGORY, COMMANDS = "account:command", "account:command-1"
SIZE = 3
LEASE = "3 seconds"

# Each move and renewal is a transaction of its own, as of a consumer with batches of one.
UPDATES = """
DO $$
DECLARE
  ids uuid[] := (SELECT array_agg(id ORDER BY global_position) FROM message_store.messages);
BEGIN
  FOR n IN 1 .. {moves} LOOP
    PERFORM reservation.move_positions(
      'account', 'account:command', '{{0,1,2}}', '{{1,1,1}}', 1, 2, ids[2], false);
    COMMIT;
    PERFORM reservation.move_positions(
      'account', 'account:command', '{{0,1,2}}', '{{1,1,1}}', 2, 1, ids[1], false);
    COMMIT;
    ASSERT reservation.renew_lease({member}, '1 hour');
    COMMIT;
  END LOOP;
END $$
"""


CALLS = """
DO $$
BEGIN
  FOR n IN 1 .. {calls} LOOP
    ASSERT (SELECT taken FROM {take}) = 1;
    COMMIT;
  END LOOP;
END $$
"""
TAKE = "reservation.take_calls('account', 'account:command', 'Deposit', 0.0001, 1, 1, 100.0, true)"


@pytest.fixture
def database_url(make_database, template):
    """Give a database whose files hold nothing of other tests."""
    return make_database(template)


@contextmanager
def old_snapshot(database_url):
    """Hold a snapshot of the database, as a backup does."""
    with connect(database_url) as holder:
        holder.isolation_level = IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT FROM reservation.groups")
        yield


def join(connection):
    """Become a member of a group of three partitions, and take all of them."""
    ((member,),) = connection.execute(
        "SELECT member FROM reservation.join_group(  'account', %s, %s, 'here:1', 'w', %s, NULL)",
        [CATEGORY, SIZE, LEASE],
    ).fetchall()
    return member


def rebalance(connection, member):
    """Return which partitions a member holds after its turn."""
    ((held,),) = connection.execute(
        "SELECT held FROM reservation.rebalance('account', %s, %s, %s)", [CATEGORY, member, LEASE]
    ).fetchall()
    return held


def statements(store, member):
    """Return all that a consumer asks of its positions and its lease, by name."""
    positions = HeldPartitions(
        "account", CATEGORY, SIZE, [HeldPartition(n, 1, 1) for n in range(SIZE)]
    )
    _, message = store.read_category(CATEGORY)
    return {
        "move": lambda c: exchange(c, [positions.advance(positions.next(), 2, message.id)]),
        "attempt": lambda c: positions.attempt(c, message),
        "take back": lambda c: positions.uncount_attempt(c, message),
        "hold": lambda c: positions.lock(c, range(SIZE)),
        "drained": lambda c: is_drained(c, "account", CATEGORY),
        "renew": lambda c: c.execute("SELECT reservation.renew_lease(%s, %s)", [member, LEASE]),
        "turn": lambda c: rebalance(c, member),
        "living": lambda c: living_differences(c, "account", ProcessDeclaration.of(account)),
        "join": join,
    }


# Pages of tables and indexes. 10,000 moves of three partitions fill 370, and the heartbeats 32.
MOST_PAGES = {
    "move": 70,
    "attempt": 20,
    "take back": 20,
    "hold": 75,
    "drained": 30,
    "renew": 20,
    "turn": 120,
    "living": 10,
    "join": 65,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("moves", [10_000, 100_000])
def test_no_statement_reads_more_pages_after_many_moves(connection, store, database_url, moves):
    """Every version of the rows is kept, and none but the last few is read."""
    store.write([open_(), deposit()], COMMANDS)
    member = join(connection)
    assert rebalance(connection, member) == [0, 1, 2]
    connection.execute("VACUUM ANALYZE")  # the planner knows that the tables are small
    connection.execute(
        "UPDATE reservation.moves SET position = 1, message_id = m.id "
        "FROM message_store.messages m WHERE m.global_position = 1"
    )
    with old_snapshot(database_url):
        connection.execute("SET synchronous_commit = off")
        connection.execute(UPDATES.format(moves=moves // 2, member=member))
        ((moved, renewed),) = connection.execute(
            "SELECT pg_relation_size('reservation.moves') / 8192,"
            "       pg_relation_size('reservation.heartbeats') / 8192"
        ).fetchall()
        assert moved > moves / 50
        assert renewed > moves / 400
        read = {}
        for name, statement in statements(store, member).items():
            run(connection, statement)
            read[name] = run(connection, statement).buffers
    assert read.keys() == MOST_PAGES.keys()
    assert {name: pages for name, pages in read.items() if pages > MOST_PAGES[name]} == {}


@pytest.mark.timeout(600)
def test_a_call_of_a_rate_reads_no_more_pages_after_many_calls(connection, database_url):
    """The row that counts is found from the newest end, whatever is kept of those before it."""
    connection.execute("VACUUM ANALYZE")
    with old_snapshot(database_url):
        connection.execute("SET synchronous_commit = off")
        connection.execute(CALLS.format(calls=20_000, take=TAKE))
        ((size,),) = connection.execute(
            "SELECT pg_relation_size('reservation.rates') / 8192"
        ).fetchall()
        assert size > 100
        run(connection, lambda c: c.execute(f"SELECT * FROM {TAKE}"))
        assert run(connection, lambda c: c.execute(f"SELECT * FROM {TAKE}")).buffers < 30
