"""Orders that are cancelled if they are not paid in time: a component that schedules messages."""

from dataclasses import dataclass
from datetime import timedelta

from reservation import Component, Context

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
    """Return the component.

    Args:
        time_to_pay: after which an order expires.
        options: how its handlers are declared.
    """
    order = Component("order", entity=Order, id="order_id")

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
