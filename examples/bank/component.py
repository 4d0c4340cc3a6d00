"""The account component: how its commands are kept from taking effect twice, and what they do."""

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

account = Component("account", entity=Account, id="account_id")


# A sender that sends again may stamp the time anew; the intent is the same.
@account.initiate(Open, ignoring="time")
def open_account(command: Open, context: Context) -> Opened:
    """Start the account's stream; a reissue finds it there."""
    return context.follow(command, Opened, processed_time=context.time)


@account.handle(Deposit, key=Key("deposit_id", ignoring="time"))
def deposit(command: Deposit, account: Account, context: Context) -> Deposited | None:
    """Handle the reserved copy of a deposit."""
    if account.processed(context.sequence):
        return None
    return context.follow(
        command, Deposited, processed_time=context.time, sequence=context.sequence
    )


@account.handle(Withdraw, key=Key("withdrawal_id", ignoring="time"))
def withdraw(
    command: Withdraw, account: Account, context: Context
) -> Withdrawn | WithdrawalRejected | None:
    """Handle the reserved copy of a withdrawal: reject it if the funds do not cover it."""
    if account.processed(context.sequence):
        return None
    outcome: type[Withdrawn | WithdrawalRejected] = (
        Withdrawn if account.covers(command.amount) else WithdrawalRejected
    )
    return context.follow(command, outcome, processed_time=context.time, sequence=context.sequence)


@account.handle(Close, once=None)
def close(command: Close, account: Account, context: Context) -> Closed | None:
    """Close the account once; its own state tells a reissue."""
    if account.closed:
        return None
    return context.follow(command, Closed, processed_time=context.time)


@account.project(Opened)
def opened(account: Account, event: Opened) -> None:
    account.opened = event.time


@account.project(Deposited)
def deposited(account: Account, event: Deposited) -> None:
    account.balance += event.amount
    account.sequence = event.sequence


@account.project(Withdrawn)
def withdrawn(account: Account, event: Withdrawn) -> None:
    account.balance -= event.amount
    account.sequence = event.sequence


@account.project(WithdrawalRejected)
def withdrawal_rejected(account: Account, event: WithdrawalRejected) -> None:
    account.sequence = event.sequence


@account.project(Closed)
def closed(account: Account, event: Closed) -> None:
    account.closed = event.time
