"""The breakers of one consumer's handlers: whether a call may be made, and what came of it.

Their states are in the store (`reservation.breakers`), changed by statements that commit by
themselves, so what a handler's provider did counts even if the batch is rolled back. A process
reads them once in a batch, before the first call of a handler with a breaker, and learns of its own
calls as they end. So a closed breaker costs a statement a batch.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from consumers.failures.failure import HandlerRaisedError, ProviderFailure
from consumers.runtime.observability.logs import Log
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import MessageError
from reservation.handlers.breaker import Breaker
from reservation.handlers.reject import Reject
from reservation.postgres.arrays import fetch_all
from reservation.postgres.json_parameter import json_parameter
from reservation.postgres.queries import load_queries
from reservation.raised import type_of

_QUERIES = load_queries("consumers.limits", "breakers.sql")


@dataclass(slots=True)
class _State:
    """A handler's breaker, as far as this process knows; times are of the monotonic clock.

    Attributes:
        breaker: its declaration.
        types: the types that the handler's messages are stored under, its own first.
        may_try_at: when a probe may be claimed; None if it is closed.
        is_probing: whether a probe is claimed until then, in any process.
        awaits_success: whether a success of the handler is worth a report.
        claimed_until: until when this process has claimed the probe, whose call has not begun.
    """

    breaker: Breaker
    types: tuple[str, ...]
    may_try_at: float | None = field(default=None, init=False)
    is_probing: bool = field(default=False, init=False)
    awaits_success: bool = field(default=False, init=False)
    claimed_until: float = field(default=0.0, init=False)

    @property
    def wait(self) -> float:
        """Seconds until the messages are due again; a breaker with a probe may close at once."""
        if self.is_probing or self.may_try_at is None:
            return 0.0
        return max(self.may_try_at - time.monotonic(), 0.0)

    def becomes(self, wait: float | None, is_probing: bool) -> None:
        self.may_try_at = None if wait is None else time.monotonic() + wait
        self.is_probing = is_probing


class Breakers:
    """The breakers of the handlers of one category, on a connection of their own."""

    def __init__(
        self, component: Component, category: str, connection: Connection[Any], log: Log
    ) -> None:
        self._names = {"component": component.name, "category": category}
        self._connection = connection
        self._log = log
        self._states: dict[str, _State] = {}
        found = declared_breakers(component, category)
        for breaker, types in found:
            self._states |= dict.fromkeys(types, _State(breaker, types))
        self._is_read = False
        self._execute("declare", declared=json_parameter([types for _, types in found]))

    def begin(self) -> None:
        """Begin a batch, or letters: what is known of the states may be out of date."""
        self._is_read = False

    def wait(self, type_: str) -> float | None:
        """Return None if the handler of a type may be called, else the seconds to wait.

        The call may be a probe, which is claimed by this.
        """
        state = self._states.get(type_)
        if state is None:
            return None
        if not self._is_read:
            self._read()
        now = time.monotonic()
        if state.may_try_at is None or now < state.claimed_until:
            return None
        if now < state.may_try_at:
            return state.wait
        ((claimed, wait, is_probing, state.awaits_success),) = self._execute(
            "claim", type=state.types[0], open_for=state.breaker.open_for
        )
        state.becomes(wait, is_probing)
        if claimed:
            state.claimed_until = now + wait
        return None if claimed or wait is None else state.wait

    @contextmanager
    def reports(self, type_: str) -> Iterator[None]:
        """Run the call of a handler of a type, and report what its provider did."""
        state = self._states.get(type_)
        if state is None:
            yield
            return
        claimed_until, state.claimed_until = state.claimed_until, 0.0
        is_probe = claimed_until > 0.0
        try:
            yield
        except HandlerRaisedError as error:
            if state.breaker.counts(error.__cause__):
                self._failed(state, error, is_probe)
            elif is_probe:
                self._ended(state)
            raise
        except Reject:
            self._succeeded(state, is_probe)
            raise
        except MessageError:
            if is_probe:
                self._ended(state)
            raise
        except BaseException:  # of the environment: the call is made again
            state.claimed_until = claimed_until
            raise
        else:
            self._succeeded(state, is_probe)

    def _read(self) -> None:
        """Read the states of all."""
        rows = {row[0]: row[1:] for row in self._execute("states")}
        for state in {id(one): one for one in self._states.values()}.values():
            wait, is_probing, state.awaits_success = rows.get(state.types[0], (None, False, False))
            state.becomes(wait, is_probing)
            if not is_probing:
                state.claimed_until = 0.0
        self._is_read = True

    def _failed(self, state: _State, error: HandlerRaisedError, is_probe: bool) -> None:
        """Report a failure of the provider, and note on the error what became of the breaker."""
        cause, breaker = error.__cause__ or error, state.breaker
        ((wait, is_probing, has_opened, is_alone),) = self._execute(
            "failed",
            types=list(state.types),
            failures=breaker.failures,
            within=breaker.within,
            open_for=breaker.open_for,
            error_type=type_of(cause),
            is_probe=is_probe,
        )
        state.becomes(wait, is_probing)
        state.awaits_success = True
        error.of_provider = ProviderFailure(
            is_probe, is_alone, None if wait is None else state.wait
        )
        if has_opened:
            self._log.warning(
                "breaker_opened",
                type=state.types[0],
                failures=breaker.failures,
                open_for=breaker.open_for.total_seconds(),
                error=type_of(cause),
            )

    def _succeeded(self, state: _State, is_probe: bool) -> None:
        """Report a success, unless that tells the store nothing."""
        if not (is_probe or state.awaits_success):
            return
        ((seconds,),) = self._execute("succeeded", type=state.types[0], is_probe=is_probe)
        state.awaits_success = False
        if is_probe:
            state.becomes(None, False)
        if seconds is not None:
            self._log.info("breaker_closed", type=state.types[0], seconds=round(seconds, 3))

    def _ended(self, state: _State) -> None:
        """Report a probe that says nothing of the provider: the next one comes after a pause."""
        open_for = state.breaker.open_for
        self._execute("ended", type=state.types[0], open_for=open_for)
        state.becomes(open_for.total_seconds(), False)

    # Any: rows of different queries.
    def _execute(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        return fetch_all(self._connection, _QUERIES[query], {**self._names, **values})


def declared_breakers(component: Component, category: str) -> list[tuple[Breaker, tuple[str, ...]]]:
    """Return the breakers of the handlers that a category's messages go to, with their types."""
    declared = declarations(component).of(category)
    found = {}
    for one in declared.handled.values():
        into = one.category if one.reservation is None else one.reservation.into
        if one.breaker is not None and into == category:
            found[one.names[0]] = (one.breaker, one.names)
    return list(found.values())
