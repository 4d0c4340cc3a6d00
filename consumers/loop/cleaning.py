"""Removing old versions of states, a few at a time, while a consumer has nothing to do."""

import contextlib
import time
from typing import Any

from psycopg import Connection

from consumers.runtime.observability.logs import Log
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import LockTimeoutError, SerializationError
from reservation.idempotence.state_based.clean_up import clean_up_states
from reservation.idempotence.state_based.states import state_category

# Seconds from the end of one round through all streams to the beginning of the next.
PAUSE = 60.0


class Cleaning:
    """Removes the old versions of the states of one component.

    A consumer that always has messages to handle never does so; `reservation prune` does the same.
    """

    def __init__(self, component: Component, log: Log) -> None:
        self._window = declarations(component).state_window
        self._category = state_category(component.name)
        self._log = log
        self._start = ""
        self._due = 0.0  # by the monotonic clock

    def when_idle(self, connection: Connection[Any]) -> None:
        """Take one step, unless the last round ended less than `PAUSE` ago."""
        if self._window is None or time.monotonic() < self._due:
            return
        with contextlib.suppress(LockTimeoutError, SerializationError):
            step = clean_up_states(
                connection, self._window, category=self._category, start=self._start
            )
            if step.removed:
                self._log.info("states_removed", versions=step.removed)
            self._start = step.resume or ""
            if step.resume is None:
                self._due = time.monotonic() + PAUSE
