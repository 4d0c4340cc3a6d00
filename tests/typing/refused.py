"""Declarations that mypy and pyright must refuse, each at the line that says with which errors.

Nothing here is run. What follows ``# mypy:`` and ``# pyright:`` is the rule that is broken.
"""

# mypy: disable-error-code="empty-body"
# pyright: reportReturnType=false

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from psycopg import AsyncConnection
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import consumers
from consumers.testing import run_in_memory
from reservation import (
    AsyncMessageStore,
    Breaker,
    Component,
    Context,
    Key,
    MessageStore,
    Outcome,
    ReadContext,
    ReadModel,
    Reject,
    Retry,
    RetryLater,
    StoredMessage,
    Upcast,
)
from reservation.http import KeyedRequest
from reservation.strategies import Processed
from reservation.testing import given


@dataclass(frozen=True)
class Open:
    account_id: str


@dataclass(frozen=True)
class Deposit:
    account_id: str
    deposit_id: str


@dataclass(frozen=True)
class Opened:
    account_id: str


@dataclass(frozen=True)
class Deposited:
    account_id: str


@dataclass
class Account:
    balance: Decimal = Decimal(0)


@dataclass
class Cart:
    lines: int = 0


class Plain:
    """No dataclass."""


account = Component("account", entity=Account, id="account_id")
mailer = Component("mailer", id="account_id")


# Handlers.


@account.handle(Deposit, once=None)  # mypy: arg-type, pyright: reportArgumentType
def other_command(command: Open, account: Account, context: Context) -> Deposited: ...


@account.handle(Deposited, category="till")  # mypy: arg-type, pyright: reportArgumentType
def other_event(event: Open, account: Account, context: Context) -> Deposited: ...


account.handle(Deposited)  # mypy: call-overload, pyright: reportCallIssue
account.handle(Deposit, id="deposit_id", once=None)  # mypy: call-overload, pyright: reportCallIssue
account.handle(Deposit, key="a", category="till")  # mypy: call-overload, pyright: reportCallIssue
account.handle(Open, once=None, correlated=True)  # mypy: call-overload, pyright: reportCallIssue


@account.handle(Deposit, once=None)  # mypy: arg-type, pyright: reportArgumentType
def other_entity(command: Deposit, cart: Cart, context: Context) -> Deposited: ...


@account.handle(Deposit, once=None)  # mypy: arg-type, pyright: reportArgumentType
def other_context(command: Deposit, account: Account, context: str) -> Deposited: ...


@account.handle(Deposit, once=None)  # mypy: arg-type, pyright: reportArgumentType
def without_entity(command: Deposit, context: Context) -> Deposited: ...


@account.handle(Deposit, once=None)  # mypy: arg-type, pyright: reportArgumentType
def needs_more(command: Deposit, account: Account, context: Context, limit: int) -> Deposited: ...


@account.handle(Deposit, once=None)  # mypy: type-var, pyright: reportArgumentType
def returns_text(command: Deposit, account: Account, context: Context) -> str: ...


@account.handle(Deposit, once=None)  # mypy: type-var, pyright: reportArgumentType
def returns_texts(command: Deposit, account: Account, context: Context) -> list[str]: ...


@account.handle(Deposit, once=None)  # mypy: type-var, pyright: reportArgumentType
def returns_no_dataclass(command: Deposit, account: Account, context: Context) -> Plain: ...


@account.handle(Deposit, once=None)  # mypy: type-var, pyright: reportArgumentType
def returns_a_mapping(
    command: Deposit, account: Account, context: Context
) -> dict[str, Deposited]: ...


@account.handle(Deposit, once=None)  # mypy: type-var, pyright: reportArgumentType
def generates(command: Deposit, account: Account, context: Context) -> Iterator[Deposited]:
    yield Deposited(command.account_id)


@account.handle(Deposit, once=None)  # mypy: type-var, pyright: reportArgumentType
async def returns_no_event_when_awaited(
    command: Deposit, account: Account, context: Context
) -> int: ...


@account.handle(Deposit, once=None, concurrency=50)  # mypy: arg-type, pyright: reportArgumentType
async def takes_another_command_when_awaited(
    command: Open, account: Account, context: Context
) -> Deposited: ...


@account.initiate(Open)  # mypy: type-var, pyright: reportArgumentType
async def returns_no_first_event_when_awaited(command: Open, context: Context) -> None: ...


def takes_no_attempt(error: BaseException) -> None: ...


def takes_only_some_exceptions(error: ValueError, attempt: object) -> None: ...


account.on_error(takes_no_attempt)  # mypy: type-var, pyright: reportArgumentType
account.on_error(takes_only_some_exceptions)  # mypy: type-var, pyright: reportArgumentType


def takes_no_tick() -> Open: ...


def returns_the_key(tick: object) -> str: ...


account.every("0 2 * * *")(takes_no_tick)  # mypy: type-var, pyright: reportArgumentType
account.every("0 2 * * *")(returns_the_key)  # mypy: type-var, pyright: reportArgumentType
account.every("0 2 * * *", missed="first")  # mypy: arg-type, pyright: reportArgumentType


account.handle(Deposit, once=None, retry="1s")  # mypy: call-overload, pyright: reportArgumentType
Retry(attempts="10")  # mypy: arg-type, pyright: reportArgumentType
Retry(attempts=10, on=OSError())  # mypy: arg-type, pyright: reportArgumentType
account.handle(Deposit, once=None, breaker=20)  # mypy: call-overload, pyright: reportArgumentType
Breaker(failures=20)  # mypy: call-arg, pyright: reportCallIssue
Breaker(on=OSError, failures="20")  # mypy: arg-type, pyright: reportArgumentType
RetryLater(90)  # mypy: arg-type, pyright: reportArgumentType


@mailer.handle(Deposit, once=None)  # mypy: arg-type, pyright: reportArgumentType
def has_no_entity(command: Deposit, account: Account, context: Context) -> None: ...


class Rates:
    """A method of it is given, and not that of an instance."""

    def deposit(self, command: Deposit, account: Account, context: Context) -> Deposited: ...
    def opened(self, account: Account, event: Opened) -> Deposited: ...


account.handle(Deposit, once=None)(Rates.deposit)  # mypy: arg-type, pyright: reportArgumentType
account.handle(Open, once=None)(Rates().deposit)  # mypy: arg-type, pyright: reportArgumentType
account.handle(Plain, once=None)  # mypy: type-var, pyright: reportArgumentType
account.handle(Open, once=Processed)  # mypy: call-overload, pyright: reportArgumentType
account.handle(Open, once="processed")  # mypy: call-overload, pyright: reportArgumentType
account.handle(Open, key="id", transaction="x")  # mypy: call-overload, pyright: reportCallIssue


# Commands that start a stream.


@account.initiate(Open)  # mypy: arg-type, pyright: reportArgumentType
def starts_with_entity(command: Open, account: Account, context: Context) -> Opened: ...


@account.initiate(Open)  # mypy: arg-type, pyright: reportArgumentType
def starts_with_other_command(command: Deposit, context: Context) -> Opened: ...


@account.initiate(Open)  # mypy: type-var, pyright: reportArgumentType
def starts_with_nothing(command: Open, context: Context) -> None: ...


@account.initiate(Open)  # mypy: type-var, pyright: reportArgumentType
def starts_perhaps(command: Open, context: Context) -> Opened | None: ...


# Keys.


def key_of_other(command: Open) -> str:
    return command.account_id


def key_of_wrong_type(command: Deposit) -> float:
    return 0.5


account.handle(Deposit, key=key_of_other)  # mypy: arg-type, pyright: reportArgumentType
account.handle(Deposit, key=key_of_wrong_type)  # mypy: arg-type, pyright: reportArgumentType
account.handle(Deposit, key=Key(key_of_other))  # mypy: arg-type, pyright: reportArgumentType
account.handle(Deposit, key=Key)  # mypy: arg-type, pyright: reportArgumentType
account.handle(Deposit, key=5)  # mypy: call-overload, pyright: reportArgumentType
account.handle(Plain, key="id")  # mypy: type-var, pyright: reportArgumentType
Key(key_of_wrong_type)  # mypy: arg-type, pyright: reportArgumentType
Key("id", per=5)  # mypy: arg-type, pyright: reportArgumentType
Key("id", ignoring=None)  # mypy: arg-type, pyright: reportArgumentType
Key("id", "deposits")  # mypy: call-arg, pyright: reportCallIssue
Key(into="deposits")  # mypy: call-arg, pyright: reportCallIssue


# Projectors.


@account.project(Opened)  # mypy: arg-type, pyright: reportArgumentType
def projects_other_event(account: Account, event: Deposited) -> None: ...


@account.project(Opened)  # mypy: arg-type, pyright: reportArgumentType
def projects_other_entity(cart: Cart, event: Opened) -> None: ...


@account.project(Opened)  # mypy: arg-type, pyright: reportArgumentType
def projects_to_another(account: Account, event: Opened) -> Cart: ...


# Former names and shapes.


def upcasts_in_place(data: dict[str, object]) -> None: ...


def upcasts_an_event(event: Opened) -> Opened: ...


account.message(Opened, upcast=upcasts_in_place)  # mypy: arg-type, pyright: reportArgumentType
account.message(Opened, upcast=[upcasts_an_event])  # mypy: list-item, pyright: reportArgumentType
account.message(Opened, version="2")  # mypy: call-overload, pyright: reportArgumentType
account.message(Opened, former_names=Open)  # mypy: call-overload, pyright: reportArgumentType
account.message(Opened, Deposited, version=2)  # mypy: call-overload, pyright: reportCallIssue
account.message(Plain, version=2)  # mypy: arg-type, pyright: reportArgumentType
account.message()  # mypy: call-overload, pyright: reportCallIssue
account.message(Plain, Opened)  # mypy: arg-type, pyright: reportArgumentType
Upcast(upcasts_in_place, when=str)  # mypy: arg-type, pyright: reportArgumentType
Upcast(dict)  # mypy: call-arg, pyright: reportCallIssue
account.project(Opened, former_names="Begun")  # mypy: call-arg, pyright: reportCallIssue
account.handle(  # mypy: call-overload, pyright: reportCallIssue
    Open, once=None, former_names="Begin"
)
account.initiate(Open, volatile="time")  # mypy: call-arg, pyright: reportCallIssue
account.message(  # mypy: call-overload, pyright: reportCallIssue
    Opened, Deposited, former_names="Begun"
)
account.message("Opened")  # mypy: call-overload, pyright: reportArgumentType


# Stores.


def gathers(connection: AsyncConnection[Any]) -> None:
    AsyncMessageStore(connection, gather=True)  # mypy: call-overload, pyright: reportArgumentType


def borrows(session: Session, other: AsyncSession, engine: Engine) -> None:
    MessageStore(engine)  # mypy: arg-type, pyright: reportArgumentType
    MessageStore(other)  # mypy: arg-type, pyright: reportArgumentType
    AsyncMessageStore(session)  # mypy: call-overload, pyright: reportArgumentType
    AsyncMessageStore(other, gather=True)  # mypy: call-overload, pyright: reportArgumentType


async def sends(keyed: KeyedRequest, one: Session, other: AsyncSession) -> None:
    a = Open("1")
    await keyed.send(a, account, session=one)  # mypy: call-overload, pyright: reportArgumentType
    await keyed.send(a, account, session=1)  # mypy: call-overload, pyright: reportArgumentType


# Questions.


def takes_only_deposited(event: Deposited) -> None: ...


def asks(store: MessageStore, context: Context, message: StoredMessage, outcome: Outcome) -> None:
    account.question(Open("1"), key="1")  # mypy: call-overload, pyright: reportArgumentType
    context.send(Open("1"), "account:command-1")  # mypy: arg-type, pyright: reportArgumentType
    store.send(Open("1"), "account:command-1")  # mypy: call-overload, pyright: reportArgumentType
    store.send(Open("1"), account, at="soon")  # mypy: call-overload, pyright: reportArgumentType
    store.write([Open("1")], "a-1", after=30)  # mypy: call-overload, pyright: reportArgumentType
    takes_only_deposited(account.decode(message))  # mypy: arg-type, pyright: reportArgumentType
    account.decode(message, "Open")  # mypy: call-overload, pyright: reportArgumentType
    outcome.events_of(Plain)  # mypy: type-var, pyright: reportArgumentType
    store.outcome(Open("1"), Open)  # mypy: arg-type, pyright: reportArgumentType
    store.wait_for(Open("1"), account, 5)  # mypy: call-arg, pyright: reportCallIssue
    raise Reject(5)  # mypy: arg-type, pyright: reportArgumentType


# Components and programs.

Component("account", entity=Account)  # mypy: call-overload, pyright: reportCallIssue
Component("mailer", id="id", snapshot_every=5)  # mypy: call-overload, pyright: reportCallIssue
MessageStore("postgresql://")  # mypy: arg-type, pyright: reportArgumentType
consumers.run("bank:account", "")  # mypy: arg-type, pyright: reportArgumentType
consumers.drain(account)  # mypy: call-arg, pyright: reportCallIssue


# Tests.

given("account")  # mypy: arg-type, pyright: reportArgumentType
given(account, 1)  # mypy: arg-type, pyright: reportArgumentType
given(account, "1", Opened("1"))  # mypy: arg-type, pyright: reportArgumentType
given(account, "1", state=Opened("1"))  # mypy: misc, pyright: reportArgumentType
given(account).when()  # mypy: call-arg, pyright: reportCallIssue
given(account).when(Open("1"), id="1")  # mypy: arg-type, pyright: reportArgumentType
given(account).when(Open("1")).rejection = ""  # mypy: misc, pyright: reportAttributeAccessIssue
run_in_memory(account, Open("1"))  # mypy: arg-type, pyright: reportArgumentType
run_in_memory("bank:account", [])  # mypy: arg-type, pyright: reportArgumentType


balances = ReadModel("balances", version=1)
ReadModel("balances")  # mypy: call-arg, pyright: reportCallIssue


@balances.handle(Opened, category="account")  # mypy: arg-type, pyright: reportArgumentType
def opened_with_an_entity(event: Opened, entity: None, context: ReadContext) -> None: ...


@balances.handle_many(Opened, category="account")  # mypy: arg-type, pyright: reportArgumentType
def opened_one_by_one(event: Opened, context: ReadContext) -> None: ...


def takes_a_context(context: Context) -> None: ...


def writes(read: ReadContext) -> None:
    takes_a_context(read)  # mypy: arg-type, pyright: reportArgumentType
