"""Handlers that have a transaction of their own, and how much is read for them."""

from collections import Counter

import pytest

from bank.messages import Close, Deposit, Open, Opened
from reservation import Component, Key
from reservation.errors import DeclarationError
from tests.apps.bank import drain
from tests.support.consuming import logged
from tests.support.controls import close, deposit, open_

SENT = "shop:command-123"


def shop(calls, key=None, **options):
    """Return a component whose handlers of deposits alone have the options."""
    component = Component("shop", id="account_id", attempts=1)

    @component.initiate(Open)
    def open_account(command, context):
        calls.append(transaction(context))
        return context.follow(command, Opened, processed_time=context.time)

    @component.handle(Close, once=None)
    def close_account(command, entity, context):
        calls.append(transaction(context))

    @component.handle(Deposit, key=key, once=None, **options)
    def handle(command, entity, context):
        calls.append(transaction(context))
        if command.deposit_id == "bad":
            raise ValueError

    return component


def transaction(context):
    """Return the number of the transaction that a handler is called in."""
    return context.connection.execute("SELECT pg_current_xact_id()::text").fetchone()[0]


def runs(calls):
    """Return how many calls in a row shared each transaction."""
    return list(Counter(calls).values())


def test_each_such_message_has_a_transaction_of_its_own(connection, store):
    """The messages around it share theirs, and all keep their order."""
    calls = []
    store.write([open_(), close(), deposit("d1"), deposit("d2"), close(), close()], SENT)
    component = shop(calls, transaction="message")
    assert drain(connection, component).counts == {"handled": 6}
    assert calls == sorted(calls, key=calls.index)
    assert runs(calls) == [2, 1, 1, 1, 1]


def test_batches_grow_again_after_such_messages(connection, store):
    """After a run of them one message is read, and then twice as many each time."""
    calls = []
    store.write([*(deposit(f"d{n}") for n in range(20)), *([close()] * 40)], SENT)
    component = shop(calls, transaction="message")
    assert drain(connection, component, batch_size=10).counts == {"handled": 60}
    assert runs(calls) == [1] * 20 + [1, 2, 4, 8, 10, 10, 5]


def test_a_failure_leaves_earlier_transactions_committed(connection, store):
    """Each message has failed or taken effect by itself."""
    calls = []
    store.write([deposit("d1"), deposit("bad"), deposit("d2")], SENT)
    counts = drain(connection, shop(calls, transaction="message")).counts
    assert counts == {"handled": 1, "dead": 1, "parked": 1}
    assert len(set(calls)) == len(calls)


def test_a_reserved_command_has_its_own_transaction_when_handled(connection, store):
    """It is reserved in batches all the same."""
    calls, key = [], Key("deposit_id", into="sales", per=None)
    store.write([deposit("d1"), deposit("d2"), close()], SENT)
    with logged() as log:
        drain(connection, shop(calls, key, transaction="message"))
    committed = [(one["category"], one["read"]) for one in log.named("batch_committed")]
    assert committed == [("shop:command", 3), ("sales", 1), ("sales", 1)]


def test_a_command_that_initiates_may_have_its_own_transaction(connection, store):
    """Then it is a batch of its own."""
    component = Component("shop", id="account_id")

    @component.initiate(Open, transaction="message")
    def open_account(command, context):
        return context.follow(command, Opened, processed_time=context.time)

    store.write([open_("1"), open_("2")], SENT)
    with logged() as log:
        drain(connection, component)
    assert [one["read"] for one in log.named("batch_committed")] == [1, 1]


@pytest.mark.parametrize("wrong", ["each", None, True, []])
def test_another_transaction_is_refused(wrong):
    """An unknown value of the option `transaction` is refused in the declaration."""
    component = Component("shop", id="account_id")
    with pytest.raises(DeclarationError, match="transaction='batch' or transaction='message'"):
        component.handle(Deposit, once=None, transaction=wrong)
    with pytest.raises(DeclarationError, match="Open cannot be handled in a transaction"):
        component.initiate(Open, transaction=wrong)
