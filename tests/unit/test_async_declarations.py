"""Declaring async handlers."""

import functools
from dataclasses import dataclass

import pytest

from reservation import Component
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError


@dataclass(frozen=True)
class Notify:
    customer_id: str


@dataclass(frozen=True)
class Notified:
    customer_id: str


@dataclass
class Customer:
    notices: int = 0


async def asynchronous(command, entity, context): ...


class Calling:
    async def __call__(self, command, entity, context): ...


@pytest.mark.parametrize(
    "handler", [asynchronous, functools.partial(asynchronous), Calling()], ids=["f", "partial", "c"]
)
def test_whatever_is_declared_async_is_awaited(handler):
    """Functions, partial ones and callable objects may be async, ten calls at a time by default."""
    component = Component("notice", id="customer_id")
    component.handle(Notify, once=None)(handler)
    assert declarations(component).own.concurrency == {"Notify": 10}


@pytest.mark.parametrize(
    ("options", "handler", "problem"),
    [
        (
            {"concurrency": 5},
            lambda command, entity, context: None,
            "concurrency=5 of Notify is for handlers with async def",
        ),
        ({"concurrency": 0}, asynchronous, "concurrency=0 of Notify is not from 1 to 10000"),
        ({"concurrency": 2.5}, asynchronous, "concurrency=2.5 of Notify is not a whole number"),
        ({"concurrency": True}, asynchronous, "concurrency=True of Notify is not a whole number"),
    ],
)
def test_what_cannot_be_async_is_refused_where_it_is_declared(options, handler, problem):
    """A handler that cannot run as it is declared is refused in one line."""
    component = Component("notice", entity=Customer, id="customer_id")
    with pytest.raises(DeclarationError, match=problem) as caught:
        component.handle(Notify, once=None, **options)(handler)
    assert "\n" not in str(caught.value)


def test_a_projector_cannot_be_async():
    """Only handlers are awaited."""

    async def apply(customer, event): ...

    component = Component("notice", entity=Customer, id="customer_id")
    with pytest.raises(DeclarationError, match="is async; declare it with def"):
        component.project(Notified)(apply)
