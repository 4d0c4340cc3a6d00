"""What a handler may bring about besides the events that it returns, and what it may not."""

import contextlib
import queue
import re
import signal
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.types.json import Jsonb
from structlog.testing import capture_logs

from bank.messages import Deposit
from consumers.testing import run_in_memory
from reservation import (
    NO_STREAM,
    Component,
    Context,
    Key,
    MessageStore,
    Metadata,
    StoredMessage,
    Write,
)
from reservation.errors import (
    DatabaseUnavailableError,
    HandlerError,
    LockTimeoutError,
    SerializationError,
)
from reservation.strategies import MessageIdInEvents
from tests.apps.bank import drain
from tests.consumers.builders import read_again, stored_letter, stored_letters
from tests.support.controls import deposit

SENT = "shop:command-123"


@dataclass(frozen=True)
class Noted:
    account_id: str
    n: int = 0


@dataclass
class Notes:
    n: int = 0


def shop(handler, name="shop", once=None, **options):
    """Return a component that handles deposits directly, if no key is given, and counts notes."""
    component = Component(name, entity=Notes, id="account_id", replies_to="till", attempts=1)
    component.handle(Deposit, once=once, **options)(handler)

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


def noting(act):
    """Return a handler that does something with its context, and returns an event."""

    def handle(command, entity, context):
        act(context)
        return Noted(command.account_id)

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


def send_each(store, cases):
    """Send a deposit for each case, named by its number, to an entity of its own."""
    for n in range(len(cases)):
        store.write(deposit(f"{n}", account=f"{n}"), f"shop:command-{n}")


def check_errors(connection, expected):
    """Compare the dead letters with the errors that are expected, in order."""
    for letter, error in zip(stored_letters(connection), expected, strict=True):
        assert re.search(error, letter.error), letter


def notes(store, name):
    """Return the numbers of the notes in a stream."""
    return [message.decode(Noted).n for message in store.read_stream(name)]


# Further messages


def test_a_further_message_follows_the_one_that_is_handled(connection, store):
    """A further message is written with the events and follows the handled message."""

    def handle(command, entity, context):
        context.write(Noted(command.account_id, 1), "audit-1")
        context.write(Noted(command.account_id, 2), "audit-1")
        return Noted(command.account_id)

    metadata = Metadata(
        correlation_stream_name="order-1", reply_stream_name="till-1", properties={"user": 7}
    )
    store.write(deposit(), SENT, metadata=metadata)
    drain(connection, shop(handle))
    assert notes(store, "audit-1") == [1, 2]
    first = next(store.read_stream("audit-1")).metadata
    assert first.causation_message_stream_name == SENT
    assert first.causation_message_global_position == 1
    assert first.correlation_stream_name == "order-1"
    assert first.reply_stream_name == "till-1"
    assert first.properties == {"user": 7}
    assert store.stream_version("shop-123") == 0


def test_a_handler_that_fails_has_written_nothing(connection, store):
    """A handler that fails leaves no message behind; those before it in its batch stay."""

    def handle(command, entity, context):
        context.write(Noted(command.account_id), "audit-1")
        if command.deposit_id == "d2":
            raise ZeroDivisionError

    store.write([deposit("d1"), deposit("d2")], SENT)
    assert drain(connection, shop(handle)).counts == {"handled": 1, "dead": 1}
    assert store.stream_version("audit-1") == 0
    assert "position 2 raised ZeroDivisionError in " in stored_letter(connection).error


def test_the_ids_of_further_messages_collide_with_no_others(connection, store):
    """Two components that write to each other's streams have ids of their own."""
    key = Key("deposit_id", into="payments", per=None)
    ledger, points = (
        shop(writing(f"{b}-123", "audit-1"), a, key=key) for a, b in (("a", "b"), ("b", "a"))
    )
    store.write(deposit(), "a:command-123")
    for component in (ledger, points):
        assert drain(connection, component).counts["handled"] == 1
    written = [name for name in ("a-123", "b-123", "audit-1") for _ in store.read_stream(name)]
    assert written == ["a-123", "b-123", "audit-1", "audit-1"]


def test_a_redelivery_writes_no_further_message_twice(connection, store):
    """A redelivery repeats no further message, whatever else the handler did."""
    connection.execute("CREATE TABLE sold (n int)")
    calls = []

    def handle(command, entity, context):
        calls.append(command)
        context.connection.execute("INSERT INTO sold VALUES (1)")
        context.write(Noted(command.account_id, len(calls) % 2), "audit-1")

    store.write([deposit("d1"), deposit("d2")], SENT)
    drain(connection, shop(handle))
    read_again(connection)
    store.write(deposit("d3"), SENT)
    assert drain(connection, shop(handle)).counts == {"redelivered": 2, "handled": 1}
    assert store.stream_version("audit-1") == 2
    assert connection.execute("SELECT count(*) FROM sold").fetchone() == (3,)


def test_an_entity_of_the_batch_has_what_was_written_to_it(connection, store):
    """Later decisions in a batch see what was written to the entity, at the right version."""

    def handle(command, entity, context):
        if command.account_id == "1":
            context.write(Noted("2"), "shop-2")
            return None
        return Noted(command.account_id, entity.n)

    store.write([deposit(f"d{n}", account=to) for n, to in enumerate("212")], SENT)
    assert drain(connection, shop(handle)).counts == {"handled": 3}
    assert notes(store, "shop-2") == [0, 0, 2]


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
def test_an_invalid_write_is_an_error_at_once(name, version, problem):
    """An invalid `context.write` raises at once and names the message that is handled."""
    context = Context(stored(), entity_stream="shop-123")
    with pytest.raises(HandlerError, match=f"Deposit at {SENT}, global position 7 .*{problem}"):
        context.write(Noted("1"), name, expected_version=version)


def test_a_command_is_sent_to_the_stream_that_its_component_reads(connection, store):
    """A handler sends commands, now and later, with what follows its message, and once."""
    till = shop(writing(), name="store")

    def handle(command, entity, context):
        context.send(deposit("d2"), till, correlated=True, expected_version=NO_STREAM)
        context.send(deposit("d3"), till, after="1h")

    component = shop(handle, once=MessageIdInEvents())
    store.write(deposit(), SENT)
    drain(connection, component)
    read_again(connection)
    drain(connection, component)
    (sent,) = store.read_category("store:command")
    assert (sent.stream_name, sent.type) == ("store:command-123", "Deposit")
    assert sent.metadata.causation_message_stream_name == SENT
    assert sent.metadata.correlation_stream_name == "shop-123"
    scheduled = connection.execute("SELECT stream_name FROM reservation.scheduled").fetchall()
    assert scheduled == [("store:command-123",)]


@pytest.mark.parametrize(
    ("command", "to", "problem"),
    [
        (Noted("1"), shop(writing(), name="store"), "the component 'store' does not handle it"),
        (deposit(), "till:command-1", "context.write takes the name of a stream"),
        (deposit(account=""), shop(writing(), name="store"), "account_id"),
    ],
)
def test_a_command_that_cannot_be_sent_is_an_error_at_once(command, to, problem):
    """What `context.send` cannot send raises at once and names the message that is handled."""
    with pytest.raises(HandlerError, match=f"Deposit at {SENT}, .* cannot send: .*{problem}"):
        Context(stored()).send(command, to)


def test_a_message_that_follows_has_no_fields_that_its_class_lacks():
    """A field that the class lacks is refused, by its name and that of the class."""
    with pytest.raises(TypeError, match=r"Noted\b.*'sum'"):
        Context(stored()).follow(deposit(), Noted, sum=1)


@pytest.mark.parametrize("message", [None, 3, {"a": 1}, Noted, [Noted("1")]])
def test_a_further_message_is_an_instance_of_a_message_class(message):
    """A further message must be an instance of such a class, as an event must."""
    with pytest.raises(HandlerError, match="a message is an instance of a message class"):
        Context(stored()).write(message, "audit-1")


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


def test_an_expected_version_that_is_not_met_is_the_handlers_failure(connection, store):
    """A wrong expected version is reported for its own message; the one before is handled."""
    store.write(Noted("1"), "audit-1")
    store.write([deposit("d1"), deposit("d2")], SENT)

    def handle(command, entity, context):
        if command.deposit_id == "d2":
            context.write(Noted("1"), "audit-1", expected_version=NO_STREAM)

    assert drain(connection, shop(handle)).counts == {"handled": 1, "dead": 1}
    assert "position 3 wrote with an expected" in stored_letter(connection).error


def read_version(context, name):
    """Return the version of a stream as the batch's transaction sees it."""
    return MessageStore(context.connection).stream_version(name)


def test_two_handlers_of_a_batch_may_expect_versions_of_one_stream(connection, store):
    """The second handler runs by itself, after what the first one wrote is committed."""
    store.write([deposit("d1"), deposit("d2"), deposit("d3")], SENT)

    def handle(command, entity, context):
        version = read_version(context, "audit-1")
        context.write(Noted("1", version + 1), "audit-1", expected_version=version)

    with capture_logs() as logs:
        assert drain(connection, shop(handle)).counts == {"handled": 3}
    assert notes(store, "audit-1") == [0, 1, 2]
    assert "batch_failed" in [entry["event"] for entry in logs]


def test_an_expected_version_that_was_read_is_met_under_the_locks(connection, store, database_url):
    """The second attempt locks out other writers before the handler reads the version."""
    outcomes = []
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SET lock_timeout = '50ms'")

        def handle(command, entity, context):
            version = read_version(context, "audit-1")
            try:
                outcomes.append(MessageStore(other).write(Noted("1"), "audit-1"))
            except LockTimeoutError:
                outcomes.append("kept out")
            context.write(Noted("1"), "audit-1", expected_version=version)

        store.write(deposit(), SENT)
        assert drain(connection, shop(handle)).counts == {"handled": 1}
    assert outcomes == [0, "kept out"]


def test_an_id_in_use_for_another_message_is_the_messages_failure(connection, store):
    """An id in use for another message is not retried for ever."""
    component, command_id = shop(noting(lambda context: None)), uuid.uuid4()
    _, event = run_in_memory(component, [Write(deposit(), SENT, command_id)]).messages
    store.write(Noted("9"), "audit-9", id=uuid.UUID(event.id))
    store.write(deposit(), SENT, id=command_id)
    assert drain(connection, component).counts == {"dead": 1}
    assert f"the effects of Deposit at {SENT}, global position 2" in stored_letter(connection).error


# Replies


def test_a_reply_is_written_to_the_reply_stream_and_names_none(connection, store):
    """A reply is written to the reply stream and names no reply stream itself."""
    metadata = Metadata(reply_stream_name="till-1", correlation_stream_name="order-1")
    store.write(deposit(), SENT, metadata=metadata)
    drain(connection, shop(lambda command, entity, context: context.reply(Noted("1"))))
    (reply,) = store.read_stream("till-1")
    assert reply.metadata.reply_stream_name is None
    assert reply.metadata.correlation_stream_name == "order-1"
    assert reply.metadata.causation_message_global_position == 1


NO_REPLY = [
    (None, "Cannot reply to Deposit at .*, global position 1: its metadata names no reply"),
    ({"replyStreamName": 3}, "Cannot reply to"),
    ({"replyStreamName": "till"}, "global position 3 cannot write: 'till' names no stream"),
    ({"replyStreamName": "audit-1"}, "global position 4 may not reply to audit-1"),
    ({"replyStreamName": "till:command-1"}, "may not reply to till:command-1"),
    ({"replyStreamName": "shop-9"}, "may not reply to shop-9"),
]


def test_a_reply_needs_a_stream(connection, store):
    """A reply is refused where the sender named no stream, or one that is not for replies."""
    send_each(store, NO_REPLY)
    for n, (metadata, _) in enumerate(NO_REPLY):
        connection.execute(
            "UPDATE message_store.messages SET metadata = %s WHERE stream_name = %s",
            [Jsonb(metadata), f"shop:command-{n}"],
        )
    drain(connection, shop(lambda command, entity, context: context.reply(Noted("1"))))
    check_errors(connection, [problem for _, problem in NO_REPLY])


# The connection


@pytest.fixture
def sold(connection):
    """Give a function that returns the rows of a table of the user's own."""
    connection.execute("CREATE TABLE sold (n int PRIMARY KEY)")
    return lambda: [n for (n,) in connection.execute("SELECT n FROM sold ORDER BY n").fetchall()]


def sell(context, n):
    context.connection.execute("INSERT INTO sold VALUES (%s)", [n])


def test_tables_of_the_users_own_change_with_the_events(connection, store, sold):
    """The user's own tables change with the events or not at all."""

    def handle(command, entity, context):
        sell(context, int(command.amount))
        if command.amount == 2:
            raise ValueError
        return Noted(command.account_id)

    store.write([deposit("d1", "1"), deposit("d2", "2")], SENT)
    assert drain(connection, shop(handle)).counts == {"handled": 1, "dead": 1}
    assert (sold(), store.stream_version("shop-123")) == ([1], 0)


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
    assert (sold(), notes(store, "shop-123")) == ([1], [0, 1])


def swallow(context):
    with contextlib.suppress(psycopg.Error):
        context.connection.execute("SELECT 1/0")


SPOILING = [
    (swallow, "went on after a statement that failed.*with context.connection.transaction"),
    (lambda context: context.connection.execute("COMMIT"), "raised ProgrammingError in"),
    (lambda context: context.connection.execute("SELECT 1/0"), "raised DivisionByZero in"),
    (lambda context: context.connection.commit(), "raised ProgrammingError in"),
]


def test_a_handler_that_spoils_the_transaction_is_named(connection, store):
    """A handler that ends or spoils the transaction is named, with what to do instead."""
    send_each(store, SPOILING)

    def handle(command, entity, context):
        SPOILING[int(command.deposit_id)][0](context)
        return Noted(command.account_id)

    assert drain(connection, shop(handle)).counts == {"dead": len(SPOILING)}
    named = (f"Deposit at shop:command-{n}, global position {n + 1} " for n in range(len(SPOILING)))
    check_errors(
        connection, [f"{one}.*{problem}" for one, (_, problem) in zip(named, SPOILING, strict=True)]
    )
    assert list(store.read_category("shop")) == []


@pytest.mark.parametrize("raises", [True, False])
def test_a_lost_connection_is_no_fault_of_the_handler(connection, store, raises):
    """A lost connection is no failure of the handler, even if it raises its own exception."""
    store.write(deposit(), SENT)

    def handle(command, entity, context):
        pid = context.connection.info.backend_pid
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        try:
            context.connection.execute("SELECT 1")
        except psycopg.OperationalError as error:
            if raises:
                raise RuntimeError from error

    with pytest.raises(DatabaseUnavailableError, match="was lost while Deposit at"):
        drain(connection, shop(handle))
    assert stored_letters(connection) == []


def test_a_database_of_the_handlers_own_that_is_lost_is_its_failure(
    database_url, connection, store
):
    """Losing a database of the handler's own is a failure of the handler."""
    store.write(deposit(), SENT)

    def handle(command, entity, context):
        with psycopg.connect(database_url, autocommit=True) as other:
            pid = other.info.backend_pid
            connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            other.execute("SELECT 1")

    assert drain(connection, shop(handle)).counts == {"dead": 1}
    assert "raised AdminShutdown in" in stored_letter(connection).error


RAISED = [
    psycopg.errors.SerializationFailure,
    psycopg.errors.DiskFull,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ReadOnlySqlTransaction,
    SerializationError,
    DatabaseUnavailableError,
    KeyError,
    SystemExit,
    GeneratorExit,
]


def test_whatever_a_handler_raises_is_its_failure_while_the_connection_is_sound(connection, store):
    """While the batch's connection is sound, any exception is a failure of the handler."""
    send_each(store, RAISED)

    def handle(command, entity, context):
        raise RAISED[int(command.deposit_id)]("secret")

    assert drain(connection, shop(handle)).counts == {"dead": len(RAISED)}
    check_errors(connection, [rf"raised {kind.__name__} in \S*handle " for kind in RAISED])
    assert "secret" not in str(stored_letters(connection))


@pytest.mark.parametrize("is_pythons", [True, False])
def test_an_interrupt_ends_the_consumer_only_if_python_raises_it(connection, store, is_pythons):
    """Where SIGINT does not raise it, a KeyboardInterrupt is a failure of the handler."""
    store.write(deposit(), SENT)

    def handle(command, entity, context):
        raise KeyboardInterrupt

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler if is_pythons else signal.SIG_IGN
    )
    try:
        with pytest.raises(KeyboardInterrupt) if is_pythons else contextlib.nullcontext():
            drain(connection, shop(handle))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(stored_letters(connection)) == (0 if is_pythons else 1)


def test_a_race_that_a_handler_takes_back_and_raises_is_its_failure(connection, store):
    """A lost race that the handler rolled back and raised is a failure of the handler."""
    store.write(deposit(), SENT)

    def handle(command, entity, context):
        with context.connection.transaction():
            context.connection.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")

    assert drain(connection, shop(handle)).counts == {"dead": 1}
    assert "raised SerializationFailure" in stored_letter(connection).error


@pytest.mark.parametrize("wraps", [False, True], ids=["raised", "as a cause"])
def test_a_lock_that_is_not_to_be_had_lets_the_batch_run_again(connection, store, sold, wraps):
    """A lock that another transaction holds makes the batch run again."""
    connection.execute("INSERT INTO sold VALUES (1)")
    store.write(deposit(), SENT)
    calls = []

    def handle(command, entity, context):
        calls.append(command)
        lock = "SELECT FROM sold WHERE n = 1 FOR UPDATE NOWAIT"
        if len(calls) > 1:
            context.connection.execute(lock)
            return Noted(command.account_id)
        with connection.transaction():
            connection.execute(lock)
            try:
                context.connection.execute(lock)
            except psycopg.Error as error:
                if wraps:
                    raise ValueError from error
                raise

    assert drain(connection, shop(handle)).counts == {"handled": 1}
    assert len(calls) == 2


def test_a_deadlock_of_a_handler_lets_the_batch_run_again(database_url, connection, store, sold):
    """A deadlock in a handler makes the batch run again."""
    connection.execute("INSERT INTO sold VALUES (1), (2)")
    store.write(deposit(), SENT)
    lock = "SELECT FROM sold WHERE n = %s FOR UPDATE"
    pids, threads, calls = queue.SimpleQueue(), [], []
    waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"

    def oppose():
        with psycopg.connect(database_url) as other:
            other.execute("SET deadlock_timeout = '1h'")  # so that it is the handler that is ended
            other.execute(lock, [2])
            pids.put(other.info.backend_pid)
            other.execute(lock, [1])

    def handle(command, entity, context):
        calls.append(command)
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

    assert drain(connection, shop(handle)).counts == {"handled": 1}
    threads[0].join()
    assert len(calls) == 2


# Time, ids, and a context in a test


def test_the_time_is_that_of_the_message(connection, store):
    """`context.time` is the time of the message, so a second handling makes the same events."""
    times = []
    store.write(deposit(), SENT)
    for _ in range(2):
        drain(connection, shop(lambda command, entity, context: times.append(context.time)))
        read_again(connection)
    (command,) = store.read_stream(SENT)
    assert times == [command.time.replace(tzinfo=UTC)] * 2


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
    context = Context(stored(metadata_json='{"replyStreamName": "till-1"}'), replies_to={"till"})
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
