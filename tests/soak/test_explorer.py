"""Two consumers, three messages and kills: every order of the statements has the same effects."""

import pytest

from tests.support.explored import CASES, IMPATIENT, explorer

# How many kills are explored in every order of the statements. The others differ from these in
# what two kills, or batches of one message, are for.
KILLS = {
    "processed": 2,
    "processed, key": 2,
    "message id": 2,
    "revisions": 2,
    "states": 2,
    "sequence": 2,
    "initiate": 2,
    "reservation": 1,  # two categories have ten times as many orders
}


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("name", KILLS)
def test_whatever_the_order_each_intent_takes_effect_once(
    database_url, record_property, name, together
):
    """In every order of statements, or of round trips, and with kills, each takes effect once."""
    case, kills = CASES[name], KILLS[name]
    explored = explorer(database_url, case, kills=kills, size=100, together=together).explore()
    record_property("explored", str(explored))
    assert explored.schedules > 1


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("kills", "size"), [(2, 100), (1, 1)])
@pytest.mark.parametrize("name", CASES)
def test_with_two_kills_or_batches_of_one_message(database_url, record_property, name, kills, size):
    """The same holds with two kills or small batches, for every strategy."""
    explored = explorer(database_url, CASES[name], kills=kills, size=size).explore()
    record_property("explored", str(explored))
    assert explored.schedules > 1


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", IMPATIENT)
def test_calls_that_outlast_their_batches_take_effect_once(database_url, record_property, name):
    """The same holds, with a kill, where every call goes on after the end of its batch."""
    case = IMPATIENT[name]
    explored = explorer(database_url, case, kills=1, size=100, together=True).explore()
    record_property("explored", str(explored))
    assert explored.schedules > 1
