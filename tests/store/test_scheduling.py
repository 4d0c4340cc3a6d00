"""The store's part of scheduling: what is scheduled, cancelled, and written when it is due."""

import contextlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import IsolationLevel, connect, errors

from reservation import Cancellation, Component, MessageStore, Metadata
from reservation.admin import attach, detach
from reservation.errors import (
    EncodeError,
    MessageIdConflictError,
    StoreError,
    StreamNameError,
)
from tests.store.builders import write_due
from tests.store.clients import CLIENTS, in_loop
from tests.support.consuming import until

PAST = datetime(2020, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Remind:
    order_id: str
    n: int = 0


def rows(connection, columns="id, cancelled_at IS NOT NULL, attempts"):
    """Return what is scheduled, in the order of its times."""
    query = f"SELECT {columns} FROM reservation.scheduled ORDER BY due_at, number"
    return connection.execute(query.encode()).fetchall()


def stored(store, category="order"):
    """Return what is written to a category: streams and numbers."""
    return [(m.stream_name, m.decode(Remind).n) for m in store.read_category(category)]


@contextlib.contextmanager
def refusing(connection, condition):
    """Let the log refuse messages for which a condition holds."""
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not this one'; END $$"
    )
    connection.execute(
        f"CREATE TRIGGER refuse BEFORE INSERT ON message_store.messages FOR EACH ROW "
        f"WHEN ({condition}) EXECUTE FUNCTION refuse()".encode()
    )
    yield
    connection.execute("DROP TRIGGER refuse ON message_store.messages")


@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_a_message_is_scheduled_and_cancelled(database_url, connection, client):
    """Both clients schedule after a delay and at a time, return the id, and cancel by it."""
    async with await client.open(database_url) as store:
        metadata = Metadata(properties={"user": 7})
        first = await store.write(Remind("1"), "order-1", after="30m", metadata=metadata)
        named = uuid.uuid4()
        at = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
        assert await store.write(Remind("2"), "order-2", at=at, id=named) == named
        ((due, made),) = connection.execute(
            "SELECT due_at, scheduled_at FROM reservation.scheduled WHERE id = %s", [first]
        ).fetchall()
        assert timedelta(minutes=29) < due - made <= timedelta(minutes=30)
        assert rows(connection, "due_at")[1] == (at,)
        assert await store.cancel(first) is Cancellation.CANCELLED
        assert await store.cancel(first) is Cancellation.CANCELLED
        assert await store.cancel(uuid.uuid4()) is Cancellation.UNKNOWN
    assert rows(connection) == [(first, True, 0), (named, False, 0)]


@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_a_command_is_sent_later(database_url, connection, client):
    """Both clients send a command later, to the stream that its component reads it from."""
    reminders = Component("reminder", id="order_id")
    reminders.handle(Remind, once=None)(lambda command, entity, context: None)
    async with await client.open(database_url) as store:
        later = await store.send(Remind("1"), reminders, after="30m")
        metadata = Metadata(properties={"user": 7})
        named = await store.send(
            Remind("2"), reminders, at=PAST, id=uuid.UUID(int=2), metadata=metadata
        )
        assert await store.cancel(later) is Cancellation.CANCELLED
    assert (named, write_due(connection).written) == (uuid.UUID(int=2), 1)
    (message,) = MessageStore(connection).read_category("reminder:command")
    assert (message.stream_name, message.id) == ("reminder:command-2", str(named))
    assert message.metadata.properties == {"user": 7}


def test_a_message_is_written_when_it_is_due_and_not_before(connection, store):
    """Only what is due is written, once, at its time, with the id and metadata it was given."""
    metadata = Metadata(properties={"user": 7})
    late = store.write(Remind("1", 1), "order-1", at=PAST, metadata=metadata)
    later = store.write(Remind("1", 2), "order-1", after=HOUR)
    done = write_due(connection)
    assert (done.written, done.refused) == (1, 0)
    assert 3500 < done.next_in < 3600
    (message,) = store.read_category("order")
    assert (message.id, message.metadata.properties) == (str(late), {"user": 7})
    assert abs(message.time.replace(tzinfo=UTC) - datetime.now(UTC)) < HOUR
    assert rows(connection) == [(later, False, 0)]
    assert write_due(connection).written == 0
    assert store.cancel(late) is Cancellation.WRITTEN


def test_a_delay_counts_by_the_clock_of_the_server(connection, store, monkeypatch):
    """A client whose clock is wrong schedules for the same time."""
    monkeypatch.setattr("time.time_ns", lambda: 0)
    store.write(Remind("1"), "order-1", after="1h")
    ((left,),) = rows(connection, "due_at - clock_timestamp()")
    assert timedelta(minutes=59) < left <= HOUR


def test_what_is_due_is_written_in_its_order_and_in_portions(connection, store):
    """Messages go to their streams in the order of their times, then of scheduling."""
    for n in range(3):
        store.write(Remind("1", n), "order-1", at=PAST)
    store.write(Remind("1", 9), "order-1", at=PAST - HOUR)
    assert write_due(connection, 2).written == 2
    assert write_due(connection, 2).next_in is None
    assert [n for _, n in stored(store)] == [9, 0, 1, 2]
    assert write_due(connection).next_in is None


@pytest.mark.parametrize(
    ("problem", "when"),
    [
        ("both at= and after=", {"at": PAST, "after": "1s"}),
        ("leave expected_version out", {"after": "1s", "expected_version": -1}),
        ("-1s is negative", {"after": timedelta(seconds=-1)}),
        ("'-1s' is negative", {"after": "-1s"}),
        ("'soon' is not a time span", {"after": "soon"}),
        ("'30' is not a time span", {"after": "30"}),
        ("30 is not a time span", {"after": 30}),
        ("longer than 100000d", {"after": "100001d"}),
        ("longer than 100000d", {"after": timedelta(days=100001)}),
        ("no time zone", {"at": datetime(2026, 1, 1)}),  # noqa: DTZ001  it is refused
        ("a datetime, not a str", {"at": "2026-01-01"}),
        ("from 1970 to 9998", {"at": datetime(1, 1, 1, tzinfo=UTC)}),
        ("from 1970 to 9998", {"at": datetime(9999, 12, 31, tzinfo=UTC)}),
    ],
)
def test_a_time_that_cannot_be_is_refused_in_one_line(connection, store, problem, when):
    """A negative delay, a naive datetime, both times: one line says what is wrong."""
    with pytest.raises(StoreError, match=problem) as refused:
        store.write(Remind("1"), "order-1", **when)
    assert "\n" not in str(refused.value)
    assert rows(connection) == []


def test_a_message_that_could_not_be_written_is_not_scheduled(connection, store):
    """A category, a value that its class does not declare, and an id that is none are refused."""
    with pytest.raises(StreamNameError, match="names no stream"):
        store.write(Remind("1"), "order", after="1s")
    with pytest.raises(EncodeError):
        store.write(Remind(1), "order-1", after="1s")
    with pytest.raises(StoreError, match="One call schedules one message"):
        store.write([Remind("1"), Remind("2")], "order-1", after="1s")
    with pytest.raises(StoreError, match=r"a uuid\.UUID, not a str"):
        store.write(Remind("1"), "order-1", after="1s", id="x")
    with pytest.raises(StoreError, match=r"a uuid\.UUID, not a str"):
        store.cancel("x")
    assert rows(connection) == []


@pytest.mark.parametrize("due", ["infinity", "-infinity", "9999-06-01"])
def test_the_server_refuses_a_time_that_consumers_cannot_compute_with(connection, due):
    """Nobody can hold up the consumers with a time that is none, past the client."""
    with pytest.raises(Exception, match="scheduled_due_at_check"):
        connection.execute(
            "SELECT reservation.schedule_message("
            "gen_random_uuid(), 'order-1', 'Remind', '{}', NULL, %s::timestamptz, NULL)",
            [due],
        )


def test_the_same_again_is_scheduled_once(connection, store):
    """The first time stands; other content under the id is refused, before and after writing."""
    named = uuid.uuid4()
    for when in ({"at": PAST}, {"after": HOUR}):
        assert store.write(Remind("1"), "order-1", id=named, **when) == named
        assert rows(connection, "due_at") == [(PAST,)]
    with pytest.raises(MessageIdConflictError, match="is in use for another message;"):
        store.write(Remind("1", 5), "order-1", id=named, after=HOUR)
    write_due(connection)
    store.write(Remind("1"), "order-1", id=named, at=PAST)
    with pytest.raises(MessageIdConflictError, match="is in use for another message;"):
        store.write(Remind("1"), "order-2", id=named, at=PAST)
    assert rows(connection) == []
    assert stored(store) == [("order-1", 0)]


def test_a_cancelled_message_stays_cancelled(connection, store):
    """A cancelled message is not written, and scheduling it again does not bring it back."""
    named = store.write(Remind("1"), "order-1", at=PAST)
    store.cancel(named)
    assert write_due(connection).next_in is None
    store.write(Remind("1"), "order-1", at=PAST, id=named)
    assert write_due(connection).written == 0
    assert store.cancel(named) is Cancellation.CANCELLED


def test_scheduling_is_part_of_the_transaction(connection, store):
    """What is rolled back was neither scheduled nor cancelled, on each isolation level."""
    kept = store.write(Remind("1"), "order-1", after=HOUR)
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.SERIALIZABLE):
        connection.isolation_level = level
        with connection.transaction(force_rollback=True):
            store.write(Remind("2"), "order-1", after=HOUR)
            assert store.cancel(kept) is Cancellation.CANCELLED
    assert rows(connection) == [(kept, False, 0)]


def test_processes_that_write_at_once_write_each_message_once(connection, database_url, store):
    """However many sessions write, each message is written once and none is left."""
    for n in range(100):
        store.write(Remind("1", n), f"order-{n % 7}", at=PAST)

    def write():
        with connect(database_url, autocommit=True) as own:
            while (left := write_due(own, 5).next_in) is not None:
                assert left <= 0

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(n for _, n in stored(store)) == list(range(100))
    assert rows(connection) == []


def test_a_message_that_the_log_refuses_does_not_hold_up_others(connection, store):
    """It is tried again later and later, says why, and is written once the log takes it."""
    bad = store.write(Remind("1", 1), "order-1", at=PAST)
    store.write(Remind("1", 2), "order-1", at=PAST)
    with refusing(connection, "NEW.data->>'n' = '1'"):
        done = write_due(connection)
        assert (done.written, done.refused) == (1, 1)
        assert 0 < done.next_in <= 1
        assert rows(connection, "id, attempts, error") == [(bad, 1, "not this one")]
        store.write(Remind("1", 3), "order-1", at=PAST)
        assert write_due(connection).written == 1
        connection.execute("UPDATE reservation.scheduled SET attempts = 50, attempt_at = now()")
        assert write_due(connection).refused == 1
        ((wait,),) = rows(connection, "attempt_at - clock_timestamp()")
        assert timedelta(seconds=50) < wait <= timedelta(minutes=1)
        assert write_due(connection).refused == 0
    connection.execute("UPDATE reservation.scheduled SET attempt_at = now()")
    assert write_due(connection).written == 1
    assert stored(store) == [("order-1", 2), ("order-1", 3), ("order-1", 1)]
    assert rows(connection) == []


def test_a_refused_message_can_be_cancelled(connection, store):
    """A message that the log refuses is cancelled like others."""
    bad = store.write(Remind("1", 1), "order-1", at=PAST)
    with refusing(connection, "true"):
        write_due(connection)
        assert store.cancel(bad) is Cancellation.CANCELLED
        assert write_due(connection).next_in is None


def test_a_category_that_somebody_has_locked_does_not_hold_up_others(
    connection, database_url, store
):
    """What can be written is; the rest is waited for only for a moment, then left for later."""
    for n in range(3):
        store.write(Remind("1", n), "order-1", at=PAST - HOUR)
    store.write(Remind("1", 7), "shop-1", at=PAST)
    with connect(database_url) as other:
        MessageStore(other).lock_categories(["order-9"])
        assert write_due(connection, 2).written == 1
        assert stored(store, "shop") == [("shop-1", 7)]
        assert write_due(connection, 2).written == 0
        assert len(rows(connection)) == 3
    assert write_due(connection).written == 3


def test_a_table_that_somebody_has_locked_is_not_waited_for_once_for_each_message(
    connection, database_url, store
):
    """A lock on the log costs one wait, and takes nothing from what is scheduled."""
    for n in range(600):
        store.write(Remind("1", n), "order-1", at=PAST)
    with connect(database_url) as other:
        other.execute("LOCK TABLE message_store.messages IN SHARE ROW EXCLUSIVE MODE")
        connection.execute("SET statement_timeout = '30s'")
        with contextlib.suppress(errors.LockNotAvailable):
            assert write_due(connection).written == 0
    connection.execute("UPDATE reservation.scheduled SET attempt_at = NULL")
    assert write_due(connection).written == 600


WAITING = "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"


def while_written(connection, database_url, end, call):
    """Return what a call answers that has to wait for a writer of what is due, and for its end."""
    with connect(database_url, autocommit=True) as writing, ThreadPoolExecutor(1) as thread:
        writing.execute("BEGIN")
        assert write_due(writing).written == 1
        with MessageStore.open(database_url) as own:
            answer = thread.submit(call, own)
            until(lambda: connection.execute(WAITING).fetchall())
            writing.execute(end)
            return answer.result()


@pytest.mark.parametrize(
    ("end", "outcome"), [("COMMIT", Cancellation.WRITTEN), ("ROLLBACK", Cancellation.CANCELLED)]
)
def test_who_cancels_waits_for_who_writes(connection, database_url, store, end, outcome):
    """A message that is being written is reported as written, or cancelled if that fails."""
    named = store.write(Remind("1"), "order-1", at=PAST)
    assert while_written(connection, database_url, end, lambda own: own.cancel(named)) is outcome


def test_scheduling_the_same_waits_for_who_writes_it(connection, database_url, store):
    """What is written while it is scheduled again is not scheduled again."""
    named = store.write(Remind("1"), "order-1", at=PAST)
    while_written(
        connection,
        database_url,
        "COMMIT",
        lambda own: own.write(Remind("1"), "order-1", at=PAST, id=named),
    )
    assert rows(connection) == []
    assert stored(store) == [("order-1", 0)]


def test_large_messages_are_written_in_portions(connection, store):
    """However large what is due is, one call takes a megabyte of it."""
    text = "".join(chr(33 + n % 90) for n in range(100_003))
    connection.execute("ALTER TABLE reservation.scheduled ALTER data SET STORAGE EXTERNAL")
    for n in range(40):
        store.write(Remind(text, n), "order-1", at=PAST)
    written = [write_due(connection).written for _ in range(6)]
    assert all(9 < one < 13 for one in written[:3])
    assert sum(written) == 40
    assert [n for _, n in stored(store)] == list(range(40))


def test_an_isolated_transaction_that_lost_a_race_refuses_no_message(
    connection, database_url, store
):
    """Where the snapshot is older than a message of the stream, the next call writes."""
    store.write(Remind("1", 1), "order-1", at=PAST)
    with connect(database_url, autocommit=True) as isolated:
        isolated.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        isolated.execute("SELECT FROM message_store.messages")
        store.write(Remind("1", 0), "order-1")
        with pytest.raises(errors.UniqueViolation):
            write_due(isolated)
        isolated.execute("ROLLBACK")
    assert rows(connection, "attempts") == [(0,)]
    assert write_due(connection).written == 1


def test_detaching_counts_what_will_not_be_written(make_database, message_db_template):
    """Who detaches is told how many scheduled messages go."""
    with connect(make_database(message_db_template), autocommit=True) as connection:
        attach(connection)
        store = MessageStore(connection)
        store.write(Remind("1"), "order-1", at=PAST)
        store.cancel(store.write(Remind("1"), "order-1", at=PAST))
        assert detach(connection).scheduled == 1
