"""Two processes and a tick: in every order of their statements, and with kills, it is sent once."""

import pytest

from tests.support.consuming import logged
from tests.support.explorer import Violation
from tests.support.ticking import TwoTransactions, ticking


@pytest.mark.parametrize(
    ("missed", "years", "kills"), [("latest", 1, 1), ("latest", 3, 0), ("all", 2, 0)]
)
def test_whatever_the_order_each_tick_is_sent_once(database_url, missed, years, kills):
    """Two processes that both call the function send one command for each tick."""
    with logged():
        found = ticking(database_url, missed=missed, years=years, kills=kills).explore()
    assert found.states > 30


@pytest.mark.parametrize("kills", [0, 1])
def test_a_tick_that_is_sent_twice_is_found(database_url, kills):
    """The explorer finds what sends and moves on in two transactions."""
    with logged(), pytest.raises(Violation, match="sent: "):
        ticking(database_url, TwoTransactions, kills=kills).explore()
