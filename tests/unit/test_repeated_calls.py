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
from reservation import Context, StoredMessage

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


def calls_until(errors, *, notes=True):
    """Return how often a handler is called that raises these errors, and then returns."""
    context, calls, left = Context(MESSAGE), [], list(errors)

    async def handler():
        calls.append(len(context.scheduled) + len(context.writes))
        if left:
            error = left.pop(0)
            if notes:
                context.noted.append(error)
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


def test_a_pool_without_connections_and_races_are_waited_for_without_a_limit():
    """An outage is no failure of a message, however long it is."""
    races = [psycopg.errors.DeadlockDetected(), psycopg.errors.LockNotAvailable()]
    assert calls_until([PoolTimeout()] * 12) == 13
    assert calls_until(races * 6) == 13


def test_losses_in_a_row_are_the_messages_failure():
    """The fifth is, unless the server refused connections in between."""
    losses = [psycopg.OperationalError()] * 4
    assert calls_until(losses) == 5
    assert calls_until([*losses, PoolTimeout(), *losses]) == 10
    with pytest.raises(HandlerRaisedError, match="raised OperationalError"):
        calls_until([*losses, psycopg.errors.AdminShutdown(), psycopg.OperationalError()][1:])


def test_an_error_that_no_block_noted_is_the_handlers():
    """It may be of any database."""
    with pytest.raises(HandlerRaisedError):
        calls_until([psycopg.errors.DeadlockDetected()], notes=False)
