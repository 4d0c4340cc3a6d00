"""What a component's author may declare, and what not."""

from dataclasses import dataclass

import pytest

from reservation import Component
from reservation.errors import DeclarationError, StreamNameError
from tests.controls import deposit

Deposit = type(deposit())


def test_a_reserved_command_needs_a_handler():
    """A reserved command without a handler is refused; it would stop the second consumer."""
    account = Component("account", id="account_id")
    account.reserve(Deposit, into="accountTransaction", key="deposit_id")
    with pytest.raises(DeclarationError, match=r"@account\.handle\(Deposit\)"):
        account.check()


def test_a_component_without_commands_is_refused():
    """A component without commands is refused; it would run for ever and do nothing."""
    with pytest.raises(DeclarationError, match="handles no command"):
        Component("account", id="account_id").check()


def test_a_command_is_declared_once():
    """A command that is declared twice is refused, whichever two declarations they are."""
    account = Component("account", id="account_id")
    account.reserve(Deposit, into="accountTransaction", key="deposit_id")
    with pytest.raises(DeclarationError, match="declared twice"):
        account.reserve(Deposit, into="other", key="deposit_id")
    with pytest.raises(DeclarationError, match="declared twice"):
        account.initiate(Deposit)(lambda command, context: None)
    account.handle(Deposit)(lambda command, entity, context: None)
    with pytest.raises(DeclarationError, match="two handlers"):
        account.handle(Deposit)(lambda command, entity, context: None)


def test_a_handler_and_an_initiation_of_one_command_exclude_each_other():
    """A command cannot be both handled and initiating, in either order of declaration."""
    account = Component("account", id="account_id")
    account.handle(Deposit)(lambda command, entity, context: None)
    with pytest.raises(DeclarationError, match="two handlers"):
        account.initiate(Deposit)(lambda command, context: None)


def test_two_classes_of_one_name_are_refused():
    """Two classes of one name are refused, because the name is the type in the store."""
    account = Component("account", id="account_id")
    account.handle(Deposit)(lambda command, entity, context: None)

    @dataclass
    class Deposit2:
        account_id: str

    Deposit2.__name__ = "Deposit"
    with pytest.raises(DeclarationError, match="Two classes are named Deposit"):
        account.handle(Deposit2)(lambda command, entity, context: None)


def test_a_message_is_a_dataclass():
    """A message class that is no dataclass is refused."""
    with pytest.raises(DeclarationError, match="not a dataclass"):
        Component("account", id="account_id").handle(int)(lambda command, entity, context: None)


def test_a_message_has_a_form_in_json():
    """A field that JSON cannot express is refused when its class is declared."""

    @dataclass
    class Either:
        id: str
        value: One | Other

    with pytest.raises(DeclarationError, match="Either cannot be a message"):
        Component("account", id="id").handle(Either)(lambda command, entity, context: None)


@dataclass
class One:
    a: int


@dataclass
class Other:
    b: int


def test_a_component_is_named_by_a_category():
    """A component's name must be a category: a name with an id is refused."""
    with pytest.raises(StreamNameError):
        Component("account-1", id="account_id")
