"""The same component four times: its messages and its entity as classes of each kind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic

from reservation import Component, Key


class Purses(NamedTuple):
    """A component, and the classes of its messages and its entity."""

    component: Component
    pay: Any
    paid: Any
    coin: Any
    entity: Any


def declared(pay: Any, paid: Any, coin: Any, entity: Any) -> Purses:
    purse = Component("purse", entity=entity, id="purse_id", snapshot_every=2)

    @purse.handle(pay, key=Key("pay_id", ignoring="sent_by"))
    def handle(command, entity, context):
        return context.follow(command, paid)

    @purse.project(paid)
    def add(entity, event):
        entity.total += event.amount
        entity.coins.append(coin(worth=event.amount))

    return Purses(purse, pay, paid, coin, entity)


def of_dataclasses() -> Purses:
    @dataclass(frozen=True)
    class Pay:
        purse_id: str
        pay_id: str
        amount: Decimal
        sent_by: str = ""
        currency: str = "EUR"

        def __post_init__(self):
            if self.amount <= 0:
                raise ValueError("SECRET")

    @dataclass(frozen=True)
    class Paid:
        purse_id: str
        amount: Decimal

    @dataclass
    class Coin:
        worth: Decimal

    @dataclass
    class Purse:
        total: Decimal = Decimal(0)
        coins: list[Coin] = field(default_factory=list)

    return declared(Pay, Paid, Coin, Purse)


def of_structs() -> Purses:
    class Pay(msgspec.Struct, frozen=True):
        purse_id: str
        pay_id: str
        amount: Decimal
        sent_by: str = ""
        currency: str = "EUR"

        def __post_init__(self):
            if self.amount <= 0:
                raise ValueError("SECRET")

    class Paid(msgspec.Struct, frozen=True):
        purse_id: str
        amount: Decimal

    class Coin(msgspec.Struct):
        worth: Decimal

    class Purse(msgspec.Struct):
        total: Decimal = Decimal(0)
        coins: list[Coin] = []

    return declared(Pay, Paid, Coin, Purse)


def of_attrs_classes() -> Purses:
    @attrs.frozen
    class Pay:
        purse_id: str
        pay_id: str
        amount: Decimal = attrs.field(validator=attrs.validators.gt(0))
        sent_by: str = ""
        currency: str = "EUR"

    @attrs.frozen
    class Paid:
        purse_id: str
        amount: Decimal

    @attrs.define
    class Coin:
        worth: Decimal

    @attrs.define
    class Purse:
        total: Decimal = Decimal(0)
        coins: list[Coin] = attrs.Factory(list)

    return declared(Pay, Paid, Coin, Purse)


def of_models() -> Purses:
    class Pay(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(frozen=True)
        purse_id: str
        pay_id: str
        amount: Decimal = pydantic.Field(gt=0)
        sent_by: str = ""
        currency: str = "EUR"

    class Paid(pydantic.BaseModel):
        purse_id: str
        amount: Decimal

    class Coin(pydantic.BaseModel):
        worth: Decimal

    class Purse(pydantic.BaseModel):
        total: Decimal = Decimal(0)
        coins: list[Coin] = []

    return declared(Pay, Paid, Coin, Purse)


KINDS: dict[str, Callable[[], Purses]] = {
    "dataclasses": of_dataclasses,
    "structs": of_structs,
    "attrs classes": of_attrs_classes,
    "models": of_models,
}


class Named(pydantic.BaseModel):
    """Whose fields are stored under other names."""

    model_config = pydantic.ConfigDict(populate_by_name=True)
    purse_id: str = pydantic.Field(alias="purse")
    pay_id: str = pydantic.Field(serialization_alias="payment-key")
    amount: Decimal = pydantic.Field(alias="AMOUNT")
    sent_by: str = pydantic.Field("", alias="from")


def of_aliased_models() -> Purses:
    others = of_models()
    return declared(Named, others.paid, others.coin, others.entity)


models = of_models().component
aliased = of_aliased_models().component
