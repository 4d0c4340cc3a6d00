"""Handlers that have a transaction of their own, and how much is read for them."""

from collections import Counter

import pytest

from bank.messages import Close, Deposit, Open, Opened
from consumers.batch.batch_size import BatchSize
from reservation import Component
from reservation.errors import DeclarationError, HandlerError
from tests.bank import batch
from tests.batch_sizes import take
from tests.controls import close, deposit, open_

SENT = "shop:command-123"


def test_a_batch_ends_before_and_after_a_message_with_its_own_transaction():
    """A batch ends before and after a message with its own transaction; the order stays."""
    _, taken = take(BatchSize({"A"}), "bbAbAAbbbbbb")
    assert "".join(taken) == "bbAbAAbbbbbb"
    assert [part for part in taken if "A" in part] == ["A", "A", "A"]


def test_a_run_of_such_messages_is_read_in_growing_batches():
    """After such a message one message is read, and then twice as many each time."""
    read, taken = take(BatchSize({"A"}), "A" * 500 + "b" * 250)
    assert read[:502] == [100] + [1] * 499 + [1, 2]
    assert [len(part) for part in taken[500:]] == [1, 2, 4, 8, 16, 32, 64, 100, 23]


def test_without_such_messages_a_batch_is_as_long_as_it_may_be():
    """Without such messages a batch is as long as it may be."""
    assert take(BatchSize(set()), "b" * 250)[0] == [100, 100, 50]


def shop(calls, **options):
    """Return a component whose handlers of deposits alone have the options."""
    component = Component("shop", id="account_id")

    @component.initiate(Open)
    def open_account(command, context):
        calls.append(transaction(context))
        return context.follow(command, Opened, processed_time=context.time)

    @component.handle(Close)
    def close_account(command, entity, context):
        calls.append(transaction(context))

    @component.handle(Deposit, **options)
    def handle(command, entity, context):
        calls.append(transaction(context))
        if command.deposit_id == "bad":
            raise ValueError

    return component


def transaction(context):
    """Return the number of the transaction that a handler is called in."""
    return context.connection.execute("SELECT pg_current_xact_id()::text").fetchone()[0]


def test_each_such_message_has_a_transaction_of_its_own(connection, store):
    """Each such message has its own transaction; the messages around it share theirs."""
    calls = []
    store.write([open_(), close(), deposit("d1"), deposit("d2"), close(), close()], SENT)
    claimed = batch(connection, "shop:command", shop(calls, transaction="message"))
    counts = []
    while (result := claimed.run(100)).read:
        counts.append(result.counts["handled"])
    numbers = Counter(calls)
    assert [numbers[number] for number in dict.fromkeys(calls)] == counts == [2, 1, 1, 1, 1]


def test_a_failure_leaves_earlier_transactions_committed(connection, store):
    """A failure leaves what was committed before it; the position is before that message."""
    store.write([deposit("d1"), deposit("bad")], SENT)
    claimed = batch(connection, "shop:command", shop([], transaction="message"))
    assert claimed.run(100).read == 1
    with pytest.raises(HandlerError, match="position 2"):
        claimed.run(100)


def test_a_reserved_command_has_its_own_transaction_when_handled(connection, store):
    """A reserved command has its own transaction when handled, but is reserved in batches."""
    component = shop([], transaction="message")
    component.reserve(Deposit, into="sales", key="deposit_id")
    store.write([deposit("d1"), deposit("d2"), close()], SENT)
    assert batch(connection, "shop:command", component).run(100).read == 3
    sales = batch(connection, "sales", component)
    assert [sales.run(100).read for _ in range(3)] == [1, 1, 0]


def test_a_command_that_initiates_may_have_its_own_transaction(connection, store):
    """A command that initiates may have its own transaction too."""
    component = Component("shop", id="account_id")

    @component.initiate(Open, transaction="message")
    def open_account(command, context):
        return context.follow(command, Opened, processed_time=context.time)

    store.write([open_("1"), open_("2")], SENT)
    claimed = batch(connection, "shop:command", component)
    assert [claimed.run(100).read for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("wrong", ["each", None, True, []])
def test_another_transaction_is_refused(wrong):
    """An unknown value of the option `transaction` is refused in the declaration."""
    component = Component("shop", id="account_id")
    with pytest.raises(DeclarationError, match="transaction='batch' or transaction='message'"):
        component.handle(Deposit, transaction=wrong)
    with pytest.raises(DeclarationError, match="Open cannot be handled in a transaction"):
        component.initiate(Open, transaction=wrong)
