"""Components whose command has a former name and shape, and whose command changed a default."""

from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from reservation import Component, Key

SENT = "shop:command-1"


@dataclass(frozen=True)
class Buy:
    """Was `Order`, and had a price in cents, no currency, and a note that said nothing."""

    __schema_version__ = 2

    shop_id: str
    buy_id: str
    price: Decimal
    currency: str = "EUR"
    sent: str = ""


def to_price(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"price": Decimal(data["cents"]) / 100, "sent": data.get("sentAt", "")}


HOWS = ["into", "function", "initiate"]


def shop(how: str = "into") -> Component:
    """Return a component that takes a command once, in one of the ways."""
    component = Component("shop", id="shop_id")
    if how == "initiate":
        component.initiate(Buy, ignoring="sent")(lambda *_: Bought("1"))
    else:
        fields: Any = (lambda command: command.buy_id) if how == "function" else "buy_id"
        key: Any = Key(fields, per=None, ignoring="sent", shared=True)
        component.handle(Buy, key=key)(lambda *_: None)
    component.message(Buy, former_names="Order", version=2, upcast=to_price)
    return component


@dataclass(frozen=True)
class Bought:
    shop_id: str


def old(**fields: Any) -> tuple[str, dict[str, Any], object]:
    return "Order", {"shopId": "1", "buyId": "a", "cents": 150} | fields, None


def new(**fields: Any) -> tuple[str, dict[str, Any], object]:
    return "Buy", {"shopId": "1", "buyId": "a", "price": 1.5} | fields, 2


Sent = tuple[str, dict[str, Any], object]

# What is sent first and again, and whether it means the same.
PAIRS: dict[str, tuple[Sent, Sent, bool]] = {
    "former name and shape": (old(), new(), True),
    "back again": (new(), old(), True),
    "with the default": (new(), new(currency="EUR"), True),
    "without it again": (new(currency="EUR", sent="now"), new(), True),
    "with another value": (new(), new(currency="USD"), False),
    "another default": (old(), new(currency="USD"), False),
    "another price": (old(), new(price=1.51), False),
    "another price of cents": (old(), old(cents=151), False),
    "volatile": (old(sentAt="then"), new(sent="now"), True),
    "a field of nobody": (new(), new(note="hello"), True),
    "a former name, and the same shape": (("Order", new()[1], 2), new(), True),
    "the same data in another version": (new(cents=7), ("Buy", new(cents=7)[1], 1), False),
}

# For Spark's workers, by how the command is taken once.
shops = SimpleNamespace(**{how: shop(how) for how in HOWS})


@dataclass(frozen=True)
class Pay:
    shop_id: str
    pay_id: str
    currency: str = "USD"
    sent: str = ""


@dataclass(frozen=True)
class PayAnew:
    shop_id: str
    pay_id: str
    currency: str = "EUR"
    sent: str = ""


PayAnew.__name__ = "Pay"


def till(command: type[Any], **options: Any) -> Component:
    """Return a component that takes one command, of one of the two forms."""
    component = Component("till", id="shop_id")
    component.handle(command, key=Key("pay_id", per=None, **options))(lambda *_: None)
    return component


former, now = till(Pay), till(PayAnew)
ignoring = till(PayAnew, ignoring="sent")
