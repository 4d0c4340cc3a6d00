"""Declaring subscriptions: what is refused, and what a rolling upgrade may change."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from consumers.group.compatibility import compare
from reservation import Component, Key, Upcast
from reservation.declaration.records import UNDECLARED
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError, StreamNameError
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.strategies import MessageIdInEvents, Processed, StateBased
from tests.apps.orders import (
    PAYMENTS,
    Captured,
    Failed,
    Order,
    Paid,
    Place,
    new_orders,
    subscription,
)


@dataclass(frozen=True)
class Sent:
    parcel: str
    parcels: list[str] = field(default_factory=list)


def on(*arguments: Any, **options: Any) -> None:
    """Declare a subscription of orders."""
    handler = options.pop("handler", lambda event, order, context: None)
    component = options.pop("component", None) or new_orders()
    component.handle(*arguments, **options)(handler)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"category": "order"}, "the component's own category, which has its events; change the "),
        ({"category": "order:command"}, "has its commands; handle them with @order.handle"),
        ({"category": "payment"}, "Captured of payment has two handlers; keep one"),
        ({"category": "bill", "from_position": -1}, "from_position=-1 of Captured is not a global"),
        ({"category": "bill", "from_position": True}, "from_position=True"),
        ({"category": "bill", "from_position": "1"}, "from_position='1'"),
        ({"category": "bill", "correlated": "order"}, "correlated='order' of Captured"),
        ({"category": "bill", "id": "nothing"}, "has no field 'nothing'"),
        ({"category": "bill", "id": 7}, "id= of Captured is a int; give it the name of a field"),
        ({"category": "bill", "once": Processed}, "once=Processed of Captured is a class"),
        ({"category": "bill", "once": Processed(key="nothing")}, "has no field 'nothing'"),
        ({"category": "bill", "handler": lambda event: None}, "cannot be called with message, e"),
    ],
)  # fmt: skip
def test_a_subscription_that_cannot_work_is_refused(options, said):
    """The error is one line that names the component, the type and the way out."""
    with pytest.raises(DeclarationError) as caught:
        on(Captured, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("category", ["payment-1", "", "-"])
def test_the_source_is_the_name_of_a_category(category):
    """A stream is no category."""
    with pytest.raises(StreamNameError):
        on(Captured, category=category)


def test_a_message_without_the_components_id_names_its_own():
    """The error names the field that is missing, those there are, and id=."""
    with pytest.raises(
        DeclarationError, match=r"Sent has no field 'order_id' .* name one with id="
    ):
        on(Sent, category="parcel")
    with pytest.raises(DeclarationError, match="parcels"):  # a list names no stream
        on(Sent, category="parcel", id="parcels")


def test_the_function_below_is_no_class():
    """The decorator without parentheses is refused as the others are."""
    with pytest.raises(DeclarationError, match="has no parentheses"):
        on(lambda event: None, category=PAYMENTS)


def test_own_reservations_are_no_source_and_no_subscribed_category_takes_them():
    """Whichever is declared first."""
    component = Component("order", id="order_id")
    component.handle(Place, key="order_id")(lambda command, order, context: None)
    with pytest.raises(DeclarationError, match="which has its reservations"):
        on(Captured, category="orderTransaction", component=component)
    with pytest.raises(DeclarationError, match="'payment' is in use for the component's"):
        new_orders().handle(Captured, key=Key("payment_id", into=PAYMENTS))(
            lambda command, order, context: None
        )


def test_a_handler_is_annotated_for_the_message_and_own_events():
    """What it takes and returns is checked as for handlers of commands."""

    def takes_failed(event: Failed, order: Order, context: Any) -> None: ...
    def returns_command(event: Captured, order: Order, context: Any) -> Place: ...

    with pytest.raises(DeclarationError, match="take event: Failed, and the message is Captured"):
        on(Captured, category="bill", handler=takes_failed)
    with pytest.raises(DeclarationError, match="annotated to return the command Place"):
        on(Captured, category="bill", handler=returns_command)


def test_events_of_subscriptions_are_declared():
    """An event that nobody declares is found by `check`."""

    @dataclass(frozen=True)
    class Lost:
        order_id: str

    def lost(event: Captured, order: Order, context: Any) -> Lost: ...

    component = new_orders()
    on(Captured, category="bill", handler=lost, component=component)
    with pytest.raises(DeclarationError, match=r"not declared: Lost \(of Captured\)"):
        component.check()


def test_what_is_declared_can_be_read():
    """Consumers and reconciliations read the declaration; former names lead to it too."""
    component = new_orders(from_position=5, correlated=True)
    component.message(Captured, former_names="PaymentCaptured")
    component.check()
    for name in ("Captured", "PaymentCaptured"):
        declared = subscription(component, PAYMENTS, name)
        assert (declared.message, declared.from_position, declared.correlated) == (
            Captured, 5, True,
        )  # fmt: skip
    assert declarations(component).subscribed_categories == [PAYMENTS]
    assert (
        declarations(component).others[PAYMENTS].entity_stream(Captured("p", "o1", 1)) == "order-o1"
    )


def test_a_component_of_nothing_is_incomplete():
    """The error names subscriptions among the ways out."""
    with pytest.raises(DeclarationError, match=r"or messages of others with @order.handle"):
        Component("order", id="order_id").check()


def test_the_window_of_states_is_that_of_subscriptions_too():
    """Versions of states are kept for ever where one handler needs that."""
    component = Component("order", entity=Order, id="order_id")
    on(Captured, category="bill", component=component, once=StateBased())
    assert declarations(component).state_window is None
    assert declarations(component).own.state_based == {}


@dataclass(frozen=True)
class Renamed:
    order_id: str


def problems(mine: Component[Any], theirs: Component[Any]) -> list[str]:
    """Return why a process may not run beside another one, and make sure that both see it."""
    one, other = (
        ProcessDeclaration.from_json(ProcessDeclaration.of(each).to_json())
        for each in (mine, theirs)
    )
    found = [difference.text for difference in compare(one, other)]
    assert bool(found) is bool(list(compare(other, one)))
    return found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"id": "payment_id"}, "Captured is order-orderId there and order-paymentId here"),
        ({"id": lambda event: event.order_id}, "order-orderId there and order-a function"),
        ({"from_position": 3}, "order-orderId, from 3 here"),
        ({"correlated": True}, "order-orderId, correlated here"),
        ({"once": MessageIdInEvents()}, "order-orderId, MessageIdInEvents() here"),
    ],
)
def test_a_changed_subscription_is_refused_beside_the_former(options, said):
    """One of the two would pass or repeat what the other handles."""
    (problem,) = problems(new_orders(**options), new_orders())
    assert said in problem


def test_a_type_that_the_other_passes_is_refused():
    """It would be lost in the partitions of the other; another category has other members."""
    more = new_orders()
    on(Failed, category=PAYMENTS, component=more)
    assert "Failed of payment is handled here, and ignored there" in problems(more, new_orders())[0]
    assert "Failed of payment is handled there, and ignored here" in problems(new_orders(), more)[0]
    other = new_orders()
    on(Failed, category="bill", component=other)
    assert problems(other, new_orders()) == []


def test_a_class_may_be_renamed_beside_the_former():
    """Both read the name that is stored."""
    renamed = new_orders()
    renamed.message(Captured, former_names="PaymentCaptured")
    assert problems(renamed, new_orders()) == []


def test_an_own_event_may_have_the_name_of_a_subscribed_one():
    """A category has types of its own."""

    def other() -> type:
        @dataclass(frozen=True)
        class Paid:
            order_id: str

        return Paid

    component = new_orders()
    on(other(), category="bill", component=component)
    assert declarations(component).types["Paid"] is Paid
    assert declarations(component).others["bill"].types["Paid"] is not Paid


def test_upcasters_of_a_subscribed_message_do_not_declare_an_own_event():
    """Nothing but its shapes is said of it, wherever it is known."""
    component = new_orders()
    component.message(Captured, upcast=Upcast(dict, when=lambda data: "cents" in data))
    table = declarations(component)
    assert table.own["Captured"] is UNDECLARED
    assert table.others[PAYMENTS].types.is_upcast("Captured")
