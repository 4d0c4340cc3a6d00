"""The components in the store that the console's tests look at: orders, and payments that can fail.

What becomes of a payment is in its customer's name: one of "broken" fails, one of "waiting" is
tried again in an hour, one of "declined" is declined; all others are paid.
"""

from dataclasses import dataclass
from typing import Literal

from reservation import Component, Context, Key, Retry
from reservation.strategies import MessageIdInEvents


@dataclass(frozen=True)
class Place:
    order_id: str
    customer: str
    cents: int


@dataclass(frozen=True)
class Placed:
    order_id: str
    customer: str
    cents: int


@dataclass(frozen=True)
class Paid:
    order_id: str


@dataclass(frozen=True)
class Cancelled:
    order_id: str
    reason: str


@dataclass(frozen=True)
class Remind:
    order_id: str


@dataclass(frozen=True)
class Capture:
    payment_id: str
    order_id: str
    customer: str
    cents: int
    note: str = ""


@dataclass(frozen=True)
class Captured:
    payment_id: str
    order_id: str
    cents: int


@dataclass(frozen=True)
class Declined:
    payment_id: str
    order_id: str
    reason: str


@dataclass
class Order:
    state: Literal["new", "placed", "paid", "cancelled"] = "new"


@dataclass
class Payment:
    cents: int = 0


class ProviderError(Exception):
    """The payment provider did not answer as it should."""


orders = Component("order", entity=Order, id="order_id")


@orders.initiate(Place)
def place(command: Place, context: Context) -> Placed:
    placed = context.follow(command, Placed)
    capture = context.follow(placed, Capture, payment_id=f"{command.order_id}/1")
    context.write(capture, f"payment:command-{command.customer}")
    context.write(Remind(command.order_id), f"order:command-{command.order_id}", after="30m")
    return placed


@orders.handle(Remind, once=None)
def remind(command: Remind, order: Order, context: Context) -> None:
    """Nothing to do."""


@orders.handle(Captured, category="payment", id="order_id", once=MessageIdInEvents())
def pay(event: Captured, order: Order, context: Context) -> Paid:
    return context.follow(event, Paid)


@orders.handle(Declined, category="payment", id="order_id", once=MessageIdInEvents())
def decline(event: Declined, order: Order, context: Context) -> Cancelled:
    return context.follow(event, Cancelled)


@orders.project(Placed)
def placed(order: Order, event: Placed) -> None:
    order.state = "placed"


@orders.project(Paid)
def paid(order: Order, event: Paid) -> None:
    order.state = "paid"


@orders.project(Cancelled)
def cancelled(order: Order, event: Cancelled) -> None:
    order.state = "cancelled"


payments = Component("payment", entity=Payment, id="customer", attempts=1)


@payments.handle(
    Capture,
    key=Key("payment_id", ignoring="note"),
    retry=Retry(attempts=5, first="1h", most="2h", on=(TimeoutError,)),
)
def capture(command: Capture, payment: Payment, context: Context) -> Captured | Declined:
    if command.customer == "waiting":
        raise TimeoutError("no answer within 5 s")
    if command.customer == "broken":
        raise ProviderError(f"the card of {command.customer} is refused")
    if command.customer == "declined":
        return context.follow(command, Declined, reason="no funds")
    return context.follow(command, Captured)


@payments.project(Captured)
def captured(payment: Payment, event: Captured) -> None:
    payment.cents += event.cents


payments.message(Declined)
