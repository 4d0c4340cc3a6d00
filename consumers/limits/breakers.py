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

from consumers.failures.failure import Failure, HandlerRaisedError, ProviderFailure, Reason
from consumers.limits.connection import LimitsConnection
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

_QUERIES = load_queries("consumers.limits")


@dataclass(slots=True)
class _State:
    """A handler's breaker, as far as this process knows; times are of the monotonic clock.

    Attributes:
        breaker: its declaration.
        types: the types that the handler's messages are stored under, its own first.
        may_try_at: when a probe may be claimed; None if it is closed.
        is_probing: whether a probe is claimed until then, in any process.
        awaits_success: whether a success of the handler is worth a report.
        claimed_until: until when this process has claimed the probe, which no message is yet.
        given_until: the same, once a message is the probe, until its call begins.
    """

    breaker: Breaker
    types: tuple[str, ...]
    may_try_at: float | None = field(default=None, init=False)
    is_probing: bool = field(default=False, init=False)
    awaits_success: bool = field(default=False, init=False)
    claimed_until: float = field(default=0.0, init=False)
    given_until: float = field(default=0.0, init=False)

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
    """The breakers of one consumer's category."""

    def __init__(
        self, component: Component, category: str, connection: LimitsConnection, log: Log
    ) -> None:
        self._keys = {"consumer": component.name, "category": category}
        self._connection = connection
        self._log = log
        self._each = [_State(*one) for one in declared_breakers(component, category)]
        self._states = {type_: state for state in self._each for type_ in state.types}
        self._is_read = False

    def begin(self) -> None:
        """Begin a batch, or letters: what is known of the states may be out of date."""
        self._is_read = False

    def refuses(self, type_: str) -> Failure | None:
        """Return what a message of a type waits for; None if its handler may be called.

        The call may be a probe, which is claimed by this.
        """
        wait = self._wait(type_)
        return None if wait is None else Failure(Reason.BREAKER, wait=wait)

    def _wait(self, type_: str) -> float | None:
        state = self._states.get(type_)
        if state is None:
            return None
        if not self._is_read:
            self._read()
        now = time.monotonic()
        if state.may_try_at is None:
            return None
        if now < state.claimed_until:
            state.given_until, state.claimed_until = state.claimed_until, 0.0
            return None
        if now < state.may_try_at:
            return state.wait
        ((claimed, wait, is_probing, state.awaits_success),) = self._query(
            "claim_probe", type=state.types[0], open_for=state.breaker.open_for
        )
        state.becomes(wait, is_probing)
        if claimed:
            state.given_until = now + wait
        return None if claimed or wait is None else state.wait

    def is_unused(self, type_: str) -> None:
        """Note that the handler is not called: if that was to be the probe, the next call is."""
        if (state := self._states.get(type_)) is not None:
            state.claimed_until, state.given_until = state.given_until, 0.0

    @contextmanager
    def reporting(self, type_: str) -> Iterator[None]:
        """Run the call of a handler of a type, and report what its provider did."""
        state = self._states.get(type_)
        if state is None:
            yield
            return
        given_until, state.given_until = state.given_until, 0.0
        is_probe = given_until > 0.0
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
            if is_probe:
                state.claimed_until = given_until
            raise
        else:
            self._succeeded(state, is_probe)

    def _read(self) -> None:
        """Read the states of all."""
        rows = {row[0]: row[1:] for row in self._query("breaker_states")}
        for state in self._each:
            wait, is_probing, state.awaits_success = rows.get(state.types[0], (None, False, False))
            state.becomes(wait, is_probing)
            if not is_probing:
                state.claimed_until = 0.0
        self._is_read = True

    def _failed(self, state: _State, error: HandlerRaisedError, is_probe: bool) -> None:
        """Report a failure of the provider, and note on the error what became of the breaker."""
        cause, breaker = error.__cause__ or error, state.breaker
        ((wait, is_probing, has_opened, is_alone),) = self._query(
            "breaker_failed",
            types=list(state.types),
            failures=breaker.failures,
            within=breaker.within,
            open_for=breaker.open_for,
            error_type=type_of(cause),
            is_probe=is_probe,
        )
        state.becomes(wait, is_probing)
        state.awaits_success = True
        left = None if wait is None else state.wait
        pause = breaker.open_for.total_seconds()
        error.of_provider = ProviderFailure(is_probe, is_alone, left, pause)
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
        ((seconds,),) = self._query("breaker_succeeded", type=state.types[0], is_probe=is_probe)
        state.awaits_success = False
        if is_probe:
            state.becomes(None, False)
        if seconds is not None:
            self._log.info("breaker_closed", type=state.types[0], seconds=round(seconds, 3))

    def _ended(self, state: _State) -> None:
        """Report a probe that says nothing of the provider: the next one comes after a pause."""
        open_for = state.breaker.open_for
        self._query("probe_ended", type=state.types[0], open_for=open_for)
        state.becomes(open_for.total_seconds(), False)

    # Any: rows of different queries.
    def _query(self, name: str, **values: object) -> list[tuple[Any, ...]]:
        return self._connection.query(name, {**self._keys, **values})


# Any: connections differ in what their rows are.
def declare_breakers(connection: Connection[Any], component: Component, category: str) -> None:
    """Let the store have the breakers that a category's handlers have now, and no others."""
    types = [types for _, types in declared_breakers(component, category)]
    values = {"consumer": component.name, "category": category, "declared": json_parameter(types)}
    fetch_all(connection, _QUERIES["declare_breakers"], values)


def declared_breakers(component: Component, category: str) -> list[tuple[Breaker, tuple[str, ...]]]:
    """Return the breakers of the handlers that a category's messages go to, with their types."""
    declared = declarations(component).of(category)
    found = {}
    for one in declared.handled.values():
        into = one.category if one.reservation is None else one.reservation.into
        if one.breaker is not None and into == category:
            found[one.names[0]] = (one.breaker, one.names)
    return list(found.values())
