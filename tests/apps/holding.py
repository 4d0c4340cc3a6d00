"""The bank, whose deposit ``held`` waits until the test lets it go on.

`bank` is for this process; processes of their own run this module as an app, see `Holding`.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bank import component as parts
from bank.entity import Account
from bank.messages import (
    Close,
    Closed,
    Deposit,
    Deposited,
    Open,
    Opened,
    Withdraw,
    WithdrawalRejected,
    Withdrawn,
)
from reservation import Component, Context, Key
from tests.support.started import EXAMPLES, Started

HELD = "held"
_FOLDER, _HOW = "HOLDING_FOLDER", "HOLDING_HOW"


def bank(before: Callable[[Deposit, Context], object]) -> Component[Account]:
    """Return the bank's component, which calls this before it handles a deposit."""
    component = Component("account", entity=Account, id="account_id")
    component.initiate(Open, ignoring="time")(parts.open_account)
    component.handle(Withdraw, key=Key("withdrawal_id", ignoring="time"))(parts.withdraw)
    component.handle(Close, once=None)(parts.close)
    component.project(Opened)(parts.opened)
    component.project(Deposited)(parts.deposited)
    component.project(Withdrawn)(parts.withdrawn)
    component.project(WithdrawalRejected)(parts.withdrawal_rejected)
    component.project(Closed)(parts.closed)

    @component.handle(Deposit, key=Key("deposit_id", ignoring="time"))
    def deposit(command: Deposit, account: Account, context: Context) -> Deposited | None:
        before(command, context)
        return parts.deposit(command, account, context)

    return component


class Holding:
    """The processes that run the app, and the other end of its pipes."""

    def __init__(self, folder: Path, how: str = "once") -> None:
        """Make the pipes; the handler waits "once", or is "deaf" to whatever ends it."""
        self._folder = folder
        for name in ("holding", "go"):
            os.mkfifo(folder / name)
        self._env = {
            **os.environ,
            "PYTHONPATH": str(EXAMPLES),
            _FOLDER: str(folder),
            _HOW: how,
        }

    def start(self, database_url: str, *arguments: str, kind: type[Started] = Started) -> Any:
        """Start the app's consumers."""
        return kind(
            database_url,
            *arguments,
            app="tests.apps.holding:account",
            cwd=EXAMPLES.parent,
            env=self._env,
        )

    def wait(self) -> None:
        """Wait until the handler is at work on the deposit ``held``."""
        with (self._folder / "holding").open() as pipe:
            pipe.read()

    def let_go(self) -> None:
        """Let the handler return."""
        with (self._folder / "go").open("w"):
            pass


_waits = [os.environ.get(_HOW)]


def _hold(command: Deposit, context: Context) -> None:
    if command.deposit_id != HELD or not _waits:
        return
    how, folder = _waits.pop(), Path(os.environ[_FOLDER])
    with (folder / "holding").open("w"):  # lets the test know that it is here
        pass
    if how == "once":
        (folder / "go").open().close()
    while how == "deaf":
        try:
            while True:
                time.sleep(3600)
        except BaseException:  # noqa: BLE001  whatever was to end it
            pass


account = bank(_hold)
