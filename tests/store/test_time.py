"""The time of a message: when its row was written."""

import uuid

from reservation import MessageStore, Write
from tests.apps.bank import RESERVED, drain
from tests.support.controls import COMMANDS, deposit, open_

TIMES = (
    "SELECT array_agg(time ORDER BY global_position) FROM message_store.messages"
    " WHERE stream_name LIKE %s"
)


def times(connection, stream_name):
    """Return the times of the messages of some streams, in the order of the log."""
    return connection.execute(TIMES, [stream_name]).fetchone()[0]


def now(connection):
    """Return when the transaction began, and what the clock says."""
    return connection.execute(
        "SELECT now() AT TIME ZONE 'utc', clock_timestamp() AT TIME ZONE 'utc'"
    ).fetchone()


def pass_time(connection):
    """Let a few milliseconds go by within the transaction."""
    connection.execute(
        "DO $$ DECLARE until timestamptz := clock_timestamp() + interval '3 ms';"
        " BEGIN WHILE clock_timestamp() < until LOOP END LOOP; END $$"
    )


def test_each_message_has_the_time_when_it_was_written(connection):
    """Messages of one transaction, and of one statement, have times of their own, in order."""
    store = MessageStore(connection)
    with connection.transaction():
        began, _ = now(connection)
        pass_time(connection)
        _, before = now(connection)
        store.write(deposit("d0"), COMMANDS)
        pass_time(connection)
        store.write_batch([Write(deposit(f"d{n}"), COMMANDS) for n in range(1, 1000)])
        _, after = now(connection)
    found = times(connection, COMMANDS)
    assert began < before <= found[0] < found[1] <= found[-1] <= after
    assert found == sorted(found)
    assert len(set(found[1:])) > 1


def test_copies_and_events_have_it_too(store, connection):
    """What consumers write has the time when it was written, not when their batch began."""
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    copies = times(connection, f"{RESERVED}-%")
    assert times(connection, COMMANDS)[-1] < copies[0] <= copies[1]
    with connection.transaction():
        began, _ = now(connection)
        pass_time(connection)
        store.write(deposit("d3"), COMMANDS)
        position = connection.execute("SELECT reservation.category_head('account:command')")
        connection.execute(
            "SELECT * FROM reservation.reserve(ARRAY[%s]::bigint[], ARRAY[%s], '{}')",
            [position.fetchone()[0], f"{RESERVED}-123+d3"],
        )
    assert times(connection, f"{RESERVED}-123+d3")[0] > began
    assert len(set(times(connection, "account-123"))) > 1


def test_no_scheduled_message_is_from_before_it_was_due(connection):
    """A message that became due after the transaction began is written with a later time."""
    store = MessageStore(connection)
    with connection.transaction():
        began, _ = now(connection)
        due = connection.execute("SELECT clock_timestamp() + interval '2 ms'").fetchone()[0]
        ids = [uuid.uuid4() for _ in range(3)]
        for id_ in ids:
            store.write(deposit(str(id_)), COMMANDS, at=due, id=id_)
        pass_time(connection)
        written = connection.execute("SELECT written FROM reservation.write_scheduled(10)")
        assert written.fetchone() == (3,)
    due = due.replace(tzinfo=None) - due.utcoffset()
    assert all(began < due <= time for time in times(connection, COMMANDS))


def test_other_clients_have_message_db_s_default(connection):
    """What is written through Message DB's function has the time when its transaction began."""
    with connection.transaction():
        began, _ = now(connection)
        pass_time(connection)
        connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::text, 'a-1', 'T', '{}')"
        )
    assert times(connection, "a-1") == [began]
