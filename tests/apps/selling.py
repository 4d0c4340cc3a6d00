"""A shop's till, whose sales are reserved: messages and a component for the tests of traces."""

from dataclasses import dataclass
from typing import Any

from reservation import Component, Key

COMMANDS, COPIES = "till:command", "tillSale"


@dataclass(frozen=True)
class Open:
    till_id: str


@dataclass(frozen=True)
class Opened:
    till_id: str


@dataclass(frozen=True)
class Sell:
    till_id: str
    sale_id: str
    amount: int = 1


@dataclass(frozen=True)
class Sold:
    till_id: str
    sale_id: str
    amount: int = 1


@dataclass(frozen=True)
class Print:
    till_id: str


@dataclass(frozen=True)
class Printed:
    till_id: str


@dataclass
class Till:
    sold: int = 0


def till(handler: Any = None, *, attempts: int = 3, **options: Any) -> Component[Till]:
    """Return a component that reserves sales, and handles them with this."""
    component = Component("till", entity=Till, id="till_id", attempts=attempts, replies_to="reply")
    component.initiate(Open)(lambda command, context: Opened(command.till_id))
    component.message(Opened, Sold, Printed)
    component.handle(Sell, key=Key("sale_id", into=COPIES), **options)(handler or sell)
    component.handle(Print, once=None)(lambda command, till, context: Printed(command.till_id))
    return component


def sell(command: Sell, till: Till, context: Any) -> Sold:
    return Sold(command.till_id, command.sale_id, command.amount)
