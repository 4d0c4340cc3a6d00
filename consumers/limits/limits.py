"""What is decided before each call of a handler that has a limit, and noted after it."""

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from consumers.failures.failure import Failure
from consumers.limits.breakers import Breakers, declared_breakers
from consumers.limits.connection import LimitsConnection
from consumers.limits.rates import Rates
from consumers.runtime.observability.logs import Log
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.messages.message import StoredMessage


class Limits:
    """The limits of one consumer's category, over all of its connections."""

    def __init__(self, component: Component, category: str, address: str, log: Log) -> None:
        self._connection = LimitsConnection(address, f"reservation {component.name} limits")
        self._breakers = Breakers(component, category, self._connection, log)
        self._rates = Rates(component, category, self._connection)
        self._have_waited: Collection[int] = ()

    @classmethod
    def of(cls, component: Component, category: str, address: str, log: Log) -> "Limits | None":
        """Return the limits of a category; None if no handler of its messages has any."""
        declared = declarations(component).of(category)
        has_any = declared.rates or declared_breakers(component, category)
        return cls(component, category, address, log) if has_any else None

    @property
    def most_at_once(self) -> int:
        """The most messages that have waited for one limit and may be handled at once."""
        return self._rates.most_at_once

    @property
    def pace(self) -> float:
        """The seconds between two looks for what waits for a rate, so that each finds several."""
        return self._rates.pace

    def begin(self, have_waited: Collection[int]) -> None:
        """Begin a batch, of which the messages at some global positions have waited for a rate."""
        self._have_waited = have_waited
        self._breakers.begin()
        self._rates.begin()

    def expects(self, message: StoredMessage, command: object) -> None:
        """Note a message of the batch whose handler may be called."""
        self._rates.need(message.type, command)

    def before_call(self, message: StoredMessage, command: object) -> Failure | None:
        """Wait until the handler of a message may be called; or return what the message waits for.

        The wait is short: what takes longer is waited for in the database.
        """
        decision = self.decide(message, command)
        if isinstance(decision, Failure):
            return decision
        if decision > 0:
            time.sleep(decision)
            self._rates.waited(decision)
        return None

    def decide(self, message: StoredMessage, command: object) -> float | Failure:
        """Return in how many seconds a handler may be called, or what its message waits for."""
        refused = self._breakers.refuses(message.type)
        if refused is not None:
            return refused
        has_waited = message.global_position in self._have_waited
        decision = self._rates.next(message.type, command, has_waited=has_waited)
        if isinstance(decision, Failure):
            self._breakers.is_unused(message.type)
        return decision

    @contextmanager
    def calling(self, message: StoredMessage) -> Iterator[None]:
        """Run the call of a handler, and note how long it lasted and what became of it."""
        began = time.monotonic()
        try:
            with self._breakers.reporting(message.type):
                yield
        finally:
            self._rates.lasted(message.type, time.monotonic() - began)

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        self._connection.close()
