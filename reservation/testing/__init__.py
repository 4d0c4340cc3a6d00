"""Tests of handlers, without a database and with one.

`given` is for the decisions of a component, `check_deterministic` and `check_upcast` find functions
that do not do the same again, and `pass_time` lets time pass in a database for tests. What the
consumers refuse is refused here with the same error. `consumers.testing` has what runs a whole
component.
"""

from reservation.testing.determinism import Handled, NotDeterministicError, check_deterministic
from reservation.testing.messages import Stored
from reservation.testing.scenario import FurtherMessage, Result, Scenario, ScheduledMessage, given
from reservation.testing.schedule import pass_time
from reservation.testing.upcasts import check_upcast

__all__ = [
    "FurtherMessage",
    "Handled",
    "NotDeterministicError",
    "Result",
    "Scenario",
    "ScheduledMessage",
    "Stored",
    "check_deterministic",
    "check_upcast",
    "given",
    "pass_time",
]
