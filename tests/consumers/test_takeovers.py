"""Members of a group whose leases expire: who takes their partitions over, and what is lost."""

import pytest
from psycopg import conninfo

from bank import account
from reservation.admin import attach, detach
from tests.apps.bank import RESERVED, broken, drain, event_types
from tests.apps.holding import HELD, bank
from tests.consumers.builders import hold_up_commits
from tests.support.consuming import hosted, logged, until
from tests.support.controls import COMMANDS, deposit, open_

CATEGORY = "account:command"
ALL = ["Opened", "Deposited", "Deposited"]


@pytest.fixture
def log():
    """Give what consumers of this process log."""
    with logged() as found:
        yield found


def let_expire(connection):
    """Let no renewal help the leases of those who are members now."""
    ((last,),) = connection.execute("SELECT max(member) FROM reservation.members").fetchall()
    connection.execute(
        "CREATE FUNCTION expire() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN NEW.expires_at := '-infinity'; RETURN NEW; END $$; "
        "CREATE TRIGGER expire BEFORE INSERT OR UPDATE ON reservation.heartbeats "
        f"FOR EACH ROW WHEN (NEW.member <= {last}) EXECUTE FUNCTION expire(); "
        "UPDATE reservation.heartbeats SET expires_at = now()"
    )


def holders(connection, category):
    """Return the epoch and the holder of each partition of a category."""
    return connection.execute(
        "SELECT epoch, holder FROM reservation.positions WHERE category = %s ORDER BY partition",
        [category],
    ).fetchall()


def sessions(connection, category):
    """Return the server's processes for the consumers of a category."""
    rows = connection.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = %s ORDER BY backend_start",
        [f"reservation account {category}"],
    ).fetchall()
    return [pid for (pid,) in rows]


def test_a_batch_that_takes_longer_than_the_lease_keeps_its_partitions(
    connection, store, database_url, log
):
    """The lease is renewed while a handler is at work, on another connection if one is lost."""
    renewed = (
        "SELECT bool_and(l.expires_at > now()) FROM reservation.positions p "
        "JOIN reservation.heartbeats l ON l.member = p.holder WHERE p.category = %s"
    )

    def outlive(command, context):
        if command.deposit_id != HELD:
            return
        before = set(sessions(connection, RESERVED))
        for _ in range(2):
            connection.execute("UPDATE reservation.heartbeats SET expires_at = now()")
            until(lambda: connection.execute(renewed, [RESERVED]).fetchone() == (True,))
            for renewing in set(sessions(connection, RESERVED)) - before:
                connection.execute("SELECT pg_terminate_backend(%s, 60000)", [renewing])

    store.write([open_(), deposit(), deposit(HELD)], COMMANDS)
    with hosted(bank(outlive), database_url):
        until(lambda: event_types(store) == ALL)
    assert [epoch for epoch, _ in holders(connection, RESERVED)] == [1]
    for event in ("taken_for_dead", "partitions_lost", "database_unavailable"):
        assert log.named(event) == []
    assert broken(connection) == {}


# Whether a session has sent nothing for so long that it is taken to hang.
SILENT = """
SELECT wait_event = 'ClientRead' AND state_change < clock_timestamp() - interval '1.1 s'
FROM pg_stat_activity WHERE pid = %s
"""


@pytest.mark.parametrize(
    ("role", "sees"), [(None, True), ("message_store", True), ("message_store", False)]
)
def test_a_process_that_hangs_in_a_transaction_loses_its_partitions(
    connection, store, database_url, log, role, sees
):
    """Who finds it dead ends its session if it may, and does its work; it goes on as a member."""
    hanging, ended = [], []

    def hang(command, context):
        if command.deposit_id == HELD:
            context.connection.execute("SELECT 1")
            hanging.append(sessions(connection, RESERVED)[0])
            until(lambda: event_types(store) == ALL)
            ended.append(hanging[0] not in sessions(connection, RESERVED))

    address = database_url
    if role is not None:
        address = conninfo.make_conninfo(database_url, options=f"-c role={role}")
    if sees and role is not None:
        connection.execute(f"GRANT pg_read_all_stats TO {role}")
    store.write([open_(), deposit(), deposit(HELD)], COMMANDS)
    try:
        with hosted(bank(hang), database_url):
            until(lambda: hanging and connection.execute(SILENT, hanging).fetchone() == (True,))
            let_expire(connection)
            with hosted(account, address):
                until(lambda: ended)
                until(lambda: len(log.named("consumer_started", category=RESERVED)) >= 2)
    finally:
        if sees and role is not None:
            connection.execute(f"REVOKE pg_read_all_stats FROM {role}")
    assert ended == [role is None]
    assert event_types(store) == ALL
    assert broken(connection) == {}


def test_a_process_that_hangs_between_two_transactions_keeps_its_session(
    connection, store, database_url, log
):
    """It holds nothing that others wait for, and learns that it was taken for dead."""
    with hosted(account, database_url):
        until(lambda: len(log.named("consumer_started")) == 2)
        let_expire(connection)
        with hosted(account, database_url):
            log.wait_for("taken_for_dead", category=CATEGORY)
        store.write(open_(), COMMANDS)
        until(lambda: event_types(store) == ["Opened"])
    assert log.named("database_unavailable") == []


def test_a_partition_is_not_taken_while_its_holder_commits(connection, store, database_url, log):
    """The taker passes it over; it, or the holder that joins again, begins behind the commit."""
    dawdles = hold_up_commits(connection)
    with hosted(account, database_url):
        until(lambda: len(log.named("consumer_started")) == 2)
        connection.execute("SELECT pg_advisory_lock(1)")
        store.write(open_(), COMMANDS)
        until(lambda: connection.execute(dawdles).fetchone() == (1,))
        former = holders(connection, CATEGORY)
        let_expire(connection)
        with hosted(account, database_url):
            log.wait_for("standing_by", category=CATEGORY)
            assert holders(connection, CATEGORY) == former
            connection.execute("SELECT pg_advisory_unlock(1)")
            store.write(deposit(), COMMANDS)
            until(lambda: event_types(store) == ["Opened", "Deposited"])
    assert broken(connection) == {}


def test_positions_move_on_and_begin_anew_after_detaching(connection, store):
    """Of forty batches none is read twice; detached and attached again, all begin anew."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(39))], COMMANDS)
    counts = drain(connection, batch_size=1).counts
    assert counts == {"handled": 40, "reserved": 39}
    assert drain(connection).messages == 0
    assert detach(connection).positions[0] == ("account", CATEGORY, 40)
    attach(connection)
    assert holders(connection, CATEGORY) == []
    assert drain(connection).counts == {"duplicate": 40, "handled": 39}
    assert len(event_types(store)) == 40
    assert broken(connection) == {}
