"""Reconciliation of a component whose messages are Pydantic models, and of classes of each kind."""

import dataclasses
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import attrs
import msgspec
import pydantic
import pytest

from reservation import Component, Key
from spark_jobs.common.result import Difference
from spark_jobs.facts.declared_code import code_of_component
from spark_jobs.facts.keys import stored
from spark_jobs.verdicts.meaning import differences
from tests.apps.bank import drain
from tests.apps.changing import raw
from tests.apps.purses import KINDS, of_aliased_models, of_models
from tests.spark.builders import ROOT


@pytest.mark.parametrize("kind", KINDS)
def test_commands_of_each_kind_are_compared_by_what_they_mean(kind):
    """A field that one of them leaves out has its default; those that differ are named."""
    purse = KINDS[kind]().component
    short = stored("Pay", None, '{"purseId":"1","payId":"a","amount":1.50}')
    same = stored("Pay", None, '{"purseId":"1","payId":"a","amount":1.5,"currency":"EUR"}')
    other = stored("Pay", None, '{"purseId":"1","payId":"a","amount":2,"sentBy":"x"}')
    assert differences(purse, short, same, values=True) == []
    assert differences(purse, other, same, values=True) == [
        Difference("field", "amount", "2", "1.5")
    ]


@pytest.mark.parametrize("name", ["models", "aliased"])
def test_the_consumers_and_spark_agree_on_models(connection, store, reconcile, name):
    """On duplicates, conflicts and keys, under whichever names the fields are stored."""
    purses = {"models": of_models, "aliased": of_aliased_models}[name]()

    def pay(key: str, amount: str, **others: Any) -> Any:
        return purses.pay(purse_id=key, pay_id=key, amount=Decimal(amount), **others)

    for key, amount in (("a", "1.50"), ("a", "1.5"), ("a", "2"), ("b", "1"), ("c", "1")):
        store.send(pay(key, amount, sent_by=amount), purses.component)
    store.send(pay("d", "3"), purses.component)
    # As another sender writes it, without a field that has a default.
    if name == "models":
        raw(connection, "purse:command-c", "Pay", {"purseId": "c", "payId": "c", "amount": 1})
    else:  # under the names of the fields in Python, which the model reads too
        data = {"purse_id": "c", "pay_id": "c", "amount": 1}
        raw(connection, "purse:command-c", "Named", data)
    counts = drain(connection, purses.component).counts
    found = reconcile(app=f"tests.apps.purses:{name}", app_dir=ROOT).counts[0]
    assert (counts["duplicate"], counts["conflict"]) == (2, 1)
    judged = {one: found[one] for one in ("commands", "keys", "duplicates", "conflicts", "missing")}
    assert judged == {"commands": 7, "keys": 4, "duplicates": 2, "conflicts": 1, "missing": 0}


def with_command(class_: Any) -> str:
    """Return the digest of the code of a component that reserves a command."""
    made = Component("account", id="account_id")
    made.handle(class_, key=Key("open_id"))(lambda command, entity, context: None)
    return code_of_component(made)


def model(default: int) -> type:
    return pydantic.create_model("Open", account_id=str, open_id=str, size=(int, default))


def model_with(function: Callable[..., Any]) -> type:
    class Open(pydantic.BaseModel):
        account_id: str
        open_id: str
        size: int = 1
        _checked = pydantic.field_validator("size")(function)

    return Open


def attrs_class(converter: Callable[[int], int]) -> type:
    @attrs.define
    class Open:
        account_id: str
        open_id: str
        size: int = attrs.field(default=1, converter=converter)

    return Open


def struct(default: int) -> type:
    fields = [("account_id", str), ("open_id", str), ("size", int, default)]
    return msgspec.defstruct("Open", fields)


def dataclass(default: int) -> type:
    fields = [
        ("account_id", str),
        ("open_id", str),
        ("size", int, dataclasses.field(default=default)),
    ]
    return dataclasses.make_dataclass("Open", fields)


def plus_one(value: int) -> int:
    return value + 1


def plus_two(value: int) -> int:
    return value + 2


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (dataclass, 1, 2),
        (struct, 1, 2),
        (attrs_class, plus_one, plus_two),
        (model, 1, 2),
        (model_with, plus_one, plus_two),
    ],
)
def test_the_digest_of_the_code_depends_on_defaults_and_on_what_changes_values(make, one, other):
    """It is the same for the same code, and another for another."""
    assert with_command(make(one)) == with_command(make(one))
    assert with_command(make(one)) != with_command(make(other))
