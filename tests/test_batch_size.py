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


def test_a_batch_ends_before_and_after_a_message_that_goes_alone():
    """Whatever stands around it, and the order stays."""
    _, taken = take(BatchSize({"A"}), "bbAbAAbbbbbb")
    assert "".join(taken) == "bbAbAAbbbbbb"
    assert [part for part in taken if "A" in part] == ["A", "A", "A"]


def test_a_run_of_such_messages_is_not_read_over_and_over():
    """Once the first was met, one is read at a time; and then twice as many each time."""
    read, taken = take(BatchSize({"A"}), "A" * 500 + "b" * 250)
    assert read[:502] == [100] + [1] * 499 + [1, 2]
    assert [len(part) for part in taken[500:]] == [1, 2, 4, 8, 16, 32, 64, 100, 23]


def test_where_nothing_goes_alone_nothing_changes():
    """A batch is as long as it may be."""
    assert take(BatchSize(set()), "b" * 250)[0] == [100, 100, 50]


def shop(calls, **options):
    """Return a component of which only what concerns deposits has the options."""
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
    """And those around it share theirs."""
    calls = []
    store.write([open_(), close(), deposit("d1"), deposit("d2"), close(), close()], SENT)
    one = batch(connection, "shop:command", shop(calls, transaction="message"))
    counts = []
    while (result := one.run(100)).read:
        counts.append(result.counts["handled"])
    numbers = Counter(calls)
    assert [numbers[number] for number in dict.fromkeys(calls)] == counts == [2, 1, 1, 1, 1]


def test_what_was_committed_before_a_failure_stays(connection, store):
    """Only the message that failed is behind the position."""
    store.write([deposit("d1"), deposit("bad")], SENT)
    one = batch(connection, "shop:command", shop([], transaction="message"))
    assert one.run(100).read == 1
    with pytest.raises(HandlerError, match="position 2"):
        one.run(100)


def test_a_reserved_command_goes_alone_where_it_is_handled(connection, store):
    """Its reservation is no handling, and is done in sets."""
    component = shop([], transaction="message")
    component.reserve(Deposit, into="sales", key="deposit_id")
    store.write([deposit("d1"), deposit("d2"), close()], SENT)
    assert batch(connection, "shop:command", component).run(100).read == 3
    sales = batch(connection, "sales", component)
    assert [sales.run(100).read for _ in range(3)] == [1, 1, 0]


def test_a_command_that_initiates_may_go_alone_too(connection, store):
    """As any other."""
    component = Component("shop", id="account_id")

    @component.initiate(Open, transaction="message")
    def open_account(command, context):
        return context.follow(command, Opened, processed_time=context.time)

    store.write([open_("1"), open_("2")], SENT)
    one = batch(connection, "shop:command", component)
    assert [one.run(100).read for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("wrong", ["each", None, True, []])
def test_another_transaction_is_refused(wrong):
    """When it is declared."""
    component = Component("shop", id="account_id")
    with pytest.raises(DeclarationError, match="transaction='batch' or transaction='message'"):
        component.handle(Deposit, transaction=wrong)
    with pytest.raises(DeclarationError, match="Open cannot be handled in a transaction"):
        component.initiate(Open, transaction=wrong)
