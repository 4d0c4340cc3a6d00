"""Many histories as `tests/consumers/test_equivalence.py` plays them, under each strategy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumers.builders import Killer
from tests.consumers.test_equivalence import AGAIN, CASES, RUN, SEND, World, played

events = st.one_of(
    st.tuples(st.just(SEND), st.integers(0, 7), st.booleans()),
    st.tuples(st.just(AGAIN), st.integers(1, 6)),
    st.tuples(st.just(RUN), st.integers(1, 4), st.sampled_from([0, *range(1, 12)])),
)


def deaths(history):
    """Return how many runs of a history may end in a death; a third for one message ends it."""
    return sum(what == RUN and how[-1] > 0 for what, *how in history)


histories = st.lists(events, min_size=4, max_size=24).filter(lambda drawn: deaths(drawn) < 3)


@pytest.fixture
def killer(connection):
    """Give what kills consumers at a statement."""
    return Killer(connection)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=150)
@given(history=histories)
def test_histories_leave_behind_what_their_commands_do_each_once(connection, killer, name, history):
    """Each command has its effect once, whatever was repeated and whichever process died."""
    played(World(connection, CASES[name], killer), history)
