"""A purse whose handlers are idempotent by a strategy that the test chooses."""

from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from psycopg import Connection

from bank.messages import Deposit, Deposited, Open, Opened, Withdraw, Withdrawn
from reservation import Component, MessageStore
from reservation.strategies import MessageIdInEvents, Revisions, StateBased
from tests.apps.bank import drain

PURSE = "purse:command-123"


@dataclass
class Purse:
    balance: Decimal = Decimal(0)


@dataclass(frozen=True)
class NumberedDeposit(Deposit):
    revision: int
    source: str


@dataclass(frozen=True)
class NumberedWithdraw(Withdraw):
    revision: int
    source: str


def numbered(command: Any, revision: int, source: str = "s") -> Any:
    """Return a command with a revision."""
    made = NumberedDeposit if isinstance(command, Deposit) else NumberedWithdraw
    values = {field.name: getattr(command, field.name) for field in fields(command)}
    return made(**values, revision=revision, source=source)


def key_of(command: Any) -> str:
    """Return the business key of a command."""
    return command.deposit_id if isinstance(command, Deposit) else command.withdrawal_id


def purse(
    once: Any = None,
    name: str = "purse",
    adds: Any = Deposit,
    takes: Any = Withdraw,
    add_key: Any = None,
    take_key: Any = None,
    **options: Any,
) -> Component:
    """Return a component that adds and takes, if the balance suffices."""
    component = Component(name, entity=Purse, id="account_id", **options)

    def follow(command, event, entity, context):
        event = context.follow(
            command, event, processed_time=context.time, sequence=context.sequence
        )
        if isinstance(once, StateBased):  # the handler changes the state, and not the event
            (deposited if isinstance(event, Deposited) else withdrawn)(entity, event)
        return event

    @component.handle(adds, key=add_key, once=once)
    def deposit(command, entity, context):
        return follow(command, Deposited, entity, context)

    @component.handle(takes, key=take_key, once=once)
    def withdraw(command, entity, context):
        if command.amount > entity.balance:
            return None
        return follow(command, Withdrawn, entity, context)

    @component.project(Deposited)
    def deposited(entity, event):
        entity.balance += event.amount

    @component.project(Withdrawn)
    def withdrawn(entity, event):
        entity.balance -= event.amount

    return component


def copied(once: Any = None) -> Component:
    """Return a purse whose commands are reserved into a category of their own."""
    return purse(once, add_key="deposit_id", take_key="withdrawal_id")


def revised(once: Any = Revisions()) -> Component:  # noqa: B008  it is a value
    """Return a purse whose commands carry revisions."""
    return purse(once, adds=NumberedDeposit, takes=NumberedWithdraw)


def opened() -> Component:
    """Return a purse that a command may open, as the first thing that is done with it."""
    component = purse(MessageIdInEvents())
    component.message(Opened)

    @component.initiate(Open)
    def open_(command, context):
        return context.follow(command, Opened, processed_time=context.time)

    return component


def empty(connection: Connection[Any]) -> None:
    """Remove from the store what a component, its senders and its consumers left."""
    deletes = [f"DELETE FROM {table};" for (table,) in kept_tables(connection)]
    numbers = "SELECT setval('message_store.messages_global_position_seq', 1, false)"
    connection.execute("".join(deletes) + numbers)


def kept_tables(connection: Connection[Any]) -> list[tuple[str]]:
    """Return the tables of what strategies keep, by their quoted names."""
    return connection.execute(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
        " WHERE schemaname = 'message_store'"
        " OR schemaname = 'reservation'"
        " AND tablename NOT IN ('versions', 'sender_categories', 'store_identity')"
        " ORDER BY 1"
    ).fetchall()


def redeliver(connection: Connection[Any], to: int = 0) -> None:
    """Set every position back, so that stored messages are read again."""
    connection.execute("UPDATE reservation.moves SET position = least(position, %s)", [to])


def counts(results: list[Any]) -> dict[str, int]:
    """Return how the messages of some batches were counted."""
    total: dict[str, int] = {}
    for result in results:
        for what, number in result.counts.items():
            total[what] = total.get(what, 0) + number
    return total


def drained(connection: Connection[Any], component: Component) -> dict[str, int]:
    """Take a component's categories to their ends and return how messages were counted."""
    return dict(drain(connection, component).counts)


def effects(store: MessageStore, stream_name: str = "purse-123") -> list[str]:
    """Return the types of an entity's events, without those that have no effect."""
    return [
        message.type for message in store.read_stream(stream_name) if message.type != "PseudoEvent"
    ]
