"""A sample of the explorer: the orders of the round trips of two consumers.

Two strategies are explored with a kill as well. `tests/soak/test_explorer.py` goes statement by
statement, with more kills, for every strategy.
"""

import pytest

from tests.apps.idempotence import copied, purse
from tests.support.explored import BLIND, CASES, IMPATIENT, REISSUED, RESERVED, Case, explorer
from tests.support.explorer import Violation

# One strategy that keeps records and one that looks at events are killed too.
KILLS = {
    "processed, key": 1,
    "message id": 0,
    "revisions": 0,
    "states": 0,
    "sequence": 1,
    "initiate": 0,
    "reservation": 0,
}


@pytest.mark.parametrize("name", KILLS)
def test_whatever_the_order_each_intent_takes_effect_once(database_url, name):
    """In every order of the round trips each intent takes effect once, also after a kill."""
    found = explorer(database_url, CASES[name], kills=KILLS[name], size=100, together=True)
    assert found.explore().schedules


def test_whatever_the_order_a_call_that_outlasts_its_batch_takes_effect_once(database_url):
    """Each of two consumers makes calls of its own, and finds the letters of the other's."""
    found = explorer(database_url, IMPATIENT["impatient"], kills=0, size=100, together=True)
    assert found.explore().schedules


@pytest.mark.parametrize("case", [Case(purse, **REISSUED), Case(copied, **REISSUED, **RESERVED)])
def test_a_message_that_takes_effect_late_is_found(database_url, case):
    """Without a strategy the explorer finds a message that takes effect late."""
    with pytest.raises(Violation, match=r"the effects are .*'Withdrawn'"):
        explorer(database_url, case, kills=0, size=1).explore()


@pytest.mark.parametrize("name", BLIND)
def test_a_strategy_that_recognizes_nothing_is_found(database_url, name):
    """The explorer finds a strategy that recognizes nothing, despite deterministic event ids."""
    with pytest.raises(Violation, match=r"the effects are|nobody in its way"):
        explorer(database_url, BLIND[name], kills=0, size=100).explore()
