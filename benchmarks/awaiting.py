"""An app whose handler awaits, as one that calls another service with an async client does."""

import asyncio
from typing import Any

from bank import account
from benchmarks.waiting import WAIT, deposit

CONCURRENCY = 100


async def _await_and_deposit(command: Any, entity: Any, context: Any) -> Any:
    await asyncio.sleep(WAIT)
    return deposit(command, entity, context)


account.handlers["Deposit"] = _await_and_deposit
account.concurrency["Deposit"] = CONCURRENCY
