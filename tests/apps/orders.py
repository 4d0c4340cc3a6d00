"""Orders that follow the payments of another component, as the tests of subscriptions use them.

Started as processes, the app is ``tests.apps.orders:orders`` in the folder of the repository.
"""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reservation import Component, Metadata, Write
from reservation.declaration.records import MessageDeclaration
from reservation.declaration.table import declarations

ROOT = Path(__file__).parents[2]
APP = "tests.apps.orders:orders"
PAYMENTS = "payment"


@dataclass(frozen=True)
class Captured:
    payment_id: str
    order_id: str
    amount: int


@dataclass(frozen=True)
class Failed:
    payment_id: str
    order_id: str


@dataclass(frozen=True)
class Place:
    order_id: str


@dataclass(frozen=True)
class Placed:
    order_id: str


@dataclass(frozen=True)
class Paid:
    order_id: str
    payment_id: str


@dataclass(frozen=True)
class Ship:
    order_id: str


@dataclass
class Order:
    placed: bool = False
    payments: list[str] = field(default_factory=list)


def new_orders(name: str = "order", *, entity: bool = True, **options: Any) -> Component[Any]:
    """Return orders that take every captured payment; options are those of the subscription.

    An amount of 0 is passed, one of 1 only writes a command, one of 13 fails, and one of 99 kills
    the process once.
    """
    orders: Component[Any] = Component(name, entity=Order, id="order_id")
    category = options.pop("category", PAYMENTS)

    @orders.initiate(Place)
    def place(command: Place, context: Any) -> Placed:
        return Placed(command.order_id)

    @orders.handle(Captured, category=category, **options)
    def captured(event: Captured, order: Order, context: Any) -> Paid | None:
        if event.amount == 13:
            raise ValueError("unlucky")
        if event.amount == 99 and (file := Path(os.environ["KILLS"])).exists():
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if event.amount == 1:
            context.write(Ship(event.order_id), f"shipping:command-{event.order_id}")
        return Paid(event.order_id, event.payment_id) if event.amount > 1 else None

    @orders.project(Placed)
    def placed(order: Order, event: Placed) -> None:
        order.placed = True

    @orders.project(Paid)
    def paid(order: Order, event: Paid) -> None:
        order.payments.append(event.payment_id)

    return orders


orders = new_orders()


def capture(payment: str, order: str = "o1", amount: int = 10, **metadata: Any) -> Write:
    """Return an event of a payment, to be written."""
    event = Captured(payment, order, amount)
    return Write(event, f"{PAYMENTS}-{payment}", metadata=Metadata(**metadata))


def subscription(component: Component[Any], category: str, type_: str) -> MessageDeclaration:
    """Return what is declared of a type of messages in a category."""
    return declarations(component).others[category][type_]


def payments_of(store: Any, order: str = "o1", component: str = "order") -> list[str]:
    """Return the payments that the events of an order name, in order."""
    events = store.read_stream(f"{component}-{order}")
    return [message.decode(Paid).payment_id for message in events if message.type == "Paid"]


def passes(connection: Any, consumer: str = "order") -> list[tuple[str, str]]:
    """Return the payments of the recorded passes and their reasons, in order."""
    return connection.execute(
        "SELECT m.data->>'paymentId', p.reason FROM reservation.passes p "
        "JOIN message_store.messages m USING (global_position) WHERE consumer = %s "
        "ORDER BY global_position",
        [consumer],
    ).fetchall()
