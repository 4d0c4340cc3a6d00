"""An app whose handler awaits, as one that calls another service with an async client does."""

import asyncio
from typing import Any

from bank import account
from bank.messages import Deposit
from benchmarks.waiting import WAIT, deposit
from reservation.declaration.table import declarations

CONCURRENCY = 100


async def _await_and_deposit(command: Any, entity: Any, context: Any) -> Any:
    await asyncio.sleep(WAIT)
    return deposit(command, entity, context)


declarations(account).own.declare(Deposit, handler=_await_and_deposit, concurrency=CONCURRENCY)
