"""`run_in_memory` says what a store would hold, of one component or of several."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from bank import account
from bank.entity import Account
from bank.messages import Deposit, Open, Withdraw
from consumers.testing import run_in_memory
from reservation import Component, Context, Key, Write
from reservation.errors import DeclarationError, MessageIdConflictError


@dataclass(frozen=True)
class Pay:
    payment_id: str
    order_id: str


@dataclass(frozen=True)
class Paid:
    payment_id: str
    order_id: str


@dataclass(frozen=True)
class Remind:
    order_id: str


@dataclass(frozen=True)
class Shipped:
    order_id: str


@dataclass
class Order:
    shipped: bool = False


payment = Component("payment", id="payment_id")


@payment.handle(Pay, key=Key("payment_id", per=None))
def pay(command: Pay, entity: None, context: Context) -> Paid:
    context.write(Remind(command.order_id), f"order:command-{command.order_id}", after="1h")
    return context.follow(command, Paid)


order = Component("order", entity=Order, id="order_id", attempts=2)
order.project(Shipped)(lambda order, event: setattr(order, "shipped", True))


@order.handle(Paid, category="payment")
def ship(event: Paid, order: Order, context: Context) -> Shipped | None:
    if event.order_id == "bad":
        raise ValueError
    return None if order.shipped else Shipped(event.order_id)


def test_what_one_component_writes_another_reads():
    """Components that are given together deliver to each other."""
    pays = [Pay("1", "7"), Pay("1", "7"), Pay("2", "7"), Pay("3", "bad"), Pay("4", "bad")]
    ran = run_in_memory([order, payment], pays)
    assert ran.streams["payment-1"] == [Paid("1", "7")]
    assert ran.streams["order-7"] == [Shipped("7")]
    assert ran.reservations["paymentTransaction-1"] == Pay("1", "7")
    assert len(ran.reservations) == 4
    assert ran.entity(order, "7") == Order(shipped=True)
    due = ran.messages[0].time + timedelta(hours=1)
    assert ran.scheduled[0] == (Remind("7"), "order:command-7", due)
    assert [(one.component, one.outcome, one.reason) for one in ran.dead_letters] == [
        ("order", "dead", "handler"),
        ("order", "parked", "parked"),
    ]
    assert "raised ValueError in ship" in str(ran.dead_letters[0].error)
    assert ran.counts == {
        "reserved": 4, "duplicate": 1, "handled": 6, "dead": 1, "parked": 1
    }  # fmt: skip


def test_alone_a_component_leaves_what_it_writes():
    """What nobody reads is in the streams."""
    ran = run_in_memory(payment, [Pay("1", "7")])
    assert ran.streams["payment-1"] == [Paid("1", "7")]
    assert "order-7" not in ran.streams


def test_the_bank_needs_no_database():
    """The example's commands have their effect once."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    deposit = Deposit("d1", "123", Decimal(5), now)
    commands = [Open("123", "c", now), deposit, deposit, Withdraw("w1", "123", Decimal(9), now)]
    ran = run_in_memory(account, commands)
    assert [type(event).__name__ for event in ran.streams["account-123"]] == [
        "Opened",
        "Deposited",
        "WithdrawalRejected",
    ]
    held: Account = ran.entity(account, "123")
    assert held.balance == 5


def test_an_id_that_is_sent_again_is_the_same_message():
    """As in a store, the same content is nothing new, and another content is refused."""
    id_ = uuid.UUID("0190163d-8694-739b-aea5-966c26f8ad91")
    first = Write(Pay("1", "7"), "payment:command-1", id_)
    ran = run_in_memory(payment, [first, first])
    assert ran.counts == {"reserved": 1, "handled": 1}
    assert ran.messages[0].id == str(id_)
    with pytest.raises(MessageIdConflictError, match="is in use for another message"):
        run_in_memory(payment, [first, Write(Pay("2", "7"), "payment:command-1", id_)])
    with pytest.raises(MessageIdConflictError, match="is in use for another message"):
        run_in_memory(payment, [first, Write(Pay("1", "7"), "payment:command-2", id_)])


def test_what_was_stored_is_run_again():
    """The messages of one run are those of another."""
    ran = run_in_memory(payment, [Pay("1", "7")])
    again = run_in_memory(payment, ran.messages[:1])
    assert again.streams == ran.streams


def test_what_cannot_be_run_is_said():
    """Mistakes of the test are named."""
    with pytest.raises(DeclarationError, match="payment has no handler for Remind"):
        run_in_memory(payment, [Remind("1")])
    with pytest.raises(DeclarationError, match="a name of its own"):
        run_in_memory([payment, payment], [])
    with pytest.raises(DeclarationError, match="a name of its own"):
        run_in_memory([], [])
    other = Component("other", id="payment_id")
    other.handle(Pay, once=None)(lambda command, entity, context: None)
    with pytest.raises(DeclarationError, match="Pay may be for payment, other; name its stream"):
        run_in_memory([payment, other], [Pay("1", "7")])
    with pytest.raises(DeclarationError, match="takes a list of messages"):
        run_in_memory(payment, Pay("1", "7"))  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="order was not run"):
        run_in_memory(payment, [Pay("1", "7")]).entity(order, "7")
