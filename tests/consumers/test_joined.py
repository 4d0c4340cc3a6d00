"""Features where they meet: async handlers, policies, rejections, schedules, subscriptions."""

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest

import consumers
from reservation import Component, Reject, Retry, Write
from reservation.strategies import MessageIdInEvents, PositionInEvents, Processed, StateBased
from reservation.testing import pass_time
from tests.consumers.builders import read_again, stored_letters

PATIENT = Retry(attempts=5, first="1h", on=ConnectionError)


@dataclass(frozen=True)
class Captured:
    order_id: str
    name: str


@dataclass(frozen=True)
class Pay:
    order_id: str
    name: str


@dataclass(frozen=True)
class Ask:
    order_id: str
    name: str


@dataclass(frozen=True)
class Paid:
    order_id: str
    name: str


@dataclass(frozen=True)
class Remind:
    order_id: str


@dataclass
class Order:
    paid: bool = False


@dataclass(frozen=True)
class Refund:
    payment_id: str


@dataclass(frozen=True)
class Refunded:
    payment_id: str


def make_due(connection):
    """Let the next attempts at all messages that wait be due."""
    connection.execute(
        "UPDATE reservation.dead_letters SET next_attempt_at = now() WHERE state = 'waiting'"
    )


def states(connection):
    """Return the states of all letters, in the order of the log."""
    return [letter.state for letter in stored_letters(connection)]


def test_async_messages_that_waited_are_handled_at_a_time_again(connection, store, database_url):
    """However long each call takes, so many letters share a batch as calls may run at a time."""
    payments = Component("payment", id="payment_id")
    down, together = True, asyncio.Barrier(4)

    @payments.handle(Refund, once=None, retry=PATIENT, concurrency=4)
    async def refund(command, entity, context):
        if down:
            raise ConnectionError
        async with asyncio.timeout(60):
            await together.wait()
        await asyncio.sleep(0.2)  # a set takes so long that the next is as small as may be
        return Refunded(command.payment_id)

    names = [str(n) for n in range(12)]
    store.write_batch([Write(Refund(name), f"payment:command-{name}") for name in names])
    assert consumers.drain(payments, database_url).counts == {"waiting": 12}
    down = False
    make_due(connection)
    consumers.drain(payments, database_url, batch_size=8)
    assert states(connection) == ["handled"] * 12


def test_what_an_async_handler_left_running_is_cancelled_in_the_end(store, database_url):
    """The event loop is closed with its consumer, and leaves no file open."""
    payments = Component("payment", id="payment_id")
    left = []

    @payments.handle(Refund, once=None)
    async def refund(command, entity, context):
        left.append(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)
        return Refunded(command.payment_id)

    store.write(Refund("1"), "payment:command-1")
    assert consumers.drain(payments, database_url).counts == {"handled": 1}
    (task,) = left
    assert task.cancelled()
    assert task.get_loop().is_closed()


def new_orders(*, is_async, failures=0, once=None, **options):
    """Return orders that follow payments, whose handlers may be awaited.

    What a message is called says what its handler does, after it has failed so often.
    """
    orders = Component("order", entity=Order, id="order_id")
    orders.project(Paid)(lambda order, event: None)
    failed = Counter()

    def decide(message, context):
        if failed[message] < failures:
            failed[message] += 1
            raise ConnectionError
        context.write(Remind(message.order_id), "reminder:command-1", after="30m")
        if message.name == "rejected":
            raise Reject("no")
        return Paid(message.order_id, message.name) if message.name == "event" else None

    def declared():
        if is_async:

            async def handler(message, order, context):
                await asyncio.sleep(0)
                return decide(message, context)

            return handler
        return lambda message, order, context: decide(message, context)

    orders.handle(Captured, category="payment", once=once, **options)(declared())
    orders.handle(Pay, once=once, **options)(declared())
    return orders


def effects(connection):
    """Return what there is of the orders that follow payments: events, schedules and passes."""
    found = connection.execute(
        "SELECT stream_name, type FROM message_store.messages "
        "WHERE message_store.category(stream_name) = 'order' AND stream_name <> 'order-1' "
        "ORDER BY stream_name, position"
    ).fetchall()
    scheduled = connection.execute(
        "SELECT data->>'orderId' FROM reservation.scheduled WHERE data->>'orderId' <> '1' "
        "ORDER BY 1"
    )
    passes = connection.execute(
        "SELECT m.data->>'orderId', p.reason FROM reservation.passes p "
        "JOIN message_store.messages m USING (global_position) "
        "WHERE m.data->>'orderId' <> '1' ORDER BY 1"
    )
    return found, [name for (name,) in scheduled.fetchall()], passes.fetchall()


PASSES = {
    StateBased: [("scheduled", "nothing")],
    Processed: [(name, "duplicate") for name in ("event", "rejected", "scheduled")],
}


@pytest.mark.parametrize(
    ("is_async", "options", "batch_size"),
    [
        pytest.param(False, {}, 1, id="default"),
        pytest.param(True, {}, 1000, id="async"),
        pytest.param(True, {"once": Processed()}, 1, id="async table"),
        pytest.param(True, {"once": MessageIdInEvents()}, 1000, id="async ids"),
        pytest.param(True, {"once": PositionInEvents()}, 1, id="async positions"),
        pytest.param(False, {"once": StateBased()}, 1000, id="states"),
        pytest.param(True, {"once": StateBased()}, 1, id="async states"),
    ],
)
def test_messages_wait_reject_and_schedule_once(
    connection, store, database_url, is_async, options, batch_size
):
    """Each leaves one trace, also after it waited and when it is read again.

    The outcome of a command that waits, and of one behind it, is pending; in the end each is what
    its handler decided.
    """
    orders = new_orders(is_async=is_async, failures=1, retry=PATIENT, **options)
    commands = [Pay("1", name) for name in ("rejected", "event", "scheduled")]

    def outcomes():
        return [store.outcome(command, orders).state for command in commands]

    for name in ("event", "rejected", "scheduled"):
        store.write(Captured(name, name), f"payment-{name}")
    assert outcomes() == ["unknown"] * 3
    store.write(commands, "order:command-1")
    counts = consumers.drain(orders, database_url, batch_size=batch_size).counts
    assert counts == {"waiting": 4, "parked": 2}
    assert effects(connection) == ([], [], [])
    assert outcomes() == ["pending"] * 3
    while "waiting" in states(connection):
        read_again(connection)
        make_due(connection)
        consumers.drain(orders, database_url, batch_size=batch_size)
    assert states(connection) == ["handled"] * 6
    events, scheduled, passes = effects(connection)
    once = options.get("once")
    trace = [] if isinstance(once, StateBased) else [("order-scheduled", "PseudoEvent")]
    assert events == [("order-event", "Paid"), ("order-rejected", "PseudoEvent"), *trace]
    assert scheduled == ["event", "scheduled"]
    assert passes == PASSES.get(type(once), [])
    assert outcomes() == ["rejected", "handled", "handled"]
    found = [store.outcome(command, orders).events for command in commands]
    assert found == [(), (Paid("1", "event"),), ()]


def test_the_outcome_of_what_is_scheduled_or_written_by_a_handler(connection, store, database_url):
    """A command is unknown until it is written, whoever writes it."""
    orders = new_orders(is_async=True)
    reminders = Component("reminder", id="order_id")
    reminders.message(Paid)
    reminders.handle(Remind, once=None)(
        lambda command, entity, context: Paid(command.order_id, "late")
    )
    store.write(Pay("1", "event"), "order:command-1")
    consumers.drain(orders, database_url)
    asked = {"stream_name": "reminder:command-1"}
    question = reminders.question(Remind("1"), **asked)
    assert store.outcome(question).state == "unknown"
    pass_time(database_url, "30m")
    assert store.outcome(question).state == "pending"
    consumers.drain(reminders, database_url)
    assert store.outcome(question).events == (Paid("1", "late"),)


@pytest.mark.parametrize("batch_size", [1, 1000])
def test_an_async_initiation_that_waits_takes_effect_once_with_its_reissue(
    connection, store, database_url, batch_size
):
    """The reissue waits behind it and is a duplicate; another content is a conflict."""
    orders = Component("order", id="order_id")
    orders.message(Paid)
    down = True

    @orders.initiate(Pay, retry=PATIENT)
    async def pay(command, context):
        if down:
            raise ConnectionError
        return Paid(command.order_id, command.name)

    store.write([Pay("1", "a"), Pay("1", "a"), Pay("1", "b")], "order:command-1")
    consumers.drain(orders, database_url, batch_size=batch_size)
    assert states(connection) == ["waiting", "parked", "parked"]
    assert store.outcome(Pay("1", "a"), orders).state == "pending"
    down = False
    make_due(connection)
    consumers.drain(orders, database_url, batch_size=batch_size)
    assert [message.type for message in store.read_stream("order-1")] == ["Paid"]
    assert states(connection) == ["handled", "handled", "dead"]
    assert store.outcome(Pay("1", "a"), orders).events == (Paid("1", "a"),)
    assert store.outcome(Pay("1", "b"), orders).state == "conflict"


def test_a_handler_with_a_connection_fails_beside_async_ones(connection, store, database_url):
    """What it did in the database is undone, and the effects of the others stay."""
    connection.execute("CREATE TABLE asked (name text)")
    orders = new_orders(is_async=True)
    fails = True

    @orders.handle(Ask, once=None, retry=Retry(attempts=5, first="1h"))
    def ask(command, order, context):
        context.connection.execute("INSERT INTO asked VALUES (%s)", [command.name])
        if fails and command.name == "fails":
            context.connection.execute("SELECT 1 / 0")
        if command.name == "rejected":
            raise Reject("no")

    names = ["handled", "fails", "rejected"]
    for number, name in enumerate(names):
        store.write(Ask(str(number), name), f"order:command-{number}")
        store.write(Pay(str(number), "event"), f"order:command-{number}")
    asked = "SELECT name FROM asked ORDER BY 1"
    consumers.drain(orders, database_url)
    assert states(connection) == ["waiting", "parked"]
    assert connection.execute(asked).fetchall() == [("handled",), ("rejected",)]
    assert [len(list(store.read_stream(f"order-{number}"))) for number in range(3)] == [1, 0, 2]
    fails = False
    make_due(connection)
    consumers.drain(orders, database_url)
    assert states(connection) == ["handled", "handled"]
    assert connection.execute(asked).fetchall() == [("fails",), ("handled",), ("rejected",)]
    assert len(list(store.read_stream("order-1"))) == 1
