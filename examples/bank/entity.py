"""What the events say about an account."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


@dataclass
class Account:
    """An account, projected from its events.

    Attributes:
        balance: deposits less withdrawals.
        sequence: the global position of the last reserved command that was handled.
        opened: when it was opened, None before that.
        closed: when it was closed, None before that.
    """

    balance: Decimal = Decimal(0)
    sequence: int = 0
    opened: datetime | None = None
    closed: datetime | None = None

    def processed(self, sequence: int) -> bool:
        """Tell whether the reserved command at this global position was handled already."""
        return self.sequence >= sequence

    def covers(self, amount: Decimal) -> bool:
        """Tell whether the amount is one and there are sufficient funds to withdraw it."""
        return 0 < amount <= self.balance
