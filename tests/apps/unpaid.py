"""Orders that are cancelled if they are not paid in time: a component that schedules messages."""

from dataclasses import dataclass
from datetime import timedelta

from reservation import Component, Context, Key
from reservation.strategies import Processed

SENT = "order:command"
TIME_TO_PAY = timedelta(milliseconds=400)


@dataclass(frozen=True)
class Place:
    order_id: str


@dataclass(frozen=True)
class Pay:
    order_id: str


@dataclass(frozen=True)
class Expire:
    order_id: str


@dataclass(frozen=True)
class Placed:
    order_id: str


@dataclass(frozen=True)
class Paid:
    order_id: str


@dataclass(frozen=True)
class Expired:
    order_id: str


@dataclass
class Order:
    is_placed: bool = False
    is_paid: bool = False


def orders(time_to_pay: timedelta | str = "30m", **options: object) -> Component:
    """Return the component."""
    order = Component("order", entity=Order, id="order_id")
    options = {"once": None} | options

    @order.handle(Place, **options)
    def place(command: Place, entity: Order, context: Context) -> Placed | None:
        if entity.is_placed:
            return None
        context.write(Expire(command.order_id), f"{SENT}-{command.order_id}", after=time_to_pay)
        return Placed(command.order_id)

    @order.handle(Pay, **options)
    def pay(command: Pay, entity: Order, context: Context) -> Paid | None:
        return None if entity.is_paid else Paid(command.order_id)

    @order.handle(Expire, **options)
    def expire(command: Expire, entity: Order, context: Context) -> Expired | None:
        return None if entity.is_paid else Expired(command.order_id)

    @order.project(Placed)
    def placed(entity: Order, event: Placed) -> None:
        entity.is_placed = True

    @order.project(Paid)
    def paid(entity: Order, event: Paid) -> None:
        entity.is_paid = True

    order.message(Expired)
    return order


order = orders(TIME_TO_PAY)


def reserved(**options: object) -> Component:
    """Return a component of which a handler does nothing but schedule a command."""
    component = Component("order", id="order_id")

    @component.handle(Place, key="order_id", **options)
    def place(command: Place, entity: None, context: Context) -> None:
        context.write(Expire(command.order_id), f"{SENT}-{command.order_id}", after="30m")

    @component.handle(Expire, key=Key("order_id", into="orderExpiry"), **options)
    def expire(command: Expire, entity: None, context: Context) -> Expired:
        return Expired(command.order_id)

    return component


reminding = reserved()
processed = reserved(once=Processed())
