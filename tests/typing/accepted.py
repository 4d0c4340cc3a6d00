"""Declarations that mypy and pyright must accept; nothing here is run."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, Self, assert_type
from uuid import UUID

import attrs
import msgspec
import psycopg
import pydantic
import sqlalchemy
import sqlalchemy.ext.asyncio as sqlalchemy_async
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

import consumers
from consumers.testing import run_in_memory
from reservation import (
    AsyncMessageStore,
    Breaker,
    Cancellation,
    Component,
    Context,
    FailedAttempt,
    Key,
    MessageStore,
    Outcome,
    Question,
    ReadContext,
    ReadModel,
    Recorded,
    Retry,
    RetryLater,
    StoredMessage,
    Tick,
    Upcast,
    Write,
)
from reservation.http import KeyedRequest
from reservation.strategies import (
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from reservation.testing import Result, Stored, check_deterministic, check_upcast, given


@dataclass(frozen=True)
class Open:
    account_id: str


@dataclass(frozen=True)
class Deposit:
    account_id: str
    deposit_id: str
    amount: Decimal


@dataclass(frozen=True)
class Withdraw:
    account_id: str
    withdrawal_id: str
    amount: Decimal


@dataclass(frozen=True)
class Opened:
    account_id: str


@dataclass(frozen=True)
class Deposited:
    amount: Decimal


@dataclass(frozen=True)
class Withdrawn:
    amount: Decimal


@dataclass(frozen=True)
class WithdrawalRejected:
    amount: Decimal


@dataclass
class Account:
    balance: Decimal = Decimal(0)


account = Component("account", entity=Account, id="account_id", snapshot_every=100)
assert_type(account, Component[Account])

mailer = Component("mailer", id="account_id", attempts=5)
assert_type(mailer, Component[None])


# A component of any entity.


def name_of(component: Component) -> str:
    return f"{component.name} of {component.entity} by {component.id}"


name_of(account)
name_of(mailer)


# Commands that start a stream.


@account.initiate(Open)
def open_account(command: Open, context: Context) -> Opened:
    return context.follow(command, Opened)


def call(context: Context) -> None:
    assert_type(open_account(Open("1"), context), Opened)


@account.initiate(Open, retry=Retry(attempts=3, on=OSError), concurrency=5)
async def open_elsewhere(command: Open, context: Context) -> Opened:
    return context.follow(command, Opened)


@account.every("0 2 * * *", zone="Europe/Berlin", missed="all", name="nightly")
def at_night(tick: Tick) -> Open | None:
    return Open(tick.key) if tick.time.day == 1 else None


def call_at_night(tick: Tick) -> None:
    assert_type(at_night(tick), Open | None)


@account.on_error
def report(error: BaseException, attempt: FailedAttempt) -> None:
    assert_type(attempt.outcome, Literal["waiting", "dead", "stopped"])


@account.handle(
    Deposit,
    key="deposit_id",
    retry=Retry(attempts=10, first="1s", most=timedelta(hours=1), on=(OSError, ValueError)),
    breaker=Breaker(failures=20, within="1m", open_for=timedelta(seconds=30), on=(OSError,)),
    concurrency=50,
)
async def deposit_elsewhere(
    command: Deposit, account: Account, context: Context
) -> Deposited | list[Deposited | None] | None:
    raise RetryLater("90s")


async def call_and_wait(context: Context) -> None:
    assert_type(await open_elsewhere(Open("1"), context), Opened)
    await deposit_elsewhere(Deposit("1", "d", Decimal(1)), Account(), context)


@account.initiate(Open, ignoring="account_id")
def open_with_deposit(command: Open, context: Context) -> list[Opened | Deposited]:
    return [Opened(command.account_id), Deposited(Decimal(1))]


# Handlers.


@account.handle(Deposit, key="deposit_id")
def deposit(command: Deposit, account: Account, context: Context) -> Deposited:
    return Deposited(command.amount + account.balance)


@account.handle(Withdraw, key="withdrawal_id")
def withdraw(
    command: Withdraw, account: Account, context: Context
) -> Withdrawn | WithdrawalRejected | None:
    return Withdrawn(command.amount) if context.sequence else None


@account.handle(Deposit, once=None)
def returns_nothing(command: Deposit, account: Account, context: Context) -> None:
    context.write(Opened("1"), "accounts-1")


@account.handle(Deposit, once=None)
def returns_several(
    command: Deposit, account: Account, context: Context
) -> tuple[Deposited, Withdrawn]:
    return Deposited(command.amount), Withdrawn(command.amount)


@account.handle(Deposit, once=None)
def returns_a_sequence(
    command: Deposit, account: Account, context: Context
) -> Sequence[Deposited | None]:
    return [None]


@account.handle(Deposit, once=None)
def without_context(command: Deposit, account: Account, *_: object) -> Deposited:
    return Deposited(command.amount)


@account.handle(Deposit, once=None)
def takes_more(
    command: Deposit, account: Account, context: Context, limit: int = 100
) -> Deposited | None:
    return Deposited(command.amount) if command.amount < limit else None


def takes_both(command: Deposit | Withdraw, account: Account, context: Context) -> Deposited:
    return Deposited(command.amount)


account.handle(Deposit, once=None)(takes_both)
account.handle(Withdraw, once=None)(takes_both)
account.handle(Deposit, once=None)(lambda command, account, context: Deposited(command.amount))


@account.handle(Deposit, once=None)
def takes_anything(command: object, account: object, context: object) -> None: ...


@account.handle(Deposit, once=None)
def without_types(command: Any, account: Any, context: Any) -> Any:
    return command


@mailer.handle(Deposit, once=None)
def without_entity(command: Deposit, _: None, context: Context) -> None:
    context.write(command, "mail-1")


class Rates:
    """What handlers share, which are its methods."""

    def deposit(self, command: Deposit, account: Account, context: Context) -> Deposited:
        return Deposited(command.amount)

    def __call__(self, command: Withdraw, account: Account, context: Context) -> Withdrawn:
        return Withdrawn(command.amount)

    @staticmethod
    def open(command: Open, context: Context) -> Opened:
        return Opened(command.account_id)

    @classmethod
    def deposited(cls, account: Account, event: Deposited) -> None:
        account.balance += event.amount

    def itself(self) -> Self:
        return self


rates = Rates()
account.handle(Deposit, once=None)(rates.deposit)
account.handle(Withdraw, once=None)(rates)
account.initiate(Open)(Rates.open)
account.project(Deposited)(Rates.deposited)


# Keys.


def deposit_key(command: Deposit) -> str:
    return command.deposit_id


def key_of_both(command: Deposit | Withdraw) -> tuple[str, int]:
    return command.account_id, 1


account.handle(Deposit, key=["account_id", "deposit_id"])(deposit)
account.handle(Deposit, key=deposit_key)(deposit)
account.handle(Deposit, key=key_of_both)(deposit)
account.handle(Deposit, key=lambda command: (command.account_id, 1))(deposit)
account.handle(Deposit, key=Key("deposit_id", into="deposits", per=None))(deposit)
account.handle(Deposit, key=Key(("account_id", "deposit_id"), per="account_id"))(deposit)
account.handle(Deposit, key=Key("deposit_id", ignoring="amount", shared=True))(deposit)
account.handle(Deposit, key=Key("deposit_id", ignoring=["amount"], former_key="amount"))(deposit)
account.handle(Deposit, key=Key(deposit_key, former_key=deposit_key))(deposit)
account.handle(Deposit, key=Key(key_of_both, former_key=("account_id",)))(deposit)
account.handle(Deposit, key=Key(lambda command: command.deposit_id))(deposit)
by_deposit = Key(deposit_key)
assert_type(by_deposit, Key[Deposit])
account.handle(Deposit, key=by_deposit)(deposit)


# Strategies.

account.handle(Deposit, once=Processed())(deposit)
account.handle(Deposit, once=MessageIdInEvents())(deposit)
account.handle(Deposit, once=PositionInEvents())(deposit)
account.handle(Deposit, once=Revisions())(deposit)
account.handle(Deposit, once=StateBased("delta"))(deposit)
account.handle(Deposit, once=None)(deposit)
account.handle(Deposit, key="deposit_id", once=MessageIdInEvents())(deposit)
account.handle(Withdrawn, category="till", id="amount", once=Processed())(
    lambda event, account, context: None
)


# Messages of others.


@account.handle(Withdrawn, category="till", id=lambda event: str(event.amount))
def on_withdrawn(event: Withdrawn, account: Account, context: Context) -> Deposited | None:
    context.write(event, "mail-1", correlated=True)
    return Deposited(event.amount)


account.handle(Withdrawn, category="till", id="amount", from_position=5, correlated=True)(
    lambda event, account, context: Deposited(event.amount)
)


@account.handle(Withdrawn, category="till", retry=Retry(attempts=3), concurrency=5)
async def on_withdrawn_elsewhere(event: Withdrawn, account: Account, context: Context) -> None: ...


# Projectors.


@account.project(Deposited)
def deposited(account: Account, event: Deposited) -> None:
    account.balance += event.amount


@account.project(Opened)
def opened(account: Account, event: Opened) -> Account:
    return Account()


balance_of_new: object = opened(Account(), Opened("123")).balance


def left(account: Account, event: Withdrawn | WithdrawalRejected) -> None: ...


account.project(Withdrawn)(left)
account.project(WithdrawalRejected)(left)


account.ignore("Renamed", "Closed")


# Former names and shapes.

account.message(Opened)
account.message(Opened, Deposited, Withdrawn)
account.message(Opened, former_names="Begun", stored_as="Begun")
account.message(Deposit, former_names=["Pay", "PayIn"])
account.message(Withdraw, former_names=("TakeOut",), stored_as=None)


def to_amount(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"amount": data["cents"] / 100}


def has_cents(data: dict[str, Any]) -> bool:
    return "cents" in data


account.message(Deposited, version=2, upcast=to_amount)
account.message(Deposited, version=3, upcast=[to_amount, lambda data: data | {"currency": "EUR"}])
account.message(Deposited, upcast=Upcast(to_amount, when=has_cents))
account.message(
    Deposited, upcast=[to_amount, Upcast(lambda data: data, when=lambda data: "at" not in data)]
)


# Clients, tests and programs.


def write(database_url: str) -> int:
    with MessageStore.open(database_url) as store:
        store.write_batch([Write(Open("1"), "account:command-1")])
        return store.write_initial(Open("2"), "account:command-2")


def read(database_url: str) -> list[Deposit]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        messages = MessageStore(connection).read_category("account:command")
        return [message.decode(Deposit) for message in messages]


def send_in_a_session(
    session: Session, sessions: scoped_session[Session], connection: sqlalchemy.Connection
) -> None:
    MessageStore(session).send(Open("1"), account)
    MessageStore(sessions)
    MessageStore(connection)
    assert_type(MessageStore.django(using="other"), MessageStore)


async def send_in_an_async_session(
    session: AsyncSession,
    sessions: async_scoped_session[AsyncSession],
    connection: sqlalchemy_async.AsyncConnection,
    keyed: KeyedRequest,
) -> None:
    await AsyncMessageStore(session).send(Open("1"), account)
    AsyncMessageStore(sessions)
    AsyncMessageStore(connection)
    assert_type(await keyed.send(Open("1"), account, session=session), bool)
    assert_type(await keyed.send(Open("1"), account, timeout=1.0), Outcome)
    assert_type(await keyed.wait_for(Open("1"), account), Outcome)


def use_an_orm(context: Context) -> None:
    with context.session() as session:
        assert_type(session, Session)
    with context.django(using="other"):
        pass


async def use_an_own_connection(context: Context) -> None:
    async with context.connected() as connection:
        assert_type(connection, AsyncConnection[Any])


def decode(message: StoredMessage) -> Decimal:
    assert_type(account.decode(message, Deposited), Deposited)
    assert_type(dataclasses.asdict(account.decode(message, Deposited)), dict[str, Any])
    assert_type(check_upcast(account, "Deposit", {"amount": 1}), Any)
    return check_upcast(account, Deposited, {"cents": 1}, version=1).amount


def ask(database_url: str) -> Outcome:
    with MessageStore.open(database_url) as store:
        question = account.question(Deposit, key="1", entity="2")
        sent = store.send(Open("1"), account, id=UUID(int=1), expected_version=-1)
        assert_type(sent.global_position, int)
        assert_type(store.outcome(Open("1"), account), Outcome)
        assert_type(store.outcome(question), Outcome)
        assert_type(account.question(Open("1"), stream_name="account:command-1"), Question)
        return store.wait_for(question, timeout=5)


async def ask_later(database_url: str) -> str | None:
    async with await AsyncMessageStore.open(database_url) as store:
        outcome = await store.wait_for(Open("1"), mailer, timeout=0.5)
        assert_type(outcome.events_of(Deposited), tuple[Deposited, ...])
        for event in outcome.events:
            if isinstance(event, Deposited):
                assert_type(event.amount, Decimal)
        return outcome.reason if outcome.state == "rejected" else None


def test() -> Any:
    return check_deterministic(account, Open("1")).state


def scenarios() -> None:
    scenario = given(account, "1", [Opened("1"), Stored("Opened", {"accountId": "1"})])
    result = scenario.when([Open("1"), Open("2")], id=UUID(int=1), time=datetime.now(UTC))
    assert_type(result, Result[Account])
    assert_type(result.entity, Account)
    assert_type(result.rejection, str | None)
    assert_type(result.retry_later, timedelta | None)
    assert_type([name for _, name in result.writes], list[str])
    assert_type([due for _, _, due in result.scheduled], list[datetime])
    assert_type(given(mailer).when(Open("1")).entity, None)
    given(account, "1", state=Account(), streams={"payment-1": [Opened("1")]})


def in_memory() -> None:
    ran = run_in_memory([account, mailer], [Open("1"), Write(Open("1"), "account:command-1")])
    assert_type(ran.entity(account, "1"), Account)
    assert_type([one.reason for one in ran.dead_letters], list[str | None])
    run_in_memory(account, [])


def run(database_url: str) -> int:
    consumers.run(account, database_url, batch_size=10)
    done = consumers.drain(mailer, database_url)
    return done.messages + done.counts["handled"]


def schedules(store: MessageStore, context: Context) -> None:
    later = store.write(Open("1"), "account:command-1", after="30m")
    assert_type(later, UUID)
    assert_type(store.send(Open("1"), account, after="30m"), UUID)
    assert_type(store.send(Open("1"), account, at=datetime.now(UTC), id=UUID(int=1)), UUID)
    assert_type(store.cancel(later), Cancellation)
    store.write(Open("1"), "account:command-1", at=datetime.now(UTC))
    context.write(Open("1"), "account:command-1", after=timedelta(minutes=30))
    context.write(Open("1"), "account:command-1", at=datetime.now(UTC))
    context.send(Open("1"), mailer, after="30m", correlated=True)
    context.send(Open("1"), account, expected_version=-1)
    assert_type([one.id for one in context.scheduled], list[UUID])


async def schedules_in_a_loop(store: AsyncMessageStore) -> None:
    assert_type(await store.write(Open("1"), "account:command-1", after="30m"), UUID)
    assert_type(await store.send(Open("1"), account, after="30m"), UUID)
    assert_type(await store.cancel(UUID(int=1)), Cancellation)


async def gathers(pool: AsyncConnectionPool[AsyncConnection[Any]]) -> int:
    async with await AsyncMessageStore.open("", gather=True) as store:
        await store.write(Open("1"), "account:command-1")
        assert_type((await store.send(Open("1"), account)).global_position, int)
    return await AsyncMessageStore(pool, gather=True).write(Open("1"), "account:command-1")


# Classes of other kinds.


class Refund(pydantic.BaseModel):
    account_id: str
    refund_id: str


class Refunded(msgspec.Struct, frozen=True):
    refund_id: str


@attrs.frozen
class RefundRefused:
    refund_id: str


@attrs.define
class Refunds:
    number: int = 0


refunds = Component("refunds", entity=Refunds, id="account_id")


@refunds.handle(Refund, key="refund_id")
def refund(command: Refund, entity: Refunds, context: Context) -> Refunded | RefundRefused:
    if entity.number:
        return context.follow(command, RefundRefused)
    return context.follow(command, Refunded)


@refunds.project(Refunded)
def count(entity: Refunds, event: Refunded) -> None:
    entity.number += 1


refunds.message(RefundRefused)
assert_type(refunds.question(Refund(account_id="1", refund_id="a")), Question)


balances = ReadModel("balances", version=1)


@balances.tables
def make_balances(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TABLE balances (account text PRIMARY KEY)")


@balances.handle(Opened, category="account")
def balance_opened(event: Opened, context: ReadContext) -> None:
    context.connection.execute("INSERT INTO balances VALUES (%s)", [event.account_id])


@balances.handle_many(Deposited, category="account")
def balance_deposited(events: Sequence[Recorded[Deposited]], context: ReadContext) -> None:
    assert_type(events[0].event, Deposited)
    assert_type([one.global_position for one in events], list[int])
    assert_type(context.time, datetime)


def reads(store: MessageStore, outcome: Outcome, database_url: str) -> bool:
    consumers.run([account, balances], database_url)
    consumers.drain(balances, database_url)
    assert_type(balances.wait_for(store, outcome.position), bool)
    return balances.wait_for(store, 1, timeout=0.5)


async def reads_in_a_loop(store: AsyncMessageStore) -> bool:
    return await balances.wait_for(store, 1)
