"""Handlers of messages of other categories: what is handled, once, and what is passed."""

import json
from dataclasses import dataclass

import psycopg
import pytest

from consumers import Crashed
from reservation import Component, Context, Write
from reservation.strategies import MessageIdInEvents, PositionInEvents, Processed, StateBased
from reservation.testing import check_deterministic
from tests.apps.bank import address, drain
from tests.apps.once import counted_round_trips, prune, redeliver
from tests.apps.orders import (
    APP,
    PAYMENTS,
    ROOT,
    Captured,
    Failed,
    Order,
    Paid,
    Place,
    Ship,
    capture,
    new_orders,
    passes,
    payments_of,
)
from tests.consumers.builders import retry_all
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until

ANY = [None, Processed(), Processed(key="payment_id"), MessageIdInEvents(), PositionInEvents()]


def letters(connection, consumer="order"):
    """Return the payments of dead letters, with their states and entities."""
    return connection.execute(
        "SELECT m.data->>'paymentId', l.state, l.entity FROM reservation.dead_letters l "
        "JOIN message_store.messages m USING (global_position) WHERE consumer = %s "
        "ORDER BY global_position",
        [consumer],
    ).fetchall()


def position_of(connection, category=PAYMENTS, consumer="order"):
    return connection.execute(
        "SELECT position FROM reservation.positions WHERE consumer = %s AND category = %s",
        [consumer, category],
    ).fetchone()[0]


def test_events_of_another_component_change_the_own_entity(connection, store):
    """The event follows from the other component's, and changes the entity beside own commands."""
    store.write(Place("o1"), "order:command-o1")
    store.write_batch([capture("p1"), capture("p2", "o2"), capture("p3", properties={"by": "me"})])
    assert drain(connection, new_orders()).counts == {"handled": 4}
    assert [message.type for message in store.read_stream("order-o1")] == ["Placed", "Paid", "Paid"]
    assert (payments_of(store), payments_of(store, "o2")) == (["p1", "p3"], ["p2"])
    metadata = list(store.read_stream("order-o1"))[-1].metadata
    assert metadata.causation_message_stream_name == "payment-p3"
    assert metadata.properties == {"by": "me"}


@pytest.mark.parametrize(
    "id_", ["reference", lambda event: event.reference], ids=["field", "function"]
)
def test_the_entity_is_found_by_a_field_or_a_function(connection, store, id_):
    """The message need not have the component's own field."""

    @dataclass(frozen=True)
    class Sent:
        reference: str

    component = Component("order", entity=Order, id="order_id")
    component.project(Paid)(lambda order, event: None)

    @component.handle(Sent, category="parcel", id=id_)
    def sent(event: Sent, order: Order, context: Context) -> Paid:
        return Paid(event.reference, "none")

    store.write([Sent("o1"), Sent("o2")], "parcel-1")
    assert drain(connection, component).counts == {"handled": 2}
    assert payments_of(store, "o2") == ["none"]


@pytest.mark.parametrize(
    ("id_", "reason"),
    [(lambda event: 1 / 0, "ZeroDivisionError"), (lambda event: "", "is empty")],
    ids=["raises", "is empty"],
)
def test_a_function_that_gives_no_id_makes_a_dead_letter(connection, store, id_, reason):
    """The message is a dead letter whose entity is not known, and others go on."""
    component = new_orders(id=lambda event: id_(event) if event.amount == 7 else event.order_id)
    store.write_batch([capture("p1", amount=7), capture("p2")])
    assert drain(connection, component).counts == {"dead": 1, "handled": 1}
    assert letters(connection) == [("p1", "dead", None)]
    ((error,),) = connection.execute("SELECT error FROM reservation.dead_letters").fetchall()
    assert reason in error


def test_types_that_nobody_names_are_passed(connection, store):
    """They are counted as ignored, also one that the component ignores among its own."""
    component = new_orders()
    component.ignore("Captured")
    store.write_batch([Write(Failed("p0", "o1"), "payment-p0"), capture("p1")])
    store.write(Failed("p2", "o1"), "payment-p2")
    assert drain(connection, component).counts == {"ignored": 2, "handled": 1}
    assert position_of(connection) == 3
    assert (letters(connection), passes(connection)) == ([], [])


def test_classes_of_one_name_in_two_categories_are_two_types(connection, store):
    """Each category has its own class under a type, and neither is that of an own event."""
    component = Component("order", entity=Order, id="order_id")
    seen = []

    def declared(category):
        @dataclass(frozen=True)
        class Paid:
            order_id: str

        return component.handle(Paid, category=category)(
            lambda event, order, context: seen.append((category, type(event)))
        ), Paid

    classes = {category: declared(category)[1] for category in ("parcel", "refund")}
    component.project(Paid)(lambda order, event: order.payments.append(event.payment_id))
    store.write(Paid("o1", "p1"), "parcel-1")
    store.write(Paid("o1", "p2"), "refund-1")
    assert drain(connection, component).counts == {"handled": 2}
    assert seen == list(classes.items())
    message = next(iter(store.read_stream("refund-1")))
    assert type(component.decode(message)) is classes["refund"]


@pytest.mark.parametrize("first", ["message", "handle"])
def test_a_subscribed_message_of_a_former_shape_is_upcast(connection, store, first):
    """Upcasters may be declared before the subscription or after it."""

    @dataclass(frozen=True)
    class Captured:
        order_id: str
        payment_id: str
        cents: int

    component = Component("order", entity=Order, id="order_id")
    component.project(Paid)(lambda order, event: None)

    def in_cents(data):
        return data | {"cents": data["amount"] * 100}

    def message():
        component.message(Captured, version=2, upcast=in_cents)

    def handle():
        @component.handle(Captured, category=PAYMENTS)
        def captured(event: Captured, order: Order, context: Context) -> Paid:
            return Paid(event.order_id, str(event.cents))

    for declare in (message, handle) if first == "message" else (handle, message):
        declare()
    component.check()
    store.write_batch([capture("p1", amount=3)])
    assert drain(connection, component).counts == {"handled": 1}
    assert payments_of(store) == ["300"]


def test_a_subscription_begins_at_its_position(connection, store):
    """What is before is not read, the message there is handled, and so are later ones."""
    store.write_batch([capture(f"p{n}") for n in range(1, 6)])
    assert drain(connection, new_orders(from_position=4)).counts == {"handled": 2}
    assert payments_of(store) == ["p4", "p5"]


def test_a_subscription_that_begins_later_passes_what_there_is(connection, store):
    """Its position moves with the category, so it is not behind, and the first is not missed."""
    component = new_orders(from_position=4)
    assert drain(connection, component).counts == {}
    for n in range(1, 4):
        store.write_batch([capture(f"p{n}")])
        assert drain(connection, component).counts == {}
        assert position_of(connection) == n
    store.write_batch([capture("p4"), capture("p5")])
    assert drain(connection, component).counts == {"handled": 2}
    assert payments_of(store) == ["p4", "p5"]


def test_types_of_a_category_begin_at_their_own_positions(connection, store):
    """A type that is added later does not take messages from before its position."""
    component = new_orders()
    seen = []
    component.handle(Failed, category=PAYMENTS, from_position=3)(
        lambda event, order, context: seen.append(event.payment_id)
    )
    for n in (1, 3, 5):
        store.write_batch([Write(Failed(f"f{n}", "o1"), "payment-f"), capture(f"p{n}")])
    assert drain(connection, component).counts == {"handled": 5, "ignored": 1}
    assert (seen, len(payments_of(store))) == (["f3", "f5"], 3)


def test_a_correlated_subscription_takes_what_leads_back(connection, store):
    """Only messages whose correlation is a stream of the component's category are handled."""
    store.write_batch(
        [
            capture("p1"),
            capture("p2", correlation_stream_name="order-o1"),
            capture("p3", correlation_stream_name="orders-o1"),
            capture("p4", correlation_stream_name="order:command-o1"),
            capture("p5", correlation_stream_name="order"),
        ]
    )
    component = new_orders(correlated=True)
    assert drain(connection, component).counts == {"handled": 2, "ignored": 3}
    assert payments_of(store) == ["p2", "p5"]


def test_a_written_command_leads_back_if_it_is_correlated(connection, store):
    """What follows from the command carries the name of the entity's stream too."""

    @dataclass(frozen=True)
    class Charge:
        order_id: str

    payment = Component("payment", id="order_id")
    payment.message(Captured)

    @payment.handle(Charge, once=None)
    def charge(command: Charge, entity: None, context: Context) -> Captured:
        return Captured("p1", command.order_id, 10)

    component = new_orders(correlated=True)

    @component.handle(Ship, once=None)
    def ship(command: Ship, order: Order, context: Context) -> None:
        context.write(Charge(command.order_id), "payment:command-1", correlated=True)

    store.write(Ship("o1"), "order:command-o1")
    store.write(Charge("o1"), "payment:command-1")
    drain(connection, component)
    assert drain(connection, payment).counts == {"handled": 2}
    assert drain(connection, component).counts == {"handled": 1, "ignored": 1}
    assert payments_of(store) == ["p1"]


@pytest.mark.parametrize("once", ANY, ids=repr)
def test_a_redelivered_message_has_no_effect(connection, store, once):
    """Positions that are set back let no message take effect again, with any strategy or none."""
    component = new_orders(once=once)
    store.write_batch([capture("p1"), capture("p2")])
    assert drain(connection, component).counts == {"handled": 2}
    store.write_batch([capture("p3")])
    redeliver(connection)
    assert drain(connection, component).counts == {"duplicate": 2, "handled": 1}
    assert payments_of(store) == ["p1", "p2", "p3"]


def test_what_was_passed_is_not_handled_on_a_later_state(connection, store):
    """The handler is not called again, though the entity is now one that it would change."""
    component = Component("order", entity=Order, id="order_id")
    component.project(Paid)(lambda order, event: order.payments.append(event.payment_id))
    calls = []

    @component.handle(Captured, category=PAYMENTS)
    def captured(event: Captured, order: Order, context: Context) -> Paid | None:
        calls.append(event.payment_id)
        if event.payment_id == "p1" and not order.payments:
            return None
        return Paid(event.order_id, event.payment_id)

    store.write_batch([capture("p1"), capture("p2")])
    assert drain(connection, component).counts == {"handled": 2}
    assert passes(connection) == [("p1", "nothing")]
    redeliver(connection)
    assert drain(connection, component).counts == {"duplicate": 2}
    assert (calls, payments_of(store)) == (["p1", "p2"], ["p2"])


def test_a_message_that_only_wrote_commands_writes_them_once(connection, store):
    """It has no event, so its pass says that it was handled."""
    component = new_orders()
    store.write_batch([capture("p1", amount=1), capture("p2", amount=0)])
    assert drain(connection, component).counts == {"handled": 2}
    assert passes(connection) == [("p1", "written"), ("p2", "nothing")]
    redeliver(connection)
    assert drain(connection, component).counts == {"duplicate": 2}
    assert len(list(store.read_category("shipping:command"))) == 1
    assert len(passes(connection)) == 2


def test_a_duplicate_of_a_business_key_leaves_a_pass(connection, store):
    """Nothing follows from it, which is recorded; a redelivery of the first one is not."""
    component = new_orders(once=Processed(key="payment_id"))
    store.write_batch([capture("p1"), capture("p1")])
    assert drain(connection, component).counts == {"handled": 1, "duplicate": 1}
    assert passes(connection) == [("p1", "duplicate")]
    assert payments_of(store) == ["p1"]


def test_a_subscription_may_have_a_state(connection, store):
    """A strategy with a state works as for commands; without an event the pass is recorded."""
    component = Component("order", entity=Order, id="order_id")

    @component.handle(Captured, category=PAYMENTS, once=StateBased())
    def captured(event: Captured, order: Order, context: Context) -> Paid | None:
        order.payments.append(event.payment_id)
        return Paid(event.order_id, ",".join(order.payments)) if event.amount else None

    store.write_batch([capture("p1"), capture("p2", amount=0), capture("p3")])
    assert drain(connection, component).counts == {"handled": 3}
    redeliver(connection)
    assert drain(connection, component).counts == {"redelivered": 3}
    assert payments_of(store) == ["p1", "p1,p2,p3"]
    assert passes(connection) == [("p2", "nothing")]


def test_a_pass_of_another_log_does_not_count(connection, store):
    """A message at the same place of a log that was replaced is another message."""
    store.write_batch([capture("p1", amount=0)])
    component = new_orders()
    drain(connection, component)
    connection.execute("UPDATE message_store.messages SET id = gen_random_uuid()")
    redeliver(connection)
    assert drain(connection, component).counts == {"handled": 1}
    assert len(passes(connection)) == 2


def test_two_components_follow_one_category(connection, store):
    """Each has its own positions, letters and passes, and its own effects."""
    first, second = new_orders(), new_orders("ledger")
    store.write_batch([capture("p1"), capture("p2", amount=13)])
    assert drain(connection, first).counts == {"handled": 1, "dead": 1}
    store.write_batch([capture("p3", "o2"), capture("p4", "o2", amount=0)])
    assert drain(connection, second).counts == {"handled": 3, "dead": 1}
    assert (position_of(connection), position_of(connection, consumer="ledger")) == (2, 4 + 1)
    assert (passes(connection), passes(connection, "ledger")) == ([], [("p4", "nothing")])
    assert payments_of(store, "o2", "ledger") == ["p3"]
    assert payments_of(store, "o2") == []
    assert letters(connection, "ledger") == [("p2", "dead", "ledger-o1")]


def test_a_dead_letter_parks_what_is_for_the_same_entity(connection, store):
    """Messages of other streams wait behind it if they are for the entity, and others do not."""
    component = new_orders()
    store.write_batch(
        [capture("p1", amount=13), capture("p2"), capture("p3", "o2"), capture("p4", amount=0)]
    )
    counts = drain(connection, component).counts
    assert counts == {"dead": 1, "parked": 2, "handled": 1}
    assert letters(connection) == [
        ("p1", "dead", "order-o1"),
        ("p2", "parked", "order-o1"),
        ("p4", "parked", "order-o1"),
    ]
    connection.execute(
        "UPDATE message_store.messages SET data = data || '{\"amount\": 14}' "
        "WHERE data->>'amount' = '13'"
    )
    retry_all(connection)
    drain(connection, component)
    assert {state for _, state, _ in letters(connection)} == {"handled"}
    assert payments_of(store) == ["p1", "p2"]
    assert passes(connection) == [("p4", "nothing")]


def test_a_component_of_subscriptions_alone_is_complete(connection, store):
    """It has no consumer of commands, and draining it ends."""
    component = Component("order", entity=Order, id="order_id")
    component.project(Paid)(lambda order, event: None)
    component.handle(Captured, category=PAYMENTS)(
        lambda event, order, context: Paid(event.order_id, event.payment_id)
    )
    component.check()
    store.write_batch([capture("p1")])
    assert drain(connection, component).counts == {"handled": 1}
    assert connection.execute("SELECT category FROM reservation.positions").fetchall() == [
        (PAYMENTS,)
    ]


def test_a_subscription_may_be_to_commands_of_another_component(connection, store):
    """Any category of others will do, whatever it is for."""
    store.write(Captured("p1", "o1", 10), "payment:command-p1")
    component = new_orders(category="payment:command")
    assert drain(connection, component).counts == {"handled": 1}
    assert payments_of(store) == ["p1"]


def test_the_handler_of_a_subscription_can_be_tested():
    """`check_deterministic` calls it, in the category that is named if there are several."""
    component = new_orders()
    handled = check_deterministic(component, Captured("p1", "o1", 10))
    assert handled.events == [Paid("o1", "p1")]
    assert handled.context.message.stream_name == "payment-o1"
    component.handle(Captured, category="refund")(lambda event, order, context: None)
    assert check_deterministic(component, Captured("p1", "o1", 1), category="refund").events == []
    with pytest.raises(Exception, match="several handlers for Captured; give category="):
        check_deterministic(component, Captured("p1", "o1", 10))
    with pytest.raises(Exception, match="no handler for Failed"):
        check_deterministic(component, Failed("p1", "o1"))


def test_a_component_without_an_entity_may_subscribe(connection, store):
    """Its handler gets None, and its events go to the stream that the id names."""
    component = Component("ledger", id="order_id")

    @component.handle(Captured, category=PAYMENTS)
    def captured(event: Captured, entity: None, context: Context) -> Paid:
        return Paid(event.order_id, event.payment_id)

    store.write_batch([capture("p1"), capture("p2")])
    assert drain(connection, component).counts == {"handled": 2}
    redeliver(connection)
    assert drain(connection, component).counts == {"duplicate": 2}
    assert payments_of(store, component="ledger") == ["p1", "p2"]


def test_a_batch_takes_a_constant_number_of_round_trips(connection, store, monkeypatch):
    """Looking for what was handled and recording passes take one statement each."""
    component, numbers = new_orders(), []
    for size in (1, 40, 120):
        store.write_batch(
            [capture(f"p{size}-{n}", f"o{size}-{n}", amount=n % 3) for n in range(size)]
        )
        with counted_round_trips(monkeypatch) as counted:
            assert drain(connection, component).counts == {"handled": size}
        numbers.append(len(counted))
    _, few, many = numbers
    assert 0 < many <= few


# By the command line


def stricter() -> Component:
    """Return orders that know another shape of the payments, and take only their own."""

    @dataclass(frozen=True)
    class Captured:
        order_id: str
        currency: str

    component = Component("order", entity=Order, id="order_id")
    component.handle(Captured, category=PAYMENTS, correlated=True)(lambda *_: None)
    return component


strict = stricter()
in_order = new_orders(once=PositionInEvents())
HERE = "tests.consumers.test_subscriptions"


def reservation(connection, *words, data=None):
    """Run a command, and return what it printed as JSON, or why it refused."""
    url = address(connection)
    done = invoke_cli(*words, "--json", "--database-url", url, input=data, cwd=ROOT)
    return json.loads(done.stdout) if done.returncode in (0, 1) else done.stderr


def test_commands_about_consumers_know_subscribed_categories(connection, store, database_url):
    """Each category has a consumer, positions, a lag and dead letters."""
    store.write(Place("o9"), "order:command-o9")
    store.write_batch([capture("p1"), capture("p2", "o2", amount=13), capture("p3", "o2")])
    with hosted(new_orders(), database_url) as thread:
        until(lambda: "dead" in {state for _, state, _ in letters(connection)}, thread)
        until(lambda: position_of(connection, "order:command"), thread)
    seen = reservation(connection, "status", APP)["partitions"]
    shown = {one["category"]: (one["lagMessages"], one["dead"], one["parked"]) for one in seen}
    assert shown == {"order:command": (0, 0, 0), PAYMENTS: (0, 1, 1)}
    listed = reservation(connection, "dead-letters", "list", "--category", PAYMENTS)
    assert [one["entity"] for one in listed["deadLetters"]] == ["order-o2", "order-o2"]
    positions = reservation(connection, "positions", "list", APP)["positions"]
    assert {one["category"] for one in positions} == {"order:command", PAYMENTS}


def test_a_subscribed_message_can_be_corrected(connection, store):
    """Its letter is given data that can be decoded."""
    component = new_orders()
    store.write_batch([capture("p1"), capture("p2")])
    connection.execute(
        'UPDATE message_store.messages SET data = data || \'{"amount": "ten"}\' '
        "WHERE global_position = 1"
    )
    assert drain(connection, component).counts == {"dead": 1, "handled": 1}

    def corrected(order):
        data = json.dumps({"paymentId": "p1", "orderId": order, "amount": 10})
        words = ["dead-letters", "retry", "1", "--data", "-", "--reason", "a number"]
        return reservation(connection, *words, data=data)

    assert "in orderId" in corrected("o2")
    assert corrected("o1")["changed"]
    drain(connection, component)
    assert payments_of(store) == ["p2", "p1"]
    redeliver(connection)
    assert drain(connection, component).counts == {"duplicate": 2}


class Crash(BaseException):
    """Stands for the end of a process."""


@pytest.mark.parametrize(
    ("options", "entity"),
    [({}, "order-o1"), ({"id": "payment_id"}, "order-p1"), ({"id": lambda _: "o1"}, None)],
    ids=["the component's", "a field", "a function"],
)
def test_the_entity_of_a_message_that_ends_its_process_is_read_without_code(
    connection, store, monkeypatch, options, entity
):
    """Of the data only the field is read; a function might end the process again."""
    component, ends = Component("order", entity=Order, id="order_id"), []
    component.handle(Captured, category=PAYMENTS, **options)(lambda *_: ends.append(True))
    wait = psycopg.Connection.wait

    def ending(self, *arguments, **options):
        if ends:
            ends.clear()
            raise Crash
        return wait(self, *arguments, **options)

    monkeypatch.setattr(psycopg.Connection, "wait", ending)
    store.write_batch([capture("p1")])
    for _ in range(4):
        with pytest.raises(Crashed):
            drain(connection, component)
    assert drain(connection, component).counts == {"dead": 1}
    assert letters(connection) == [("p1", "dead", entity)]


def test_a_strategy_that_needs_the_order_refuses_what_may_be_out_of_it(connection, store):
    """With several partitions, the streams of others do not keep the messages of an entity."""
    drain(connection, in_order)
    connection.execute("DELETE FROM reservation.members")
    assert reservation(connection, "partitions", f"{HERE}:in_order", "3", "--category", PAYMENTS)
    store.write(Captured("p1", "o1", 10), "payment-p1")
    store.write(Captured("p2", "o2", 10), "payment-o2")
    assert drain(connection, in_order).counts == {"dead": 1, "handled": 1}
    assert letters(connection) == [("p1", "dead", None)]
    ((error,),) = connection.execute("SELECT error FROM reservation.dead_letters").fetchall()
    assert "later messages of order-o1 may have been" in error


def test_old_passes_are_pruned(connection, store):
    """Those of the component that are old enough go, and their messages are handled again."""
    component = new_orders()
    store.write_batch([capture(f"p{n}", amount=0) for n in range(5)])
    drain(connection, component)
    drain(connection, new_orders("ledger"))
    connection.execute(
        "UPDATE reservation.passes SET passed_at = passed_at - interval '2 days' "
        "WHERE global_position < 5"
    )
    words = [APP, "--app-dir", str(ROOT), "--passes-older-than", "1d", "--batch-size", "3"]
    removed = {("passes", PAYMENTS): 4}
    assert prune(connection, *words, apply=False) == prune(connection, *words) == (removed, [])
    assert passes(connection) == [("p4", "nothing")]
    assert len(passes(connection, "ledger")) == 5
    redeliver(connection)
    assert drain(connection, component).counts == {"handled": 4, "duplicate": 1}


def test_passes_of_messages_that_are_gone_are_forgotten(connection, store):
    """A reset that forgets leaves those whose messages are in the log."""
    store.write_batch([capture(f"p{n}", amount=0) for n in range(3)])
    drain(connection, new_orders())
    connection.execute("DELETE FROM message_store.messages WHERE global_position = 2")
    for forgotten in ({"passes": 1}, {}):
        reset = reservation(connection, "positions", "reset", APP, "--forget", "--yes")
        assert reset["forgotten"] == forgotten
    assert passes(connection) == [("p0", "nothing"), ("p2", "nothing")]


def test_check_looks_at_subscribed_messages(connection, store):
    """Messages that are handled and cannot be read are found; those that are passed are not."""
    store.write_batch([capture("p1"), capture("p2", correlation_stream_name="order-1")])
    store.write(Failed("p3", "o1"), "payment-p3")
    types = reservation(connection, "check", f"{HERE}:strict")["types"]
    assert {(one["category"], one["role"]) for one in types} == {(PAYMENTS, "subscribed")}
    found = {(one["type"], one["declared"]): one for one in types}
    captured = found["Captured", "declared"]
    assert (captured["unreadable"], captured["firstUnreadable"]) == (1, 2)
    assert found["Failed", "ignored"]["messages"] == 1
