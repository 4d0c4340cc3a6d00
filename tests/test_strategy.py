"""The properties by which consumers and Spark jobs distinguish strategies."""

from datetime import timedelta

import pytest

from bank.messages import Deposit, Withdraw
from reservation import (
    Component,
    MessageIdInEvents,
    PositionInEvents,
    Processed,
    Revisions,
    StateBased,
)
from reservation.errors import DeclarationError
from reservation.idempotence.strategy import Strategy, is_two_phase
from tests.idempotence import Purse

STRATEGIES = {
    "Processed": (Processed(), set()),
    "Revisions": (Revisions(), set()),
    "MessageIdInEvents": (MessageIdInEvents(), {"leaves_trace"}),
    "PositionInEvents": (PositionInEvents(), {"leaves_trace", "needs_order"}),
    "StateBased": (StateBased(), {"two_phase"}),
}


@pytest.mark.parametrize(("strategy", "expected"), STRATEGIES.values(), ids=STRATEGIES)
def test_each_strategy_has_its_properties(strategy, expected):
    """Each strategy has exactly the named properties."""
    properties = {"two_phase", "leaves_trace", "needs_order"}
    assert {name for name in properties if getattr(strategy, name)} == expected
    assert is_two_phase(strategy) == strategy.two_phase


@pytest.mark.parametrize(("strategy", "_"), STRATEGIES.values(), ids=STRATEGIES)
def test_each_strategy_is_found_under_its_command(strategy, _):
    """The strategy of a command is found, whatever its kind."""
    component = Component("purse", entity=Purse, id="account_id")
    if isinstance(strategy, Revisions):
        with pytest.raises(DeclarationError, match="no field 'revision'"):
            component.handle(Deposit, once=strategy)
        return
    component.handle(Deposit, once=strategy)(lambda command, entity, context: None)
    assert component.strategies == {"Deposit": strategy}
    assert set(component.two_phase) == ({"Deposit"} if strategy.two_phase else set())


def test_only_a_two_phase_strategy_writes_other_categories():
    """Only a two-phase strategy writes to further categories, those of its states."""
    assert StateBased().categories("purse") == ["purse:state"]
    others = [strategy for strategy, _ in STRATEGIES.values() if not strategy.two_phase]
    assert [list(strategy.categories("purse")) for strategy in others] == [[]] * 4


def test_a_users_own_strategy_defines_begin():
    """A user's own strategy defines `begin` and inherits the rest."""

    class Everything(Strategy):
        def begin(self, connection, consumer, category, batch):
            raise NotImplementedError

    component = Component("purse", entity=Purse, id="account_id")
    component.handle(Deposit, once=Everything())(lambda command, entity, context: None)
    component.handle(Withdraw, once=StateBased(window=timedelta(1)))(lambda *_: None)
    assert set(component.two_phase) == {"Withdraw"}
    assert component.state_window == timedelta(1)


def test_an_object_not_derived_from_strategy_is_refused():
    """An object that is not derived from Strategy is refused, as it lacks the properties."""

    class Alike:
        def declare(self, component, command, entity): ...

        def begin(self, connection, consumer, category, batch): ...

    component = Component("purse", entity=Purse, id="account_id")
    with pytest.raises(DeclarationError, match="once= of Deposit is a Alike; give it a strategy"):
        component.handle(Deposit, once=Alike())
