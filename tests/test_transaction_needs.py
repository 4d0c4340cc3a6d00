"""Which messages share a transaction, which have their own, and which take two."""

import pytest

from bank.messages import Close, Deposit, Withdraw
from consumers.handling.decoding import Decoding
from consumers.handling.transaction_needs import TransactionNeeds
from reservation import Component, Metadata, StateBased, StoredMessage
from tests.controls import close, deposit, stored, withdraw
from tests.idempotence import Purse

COMMANDS = "purse:command"
SENT = "purse:command-123"


def needs(component, category=COMMANDS):
    return TransactionNeeds(component, category, Decoding(component, category))


def handled(*declared):
    """Return a component that handles commands, each with the options given with it."""
    component = Component("purse", entity=Purse, id="account_id")
    for command, options in declared:
        component.handle(command, **options)(lambda command, entity, context: None)
    return component


def test_without_options_all_share_one():
    """Without options all messages share the transaction of their batch."""
    found = needs(handled((Deposit, {}), (Close, {})))
    assert (found.own, found.two_phase) == (frozenset(), frozenset())
    assert not found.is_two_phase(stored(deposit(), SENT))


def test_a_transaction_of_its_own_is_per_type():
    """The option applies to one type; the others share the transaction."""
    assert needs(handled((Deposit, {"transaction": "message"}), (Close, {}))).own == {"Deposit"}


def test_an_ignored_type_needs_nothing():
    """An ignored type needs no transaction."""
    component = handled((Deposit, {"transaction": "message"}), (Withdraw, {"once": StateBased()}))
    component.ignore("Deposit", "Withdraw")
    found = needs(component)
    assert (found.own, found.two_phase) == (frozenset(), frozenset())
    assert not found.is_two_phase(stored(withdraw(), SENT))


@pytest.mark.parametrize(("category", "own"), [(COMMANDS, set()), ("sales", {"Deposit"})])
def test_a_reserved_command_needs_its_own_where_it_is_handled(category, own):
    """A reserved command has its own transaction when handled, not when reserved."""
    component = handled((Deposit, {"transaction": "message"}))
    component.reserve(Deposit, into="sales", key="deposit_id")
    assert needs(component, category).own == own


@pytest.mark.parametrize(("category", "two_phase"), [(COMMANDS, False), ("sales", True)])
def test_a_reserved_command_is_two_phase_where_it_is_handled(category, two_phase):
    """A reserved command takes two transactions when handled, not when reserved."""
    component = handled((Deposit, {"once": StateBased()}), (Close, {}))
    component.reserve(Deposit, into="sales", key="deposit_id")
    assert needs(component, category).is_two_phase(stored(deposit(), "sales-d1")) is two_phase
    assert not needs(component, category).is_two_phase(stored(close(), SENT))


def test_of_commands_reserved_within_their_category_only_copies_are_two_phase():
    """Within a category only copies take two transactions, not commands."""
    component = handled((Deposit, {"once": StateBased()}))
    component.reserve(Deposit, key="deposit_id")
    command = stored(deposit(), SENT)
    metadata = Metadata(
        causation_message_stream_name=SENT, local_properties={"reserved": True}
    ).encode()
    copy = StoredMessage(
        command.id, f"{SENT}+d1", "Deposit", 0, 2, command.data, metadata, command.time
    )
    unreadable = StoredMessage(
        command.id, f"{SENT}+d1", "Deposit", 0, 2, "[]", metadata, command.time
    )
    within_server = StoredMessage(command.id, SENT, "Deposit", 0, 2, None, None, command.time)
    messages = [command, copy, unreadable, within_server]
    assert [needs(component).is_two_phase(message) for message in messages] == [
        False,
        True,
        False,
        False,
    ]
