"""The account's messages, as the published account component of the message-store world has them.

Commands are read from ``account:command-<accountId>``, events are written to
``account-<accountId>``. In JSON the fields are camelCase and an amount is a number, digit for
digit.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True)
class Open:
    account_id: str
    customer_id: str
    time: datetime


@dataclass(frozen=True)
class Deposit:
    deposit_id: str
    account_id: str
    amount: Decimal
    time: datetime


@dataclass(frozen=True)
class Withdraw:
    withdrawal_id: str
    account_id: str
    amount: Decimal
    time: datetime


@dataclass(frozen=True)
class Close:
    account_id: str
    time: datetime


@dataclass(frozen=True)
class Opened:
    account_id: str
    customer_id: str
    time: datetime
    processed_time: datetime


@dataclass(frozen=True)
class Deposited:
    deposit_id: str
    account_id: str
    amount: Decimal
    time: datetime
    processed_time: datetime
    sequence: int


@dataclass(frozen=True)
class Withdrawn:
    withdrawal_id: str
    account_id: str
    amount: Decimal
    time: datetime
    processed_time: datetime
    sequence: int


@dataclass(frozen=True)
class WithdrawalRejected:
    withdrawal_id: str
    account_id: str
    amount: Decimal
    time: datetime
    sequence: int
    # The published component stores none: its `time` is when the withdrawal was rejected.
    processed_time: datetime | None = None


@dataclass(frozen=True)
class Closed:
    account_id: str
    time: datetime
    processed_time: datetime
