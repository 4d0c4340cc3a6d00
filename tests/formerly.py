"""Accounts whose reservation streams were named by the key alone before."""

from bank.messages import Deposit, Withdraw
from reservation import MessageIdInEvents
from tests.bank import RESERVED
from tests.idempotence import purse


def moved(formerly="deposit_id"):
    """Return an account whose reservations are now led by the entity."""
    component = purse(MessageIdInEvents(), name="account")
    component.reserve(
        Deposit,
        into=RESERVED,
        entity="account_id",
        key="deposit_id",
        volatile="time",
        formerly=formerly,
    )
    component.reserve(
        Withdraw,
        into=RESERVED,
        entity="account_id",
        key="withdrawal_id",
        volatile="time",
        formerly="withdrawal_id",
    )
    return component
