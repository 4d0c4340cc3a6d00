"""What a handler may bring about besides the events that it returns, and what it may not."""

import contextlib
import queue
import threading
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
import pytest
import structlog
from psycopg.types.json import Jsonb

from bank.messages import Deposit
from consumers.loop.consumer import Consumer
from consumers.runtime.stopping import Stop
from reservation import NO_STREAM, Component, Context, MessageStore, Metadata, StoredMessage
from reservation.errors import (
    DatabaseUnavailableError,
    EncodeError,
    ExpectedVersionError,
    HandlerError,
    MessageError,
    MessageIdConflictError,
    SerializationError,
)
from reservation.messages.message import followed_id
from reservation.postgres.connection import connect
from tests.bank import batch, batches, drain, session
from tests.controls import deposit

SENT = "shop:command-123"


@dataclass(frozen=True)
class Noted:
    account_id: str
    n: int = 0


@dataclass
class Notes:
    n: int = 0


def shop(handler, name="shop", **options):
    """Return a component that handles deposits directly, and counts notes."""
    component = Component(name, entity=Notes, id="account_id")
    component.handle(Deposit, **options)(handler)

    @component.project(Noted)
    def noted(entity, event):
        entity.n += 1

    return component


def writing(*names, **options):
    """Return a handler that writes to streams and returns nothing."""

    def handle(command, entity, context):
        for name in names:
            context.write(Noted(command.account_id), name, **options)

    return handle


def stored(**values):
    """Return a message as it would be read."""
    given = {
        "id": "0190163d-8694-739b-aea5-966c26f8ad91",
        "stream_name": SENT,
        "type": "Deposit",
        "position": 0,
        "global_position": 7,
        "data": None,
        "metadata_json": None,
        "time": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  as the store gives it
    }
    return StoredMessage(**{**given, **values})


def positions(connection):
    """Return the positions of all consumers."""
    rows = connection.execute("SELECT position FROM reservation.positions ORDER BY 1").fetchall()
    return [position for (position,) in rows]


def run_to_the_end(database_url, component, until):
    """Run a consumer of the component's commands until it fails, or for a number of messages."""
    stop = Stop()
    with session(database_url) as opened:
        consumer = Consumer(opened, component, component.command_category, stop_on_error=True)

        def watch(logger, method, event):
            if event["event"] == "batch_committed" and event["position"] >= until:
                stop.request()
            return event

        with structlog.testing.capture_logs(processors=[watch]) as logs:
            consumer.run(stop)
    return [entry["event"] for entry in logs]


# Further messages


def test_a_further_message_follows_the_one_that_is_handled(connection, store):
    """A further message is written in the same transaction and follows the handled message."""

    def handle(command, entity, context):
        context.write(Noted(command.account_id, 1), "audit-1")
        context.write(Noted(command.account_id, 2), "audit-1")
        return Noted(command.account_id)

    metadata = Metadata(
        correlation_stream_name="order-1", reply_stream_name="till-1", properties={"user": 7}
    )
    store.write(deposit(), SENT, metadata=metadata)
    drain(connection, shop(handle))
    first, second = store.read_stream("audit-1")
    assert [message.decode(Noted).n for message in (first, second)] == [1, 2]
    assert first.metadata.causation_message_stream_name == SENT
    assert first.metadata.causation_message_global_position == 1
    assert first.metadata.correlation_stream_name == "order-1"
    assert first.metadata.reply_stream_name == "till-1"
    assert first.metadata.properties == {"user": 7}
    assert store.stream_version("shop-123") == 0


def test_a_handler_that_fails_has_written_nothing(connection, store):
    """A handler that fails leaves no message, no batch and no position behind."""

    def handle(command, entity, context):
        context.write(Noted(command.account_id), "audit-1")
        if command.deposit_id == "d2":
            raise ZeroDivisionError

    store.write([deposit("d1"), deposit("d2")], SENT)
    claimed = batch(connection, "shop:command", shop(handle))
    with pytest.raises(HandlerError, match=r"position 2 raised ZeroDivisionError in .*handle"):
        claimed.run(100)
    assert (store.stream_version("audit-1"), positions(connection)) == (NO_STREAM, [0])
    assert claimed.run(1).counts == Counter(handled=1)
    assert store.stream_version("audit-1") == 0


def test_the_ids_of_further_messages_collide_with_no_others(connection, store):
    """The ids of two components' further messages differ, also in each other's streams."""
    into = "payments"
    ledger, points = (shop(writing(f"{b}-123", "audit-1"), a) for a, b in (("a", "b"), ("b", "a")))
    for component in (ledger, points):
        component.reserve(Deposit, into=into, key="deposit_id")
    store.write(deposit(), "a:command-123")
    batch(connection, "a:command", ledger).run(10)
    for component in (ledger, points):
        batch(connection, into, component).run(10)
    written = [m for name in ("a-123", "b-123", "audit-1") for m in store.read_stream(name)]
    assert len(written) == 4
    (copy,) = store.read_category(into)
    assert followed_id(copy.id, "a-123", 0) not in {uuid.UUID(m.id) for m in written}


def test_a_redelivery_writes_no_further_message_twice(connection, store):
    """A redelivery repeats no further message, whatever else the handler did."""
    connection.execute("CREATE TABLE sold (n int)")
    calls = []

    def handle(command, entity, context):
        calls.append(command)
        context.connection.execute("INSERT INTO sold VALUES (1)")
        context.write(Noted(command.account_id, len(calls) % 2), "audit-1")

    store.write([deposit("d1"), deposit("d2")], SENT)
    batches(connection, shop(handle))
    connection.execute("UPDATE reservation.positions SET position = 0")
    store.write(deposit("d3"), SENT)
    claimed = batch(connection, "shop:command", shop(handle))
    with pytest.raises(MessageIdConflictError, match="was written before"):
        claimed.run(100)
    with pytest.raises(MessageError, match="of 3 messages from Deposit"):
        claimed.run(100, careful=True)
    counts = [claimed.run(1, careful=True).counts for _ in range(3)]
    assert counts == [Counter(redelivered=1), Counter(redelivered=1), Counter(handled=1)]
    assert store.stream_version("audit-1") == 2
    assert connection.execute("SELECT count(*) FROM sold").fetchone() == (3,)


def test_a_consumer_gets_over_a_redelivery_by_itself(connection, store, database_url):
    """The consumer finds messages that were already handled and continues behind them."""
    store.write([deposit("d1"), deposit("d2")], SENT)
    drain(connection, shop(writing("audit-1")))
    connection.execute("UPDATE reservation.positions SET position = 0")
    connection.execute("DELETE FROM reservation.members")  # so that no lease has to expire first
    store.write(deposit("d3"), SENT)
    run_to_the_end(database_url, shop(writing("audit-1")), until=max_position(connection))
    assert store.stream_version("audit-1") == 2


def max_position(connection):
    """Return the global position of the last command."""
    rows = connection.execute(
        "SELECT max(global_position) FROM message_store.messages WHERE type = 'Deposit'"
    )
    return rows.fetchone()[0]


def test_an_entity_of_the_batch_has_what_was_written_to_it(connection, store):
    """Later decisions in a batch see what was written to the entity, at the right version."""

    def handle(command, entity, context):
        if command.account_id == "1":
            context.write(Noted("2"), "shop-2")
            return None
        return Noted(command.account_id, entity.n)

    store.write([deposit("d1", account="2"), deposit("d2", account="1")], SENT)
    store.write([deposit("d3", account="2")], SENT)
    assert [result.counts for result in batches(connection, shop(handle))] == [Counter(handled=3)]
    assert [m.decode(Noted).n for m in store.read_stream("shop-2")] == [0, 0, 2]


@pytest.mark.parametrize(
    ("name", "version", "problem"),
    [
        ("shop-123", None, r"wrote to shop-123, the stream of its own entity; return the event"),
        ("shop", None, "'shop' names no stream: it has no id"),
        (7, None, "name of a stream is a str, not a int"),
        ("audit-1", -2, "expected version -2 of audit-1"),
        ("audit-1", "1", "is an int or None, not a str"),
    ],
)
def test_an_invalid_write_is_an_error_at_once(connection, store, name, version, problem):
    """An invalid `context.write` raises at once and names the message that is handled."""
    component = shop(writing(name, expected_version=version))
    store.write(deposit(), SENT)
    with pytest.raises(HandlerError, match=f"Deposit at {SENT}, global position 1 .*{problem}"):
        batches(connection, component)


@pytest.mark.parametrize("message", [None, 3, {"a": 1}, Noted, [Noted("1")]])
def test_a_further_message_is_an_instance_of_a_dataclass(message):
    """A further message must be an instance of a dataclass, as an event must."""
    with pytest.raises(HandlerError, match="a message is an instance of a dataclass"):
        Context(stored()).write(message, "audit-1")


def test_a_further_message_that_cannot_be_encoded_is_the_messages_failure(connection, store):
    """A further message that cannot be encoded fails its message, not the consumer."""
    store.write(deposit(), SENT)
    handler = lambda command, entity, context: context.write(Noted(3), "audit-1")  # noqa: E731
    with pytest.raises(EncodeError, match="Cannot encode a Noted for audit-1"):
        batches(connection, shop(handler))


# Expected versions


def test_an_expected_version_is_that_of_the_store(connection, store):
    """A met expected version is written, and -1 starts a stream."""
    store.write(Noted("1"), "audit-1")

    def handle(command, entity, context):
        context.write(Noted("1"), "audit-1", expected_version=0)
        context.write(Noted("1"), "audit-2", expected_version=NO_STREAM)
        context.write(Noted("1"), "audit-2", expected_version=0)

    store.write(deposit(), SENT)
    drain(connection, shop(handle))
    assert [store.stream_version(f"audit-{n}") for n in (1, 2)] == [1, 1]


def test_an_expected_version_that_is_not_met_is_the_handlers_failure(
    connection, store, database_url
):
    """A wrong expected version is retried with care, then alone, and then reported."""
    store.write(Noted("1"), "audit-1")
    store.write([deposit("d1"), deposit("d2")], SENT)

    def handle(command, entity, context):
        if command.deposit_id == "d2":
            context.write(Noted("1"), "audit-1", expected_version=NO_STREAM)

    with pytest.raises(HandlerError, match=r"Deposit at .*position 3 wrote with an expected"):
        run_to_the_end(database_url, shop(handle), until=3)
    assert positions(connection) == [2]


def read_version(context, name):
    """Return the version of a stream as the batch's transaction sees it."""
    return MessageStore(context.connection).stream_version(name)


def test_two_handlers_of_a_batch_may_expect_versions_of_one_stream(connection, store, database_url):
    """The second handler runs alone, after what the first one wrote is committed."""
    store.write([deposit("d1"), deposit("d2"), deposit("d3")], SENT)

    def handle(command, entity, context):
        version = read_version(context, "audit-1")
        context.write(Noted("1", version + 1), "audit-1", expected_version=version)

    events = run_to_the_end(database_url, shop(handle), until=3)
    assert [m.decode(Noted).n for m in store.read_stream("audit-1")] == [0, 1, 2]
    assert "batch_failed" in events


def test_an_expected_version_that_was_read_is_met_under_the_locks(connection, store, database_url):
    """The second attempt locks out other writers before the handler reads the version."""
    outcomes = []
    with connect(database_url, autocommit=True) as other:
        other.execute("SET lock_timeout = '50ms'")

        def handle(command, entity, context):
            version = read_version(context, "audit-1")
            try:
                outcomes.append(MessageStore(other).write(Noted("1"), "audit-1"))
            except psycopg.Error as error:
                raise AssertionError from error
            except Exception as error:  # noqa: BLE001  which the assertion below names
                outcomes.append(type(error).__name__)
            context.write(Noted("1"), "audit-1", expected_version=version)

        store.write(deposit(), SENT)
        claimed = batch(connection, "shop:command", shop(handle))
        with pytest.raises(ExpectedVersionError):
            claimed.run(100)
        assert claimed.run(100, careful=True).counts == Counter(handled=1)
    assert outcomes == [0, "LockTimeoutError"]


def test_an_id_in_use_for_another_message_is_the_messages_failure(connection, store, database_url):
    """An id in use for another message is not retried for ever."""
    command = uuid.uuid4()
    store.write(Noted("9"), "audit-9", id=followed_id(str(command), "shop-123", 0))
    store.write(deposit(), SENT, id=command)
    component = shop(lambda command, entity, context: Noted(command.account_id))
    with pytest.raises(MessageError, match=f"the handling of Deposit at {SENT}, global position 2"):
        run_to_the_end(database_url, component, until=2)


# Replies


def test_a_reply_is_written_to_the_reply_stream_and_names_none(connection, store):
    """A reply is written to the reply stream and names no reply stream itself."""
    store.write(
        deposit(),
        SENT,
        metadata=Metadata(reply_stream_name="till-1", correlation_stream_name="order-1"),
    )
    batches(connection, shop(lambda command, entity, context: context.reply(Noted("1"))))
    (reply,) = store.read_stream("till-1")
    assert reply.metadata.reply_stream_name is None
    assert reply.metadata.correlation_stream_name == "order-1"
    assert reply.metadata.causation_message_global_position == 1


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (None, "nowhere to reply to Deposit at .*, global position 1: its metadata names no reply"),
        ({"replyStreamName": 3}, "nowhere to reply to"),
        ({"replyStreamName": "till"}, "global position 1 cannot write: 'till' names no stream"),
    ],
)
def test_a_reply_needs_a_stream(connection, store, metadata, problem):
    """A reply is refused where the sender named no reply stream."""
    store.write(deposit(), SENT)
    connection.execute("UPDATE message_store.messages SET metadata = %s", [Jsonb(metadata)])
    with pytest.raises(HandlerError, match=problem):
        batches(connection, shop(lambda command, entity, context: context.reply(Noted("1"))))


# The connection


@pytest.fixture
def sold(connection):
    """Give a function that returns the rows of a table of the user's own."""
    connection.execute("CREATE TABLE sold (n int PRIMARY KEY)")
    return lambda: [n for (n,) in connection.execute("SELECT n FROM sold ORDER BY n").fetchall()]


def sell(context, n, within=None):
    context.connection.execute("INSERT INTO sold VALUES (%s)", [n])


def test_tables_of_the_users_own_change_with_the_events(connection, store, sold):
    """The user's own tables change with the events or not at all."""

    def handle(command, entity, context):
        sell(context, int(command.amount))
        if command.amount == 2:
            raise ValueError
        return Noted(command.account_id)

    store.write([deposit("d1", "1"), deposit("d2", "2")], SENT)
    claimed = batch(connection, "shop:command", shop(handle))
    with pytest.raises(HandlerError):
        claimed.run(100)
    assert sold() == []
    claimed.run(1)
    assert sold() == [1]


def test_a_statement_that_may_fail_goes_into_a_savepoint(connection, store, sold):
    """A statement that fails in a savepoint does not affect the rest of the batch."""

    def handle(command, entity, context):
        try:
            with context.connection.transaction():
                sell(context, 1)
        except psycopg.errors.UniqueViolation:
            return Noted(command.account_id, 1)
        return Noted(command.account_id)

    store.write([deposit("d1"), deposit("d2")], SENT)
    drain(connection, shop(handle))
    assert (sold(), store.stream_version("shop-123")) == ([1], 1)


def swallow(context):
    with contextlib.suppress(psycopg.Error):
        context.connection.execute("SELECT 1/0")


KEPT = []  # results that are therefore never read to the end


def unfinished(context):
    rows = context.connection.cursor().stream("SELECT generate_series(1, 100000)")
    next(rows)
    KEPT.append(rows)


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (swallow, r"went on after a statement that failed.*with context\.connection\.transaction"),
        (lambda context: context.connection.execute("COMMIT"), "ended the transaction of its"),
        (lambda context: context.connection.execute("ROLLBACK"), "ended the transaction of its"),
        (unfinished, "left a statement unfinished"),
        (lambda context: context.connection.close(), "closed the connection of its batch"),
        (lambda context: context.connection.execute("SELECT 1/0"), "raised DivisionByZero in"),
        (lambda context: context.connection.commit(), "raised ProgrammingError in"),
    ],
)
@pytest.mark.parametrize("careful", [False, True])
def test_a_handler_that_spoils_the_transaction_is_named(
    database_url, connection, store, act, problem, careful
):
    """A handler that ends or spoils the transaction is named, with what to do instead."""
    store.write(deposit(), SENT)

    def handle(command, entity, context):
        act(context)
        return Noted(command.account_id)

    with connect(database_url, autocommit=True) as own:
        claimed = batch(own, "shop:command", shop(handle))
        with pytest.raises(HandlerError, match=f"Deposit at {SENT}, global position 1 {problem}"):
            claimed.run(1, careful=careful)
        KEPT.clear()
    assert (positions(connection), store.stream_version("shop-123")) == ([0], NO_STREAM)


def test_a_lost_connection_is_no_fault_of_the_handler(database_url, connection, store):
    """A lost connection is no failure of the handler, even if it raises its own exception."""
    store.write(deposit(), SENT)
    outcomes = iter([RuntimeError, None])

    def handle(command, entity, context):
        pid = context.connection.info.backend_pid
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        outcome = next(outcomes)
        try:
            context.connection.execute("SELECT 1")
        except psycopg.OperationalError as error:
            if outcome is not None:
                raise outcome from error

    for _ in range(2):
        with connect(database_url, autocommit=True) as own:
            claimed = batch(own, "shop:command", shop(handle))
            with pytest.raises(DatabaseUnavailableError, match="was lost while Deposit at"):
                claimed.run(1)


def test_a_database_of_the_handlers_own_that_is_lost_is_its_failure(
    database_url, connection, store
):
    """Losing a database of the handler's own is a failure of the handler."""
    store.write(deposit(), SENT)

    def handle(command, entity, context):
        with connect(database_url, autocommit=True) as other:
            pid = other.info.backend_pid
            connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            other.execute("SELECT 1")

    with connect(database_url, autocommit=True) as own:
        claimed = batch(own, "shop:command", shop(handle))
        with pytest.raises(HandlerError, match="raised AdminShutdown in"):
            claimed.run(1)


@pytest.mark.parametrize(
    "kind",
    [
        psycopg.errors.SerializationFailure,
        psycopg.errors.DiskFull,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.ReadOnlySqlTransaction,
        SerializationError,
        DatabaseUnavailableError,
        KeyError,
    ],
)
def test_whatever_a_handler_raises_is_its_failure_while_the_connection_is_sound(
    connection, store, kind
):
    """While the batch's connection is sound, any exception is a failure of the handler."""
    store.write(deposit(), SENT)

    def handle(command, entity, context):
        raise kind("secret")

    claimed = batch(connection, "shop:command", shop(handle))
    with pytest.raises(HandlerError, match=rf"raised {kind.__name__} in \S*handle ") as caught:
        claimed.run(1)
    assert "secret" not in str(caught.value)


def test_a_race_that_a_handler_takes_back_and_raises_is_its_failure(
    database_url, connection, store, sold
):
    """A lost race that the handler rolled back and raised is a failure of the handler."""
    connection.execute("INSERT INTO sold VALUES (1)")
    store.write(deposit(), SENT)
    lock = "SELECT FROM sold WHERE n = 1 FOR UPDATE NOWAIT"

    def handle(command, entity, context):
        with context.connection.transaction():
            context.connection.execute(lock)

    with connect(database_url, autocommit=True) as own, connection.transaction():
        connection.execute(lock)
        with pytest.raises(HandlerError, match="raised LockNotAvailable"):
            batch(own, "shop:command", shop(handle)).run(1)


def test_a_lock_that_is_not_to_be_had_lets_the_batch_run_again(
    database_url, connection, store, sold
):
    """A lock that another transaction holds makes the batch run again."""
    connection.execute("INSERT INTO sold VALUES (1)")
    store.write(deposit(), SENT)

    def handle(command, entity, context):
        context.connection.execute("SELECT FROM sold WHERE n = 1 FOR UPDATE NOWAIT")
        return Noted(command.account_id)

    with connect(database_url, autocommit=True) as own:
        claimed = batch(own, "shop:command", shop(handle))
        with connection.transaction():
            connection.execute("SELECT FROM sold WHERE n = 1 FOR UPDATE")
            with pytest.raises(SerializationError, match=r"handler of Deposit .* LockNotAvailable"):
                claimed.run(1)
        assert claimed.run(1).counts == Counter(handled=1)


def test_a_deadlock_of_a_handler_lets_the_batch_run_again(database_url, connection, store, sold):
    """A deadlock in a handler makes the batch run again."""
    connection.execute("INSERT INTO sold VALUES (1), (2)")
    store.write(deposit(), SENT)
    lock = "SELECT FROM sold WHERE n = %s FOR UPDATE"
    pids, threads = queue.SimpleQueue(), []
    waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"

    def oppose():
        with connect(database_url) as other:
            other.execute("SET deadlock_timeout = '1h'")  # so that it is the handler that is ended
            other.execute(lock, [2])
            pids.put(other.info.backend_pid)
            other.execute(lock, [1])

    def handle(command, entity, context):
        if not threads:
            context.connection.execute("SET LOCAL deadlock_timeout = '10ms'")
            context.connection.execute(lock, [1])
            threads.append(threading.Thread(target=oppose))
            threads[0].start()
            pid = pids.get()
            while not connection.execute(waiting, [pid]).fetchall():
                pass
            context.connection.execute(lock, [2])
        return Noted(command.account_id)

    with connect(database_url, autocommit=True) as own:
        claimed = batch(own, "shop:command", shop(handle))
        with pytest.raises(SerializationError, match="DeadlockDetected"):
            claimed.run(1)
        threads[0].join()
        assert claimed.run(1).counts == Counter(handled=1)


# Time, ids, and a context in a test


def test_the_time_is_that_of_the_message(connection, store):
    """`context.time` is the time of the message, so a second handling makes the same events."""
    times = []
    store.write(deposit(), SENT)
    for _ in range(2):
        drain(connection, shop(lambda command, entity, context: times.append(context.time)))
        connection.execute("UPDATE reservation.positions SET position = 0")
    (command,) = store.read_stream(SENT)
    assert times == [command.time.replace(tzinfo=UTC)] * 2
    assert abs((datetime.now(UTC) - times[0]).total_seconds()) < 60


def test_an_id_is_of_the_message_and_the_name():
    """`context.id` depends on the message and the name, and is the same at every handling."""
    context, again = Context(stored()), Context(stored(), entity_stream="shop-1")
    other = Context(stored(id=str(uuid.uuid4())))
    assert (context.id(), context.id("mail")) == (again.id(), again.id("mail"))
    ids = {context.id(), context.id("mail"), other.id(), other.id("mail")}
    assert len(ids) == 4
    assert {id_.version for id_ in ids} == {5}


def test_a_context_is_made_of_a_message_alone():
    """A test can make a context from a message alone and look at what was written."""
    context = Context(stored(metadata_json='{"replyStreamName": "till-1"}'))
    context.write(Noted("1"), "audit-1", expected_version=3)
    context.reply(Noted("2"))
    assert [(w.message, w.stream_name, w.expected_version) for w in context.writes] == [
        (Noted("1"), "audit-1", 3),
        (Noted("2"), "till-1", None),
    ]
    assert context.time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert context.sequence == 7
    with pytest.raises(HandlerError, match=r"Context\(message, connection=connection\)"):
        context.connection  # noqa: B018
