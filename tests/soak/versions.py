"""Versions of the bank's component, as its author deploys them one after the other."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

# Of later versions: commands and an event have another name, two messages have got a field that
# they must have, with an upcaster, and others one that they may have. The second version writes the
# former names, so that the first version can read all of it; the third has another key too.
_SECOND = """
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from bank.entity import Account
from bank.messages import Close, Closed, WithdrawalRejected, Withdrawn
from reservation import Component, Context, Key


@dataclass(frozen=True)
class OpenAccount:
    __schema_version__ = 2
    {open_stored_as}
    account_id: str
    customer_id: str
    time: datetime
    currency: str


@dataclass(frozen=True)
class MakeDeposit:
    {deposit_stored_as}
    deposit_id: str
    account_id: str
    amount: Decimal
    time: datetime
    note: str | None = None


@dataclass(frozen=True)
class Withdraw:
    withdrawal_id: str
    account_id: str
    amount: Decimal
    time: datetime
    note: str | None = None


@dataclass(frozen=True)
class Opened:
    __schema_version__ = 2
    account_id: str
    customer_id: str
    time: datetime
    processed_time: datetime
    currency: str


@dataclass(frozen=True)
class Credited:
    # The bank's invariants look for this name.
    __stored_as__ = "Deposited"
    deposit_id: str
    account_id: str
    amount: Decimal
    time: datetime
    processed_time: datetime
    sequence: int
    note: str | None = None


account = Component("account", entity=Account, id="account_id")


def in_euros(data):
    return data | {{"currency": "EUR"}}


account.message(OpenAccount, former_names="Open", version=2, upcast=in_euros)
account.message(Opened, version=2, upcast=in_euros)
account.message(MakeDeposit, former_names="Deposit")


@account.initiate(OpenAccount, ignoring="time")
def open_account(command: OpenAccount, context: Context) -> Opened:
    return context.follow(command, Opened, processed_time=context.time)


@account.handle(MakeDeposit, key=Key({deposit_key}, ignoring="time"))
def deposit(command: MakeDeposit, account: Account, context: Context) -> Credited | None:
    if account.processed(context.sequence):
        return None
    return context.follow(
        command, Credited, processed_time=context.time, sequence=context.sequence
    )


@account.handle(Withdraw, key=Key("withdrawal_id", ignoring="time"))
def withdraw(
    command: Withdraw, account: Account, context: Context
) -> Withdrawn | WithdrawalRejected | None:
    if account.processed(context.sequence):
        return None
    outcome = Withdrawn if account.covers(command.amount) else WithdrawalRejected
    return context.follow(command, outcome, processed_time=context.time, sequence=context.sequence)


@account.handle(Close, once=None)
def close(command: Close, account: Account, context: Context) -> Closed | None:
    if account.closed:
        return None
    return context.follow(command, Closed, processed_time=context.time)


@account.project(Opened)
def opened(account: Account, event: Opened) -> None:
    account.opened = event.time


@account.project(Credited)
def credited(account: Account, event: Credited) -> None:
    account.balance += event.amount
    account.sequence = event.sequence


@account.project(Withdrawn)
def withdrawn(account: Account, event: Withdrawn) -> None:
    account.balance -= event.amount
    account.sequence = event.sequence


@account.project(WithdrawalRejected)
def withdrawal_rejected(account: Account, event: WithdrawalRejected) -> None:
    account.sequence = event.sequence


@account.project(Closed)
def closed(account: Account, event: Closed) -> None:
    account.closed = event.time
"""


# The second version looks for the names of the third, which may then run beside it.
_KEY = '"deposit_id", former_key=("account_id", "deposit_id", "account_id")'
_LATER_KEY = '("deposit_id", "account_id"), former_key=("account_id", "deposit_id")'


def write_versions(folder: Path) -> None:
    """Write the second version, which writes former names, and the third, which does not."""
    for name, former in (("second", True), ("third", False)):
        text = _SECOND.format(
            open_stored_as='__stored_as__ = "Open"' if former else "",
            deposit_stored_as='__stored_as__ = "Deposit"' if former else "",
            deposit_key=_KEY if former else _LATER_KEY,
        )
        (folder / f"{name}.py").write_text(text)


@contextmanager
def imported(folder: Path, name: str) -> Iterator[ModuleType]:
    """Give a version as a module, for senders."""
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)
