"""Apps whose handlers wait, as those that call another service do, with a rate and without."""

import time
from datetime import UTC, datetime

from bank.messages import Deposit, Deposited
from reservation import Component, Context, Rate

LIMIT = 1_000  # calls a second
QUICK, SLOW = 0.001, 0.0035  # seconds


def app(wait: float, rate: Rate | None) -> Component[None]:
    """Return a component whose events say when the handler was called."""
    component = Component("account", id="account_id")
    component.message(Deposited)

    @component.handle(Deposit, once=None, rate=rate)
    def deposit(command: Deposit, _: None, context: Context) -> Deposited:
        called = datetime.now(UTC)
        time.sleep(wait)
        return context.follow(command, Deposited, processed_time=called, sequence=context.sequence)

    return component


quick = app(QUICK, Rate(LIMIT, per="1s"))
slow = app(SLOW, Rate(LIMIT, per="1s"))
unlimited = app(SLOW, None)
