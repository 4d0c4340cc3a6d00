"""The context of log lines costs every message as little as possible."""

import sys
from collections import Counter

from consumers.runtime.observability.log_context import LogContext
from tests.support.controls import deposit, stored


def test_a_context_costs_no_more_than_a_few_calls_of_a_context_variable():
    """One call, in which C is called four times."""
    message, context = stored(deposit()), LogContext("account", "account:command")
    calls = Counter()
    with context.entered():
        sys.setprofile(lambda frame, event, function: calls.update([event]))
        context.enter_message(message, "account-123")
        sys.setprofile(None)
    # The last call of C ends the profile.
    assert (calls["call"], calls["c_call"] - 1) == (1, 4)
