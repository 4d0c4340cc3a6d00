"""How versions of states and what was published with them are written down."""

import json
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservation.errors import HandlerError
from reservation.idempotence.state_based.delta import apply, difference
from reservation.idempotence.state_based.outputs import check_outputs, from_text, to_text
from reservation.store.writing import batch
from reservation.store.writing.write import Row
from tests.support.controls import deposit, stored

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values),
    max_leaves=4,
)
STATES = st.dictionaries(st.text(max_size=3), JSON, max_size=4)


@settings(max_examples=50)
@given(STATES, STATES)
def test_a_difference_makes_the_one_of_the_other(before, after):
    """A difference of two states, applied to the first, gives the second."""
    old, other = json.dumps(before), json.dumps(after)
    assert json.loads(apply(old, difference(old, other))) == after
    assert difference(old, old) == "{}"


ROWS = [
    Row(
        uuid.UUID(int=1), "report-1", "Reported", '{"n":1.10,"o":12345678901234567890}', "{}", None
    ),
    Row(uuid.UUID(int=2), "report-1", "Reported", "{}", None, None),
]


def test_outputs_are_kept_as_they_are():
    """Outputs are kept unchanged, also without metadata and with long numbers."""
    assert from_text(to_text(ROWS)) == (ROWS, [])


def test_outputs_that_are_too_long_together_are_the_handlers_error(monkeypatch):
    """The limit is that of one value in the database."""
    monkeypatch.setattr(batch, "MOST_BYTES", 100)
    with pytest.raises(HandlerError, match=r"handler of Deposit .* cannot publish: The 2 messages"):
        check_outputs(stored(deposit()), ROWS, [])
