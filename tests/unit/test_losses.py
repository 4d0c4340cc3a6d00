"""When a connection that is lost again and again is the fault of the message that is handled."""

import pytest

from consumers.runtime.losses import MOST, Losses
from reservation.errors import DatabaseUnavailableError, HandlerError
from tests.support.controls import deposit, stored


@pytest.mark.parametrize("lost_elsewhere", [False, True], ids=["refused", "lost elsewhere"])
def test_an_outage_is_no_messages_failure(lost_elsewhere):
    """Losses count in calls for one message in a row, if a new connection is there at once."""
    losses, message = Losses(), stored(deposit())
    for _ in range(2):
        for _ in range(MOST - 1):
            lost = DatabaseUnavailableError("lost")
            assert losses.fault_of(message, lost) is None
            losses.recovered(lost, was_refused=False)
        other = DatabaseUnavailableError("lost while a batch was read")
        losses.recovered(other if lost_elsewhere else lost, was_refused=not lost_elsewhere)
    for _ in range(MOST - 1):
        assert losses.fault_of(message, lost) is None
    assert isinstance(losses.fault_of(message, lost), HandlerError)
