"""Async handlers that are called again after faults that their blocks noted."""

import asyncio
from datetime import datetime

import psycopg
import pytest
from psycopg_pool import PoolTimeout
from structlog.testing import capture_logs

from consumers.calls import repeated_call
from consumers.calls.repeated_call import await_repeatedly
from consumers.failures.failure import HandlerRaisedError
from consumers.runtime.observability.logs import Log
from reservation import Context, Reject, RetryLater, StoredMessage

MESSAGE = StoredMessage(
    "0190163d-8694-739b-aea5-966c26f8ad91",
    "job:command-1",
    "Do",
    0,
    7,
    None,
    None,
    datetime(2026, 1, 2),  # noqa: DTZ001  as the store gives it
)


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch):
    monkeypatch.setattr(repeated_call.Backoff, "next", lambda self: 0.0)


def calls_until(errors, *, noted=None):
    """Return how often a handler is called that raises these errors, and then returns."""
    context, calls, left = Context(MESSAGE), [], list(errors)

    async def handler():
        calls.append(len(context.scheduled) + len(context.writes))
        if left:
            error = left.pop(0)
            context.noted += [error] if noted is None else noted
            raise error
        return []

    with capture_logs() as log:
        asyncio.run(
            await_repeatedly(MESSAGE, handler, lambda: False, context, Log("job", "job:command"))
        )
    assert len(log) == len(calls) - 1
    named = [entry["error"].partition(" in ")[0] for entry in log]
    assert named == [type(error).__name__ for error in errors]
    return len(calls)


DEADLOCK, LOCK = psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable


def test_a_pool_without_connections_is_waited_for_without_a_limit():
    """An outage is no failure of a message, however long it is."""
    assert calls_until([PoolTimeout()] * 25) == 26


@pytest.mark.parametrize(
    ("kinds", "most"),
    [([psycopg.OperationalError, psycopg.errors.AdminShutdown], 5), ([DEADLOCK, LOCK], 10)],
    ids=["losses", "races"],
)
def test_so_many_faults_in_a_row_are_the_messages_failure(kinds, most):
    """Fewer are not, also if others come in between."""
    faults = [kinds[n % 2]() for n in range(most)]
    assert calls_until(faults[1:]) == most
    assert calls_until([*faults[1:], PoolTimeout(), *faults[1:]]) == 2 * most
    with pytest.raises(HandlerRaisedError, match=f"raised {type(faults[-1]).__name__}"):
        calls_until([*faults, *faults])


def test_a_handler_that_puts_its_message_off_is_not_called_again():
    """`RetryLater` and `Reject` are its own decisions, whatever they are raised from."""
    for decision, raised in ((RetryLater("1s"), HandlerRaisedError), (Reject("no"), Reject)):
        decision.__cause__ = DEADLOCK()
        with pytest.raises(raised):
            calls_until([decision], noted=[decision.__cause__])


def test_an_error_that_no_block_noted_is_the_handlers():
    """It may be of any database."""
    with pytest.raises(HandlerRaisedError):
        calls_until([DEADLOCK()], noted=[])
