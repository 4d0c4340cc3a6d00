"""An app whose handler waits, as one that calls another service does."""

import time
from typing import Any

from bank import account
from bank.messages import Deposit
from reservation.declaration.table import declarations

WAIT = 0.002  # seconds

deposit = declarations(account).own["Deposit"].handler


def _wait_and_deposit(command: Any, entity: Any, context: Any) -> Any:
    time.sleep(WAIT)
    return deposit(command, entity, context)


declarations(account).own.declare(Deposit, handler=_wait_and_deposit)
