"""Ready-made messages and components for the tests."""

import uuid
from datetime import UTC, datetime
from decimal import Decimal

from bank.messages import Close, Deposit, Open, Withdraw
from reservation import StoredMessage
from reservation.serialization import codec

TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 3, 9, 5, tzinfo=UTC)
COMMANDS = "account:command-123"


def open_(account: str = "123", customer: str = "456", time: datetime = TIME) -> Open:
    return Open(account, customer, time)


def deposit(
    key: str = "d1", amount: str = "10.50", account: str = "123", time: datetime = TIME
) -> Deposit:
    return Deposit(key, account, Decimal(amount), time)


def withdraw(
    key: str = "w1", amount: str = "4.25", account: str = "123", time: datetime = TIME
) -> Withdraw:
    return Withdraw(key, account, Decimal(amount), time)


def close(account: str = "123") -> Close:
    return Close(account, TIME)


def stored(
    message: object, stream_name: str = COMMANDS, global_position: int = 1, position: int = 0
) -> StoredMessage:
    """Return a message as the store would hand it out."""
    return StoredMessage(
        id=str(uuid.UUID(int=global_position)),
        stream_name=stream_name,
        type=type(message).__name__,
        position=position,
        global_position=global_position,
        data=codec.encode(message),
        metadata_json=None,
        time=TIME.replace(tzinfo=None),
    )
