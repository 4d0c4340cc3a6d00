"""An app whose handler waits, as one that calls another service does."""

import time
from typing import Any

from bank import account

WAIT = 0.002  # seconds

deposit = account.handlers["Deposit"]


def _wait_and_deposit(command: Any, entity: Any, context: Any) -> Any:
    time.sleep(WAIT)
    return deposit(command, entity, context)


account.handlers["Deposit"] = _wait_and_deposit
