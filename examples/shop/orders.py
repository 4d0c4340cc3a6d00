"""Orders: a process manager, which leads an order through its payment and compensates."""

import os
from dataclasses import dataclass
from typing import Literal

from reservation import Component, Context, Reject
from reservation.strategies import MessageIdInEvents
from shop.messages import (
    Cancelled,
    CancelUnpaid,
    Capture,
    Captured,
    Declined,
    Paid,
    Place,
    Placed,
    Refund,
)

PRICES = {"book": 1900, "lamp": 4900, "chair": 12900}
PAY_WITHIN = os.environ.get("SHOP_PAY_WITHIN", "30m")


@dataclass
class Order:
    """What the events say about an order."""

    state: Literal["new", "placed", "paid", "cancelled"] = "new"


orders = Component("order", entity=Order, id="order_id")


@orders.initiate(Place)
def place(command: Place, context: Context) -> Placed:
    """Ask for the money, and have the order cancelled if it does not come in time."""
    if command.item not in PRICES:
        raise Reject(f"there is no {command.item}")
    placed = context.follow(command, Placed, cents=PRICES[command.item])
    capture = context.follow(placed, Capture, payment_id=command.order_id)
    context.write(capture, f"payment:command-{command.order_id}")
    context.write(
        CancelUnpaid(command.order_id), f"order:command-{command.order_id}", after=PAY_WITHIN
    )
    return placed


@orders.handle(CancelUnpaid, once=None)
def cancel_unpaid(command: CancelUnpaid, order: Order, context: Context) -> Cancelled | None:
    """Cancel an order whose time is up."""
    if order.state != "placed":
        return None
    return Cancelled(command.order_id, "not paid in time")


@orders.handle(Captured, category="payment", id="order_id", once=MessageIdInEvents())
def pay(event: Captured, order: Order, context: Context) -> Paid | None:
    """Record the payment; give the money back where the order was cancelled before it came."""
    if order.state == "cancelled":
        refund = context.follow(event, Refund, refund_id=str(context.id("refund")))
        context.write(refund, f"payment:command-{event.payment_id}")
        return None
    return context.follow(event, Paid)


@orders.handle(Declined, category="payment", id="order_id", once=MessageIdInEvents())
def decline(event: Declined, order: Order, context: Context) -> Cancelled | None:
    """Cancel an order that cannot be paid."""
    return None if order.state == "cancelled" else context.follow(event, Cancelled)


@orders.project(Placed)
def placed(order: Order, event: Placed) -> None:
    order.state = "placed"


@orders.project(Paid)
def paid(order: Order, event: Paid) -> None:
    order.state = "paid"


@orders.project(Cancelled)
def cancelled(order: Order, event: Cancelled) -> None:
    order.state = "cancelled"
