"""The rates of one category's handlers: which calls may be made now, and when.

Calls are taken ahead for a short time, so that a rate of 1,000 a second does not need as many
statements, and each is made at its time. One that is taken and not made is lost.
"""

import hashlib
import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from consumers.failures.failure import Failure, Reason
from consumers.limits.connection import LimitsConnection
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.handlers.rate import LONGEST

# Seconds that calls are taken ahead at most; that those of one statement take, so that several
# processes take turns; and that a batch waits for the times of its calls in all, besides a part of
# the time that it takes.
HORIZON, TURN, PATIENCE = 0.1, 0.025, 0.2
_PART = 0.25

# Seconds by which a call may be late; then another one is taken, so that late ones do not add up.
_LATE = 0.05

# Seconds that a call is taken to last before the first one has ended.
_FIRST_GUESS = 0.005

# Seconds between two removals of rows that say nothing any more.
CLEANING = 60.0


@dataclass(slots=True)
class _Calls:
    """The calls of one rate in a batch.

    Attributes:
        times: when those that are taken may be made, by the monotonic clock.
        needed: how many messages of the batch are still to come.
        refused: what those that have waited wait for, or the others, once one of them has to wait.
    """

    times: deque[float] = field(default_factory=deque)
    needed: int = 0
    refused: dict[bool, Failure] = field(default_factory=dict)


class Rates:
    """The rates of one consumer's category."""

    def __init__(self, component: Component, category: str, connection: LimitsConnection) -> None:
        declared = declarations(component).of(category)
        self._rates = declared.rates
        self._names = {type_: declared[type_].names[0] for type_ in self._rates}
        self._concurrency = declared.concurrency
        self._keys = {"consumer": component.name, "category": category}
        self._connection = connection
        self._calls: dict[str, _Calls] = {}
        self._began, self._waited = time.monotonic(), 0.0
        self._lasts = dict.fromkeys(self._rates, _FIRST_GUESS)
        self._clean_at = time.monotonic() + CLEANING

    @property
    def most_at_once(self) -> int:
        """The most calls that may be taken at once, of any of the rates."""
        rates = self._rates.values()
        at_once = (int(HORIZON / one.interval.total_seconds()) + one.burst for one in rates)
        return max(at_once, default=0)

    @property
    def pace(self) -> float:
        """The seconds in which the calls of one look are made; 0 if no rate has several."""
        shortest = min((one.interval for one in self._rates.values()), default=LONGEST)
        return HORIZON / 2 if shortest.total_seconds() < HORIZON / 2 else 0.0

    def begin(self) -> None:
        """Begin a batch; what was taken and not made is lost."""
        self._calls.clear()
        self._began, self._waited = time.monotonic(), 0.0

    def need(self, type_: str, command: object) -> None:
        """Note a message of the batch whose handler may be called."""
        if type_ in self._rates:
            self._calls.setdefault(self._name(type_, command), _Calls()).needed += 1

    def next(self, type_: str, command: object, *, has_waited: bool) -> float | Failure:
        """Return in how many seconds a handler may be called, or what its message waits for."""
        if type_ not in self._rates:
            return 0.0
        name = self._name(type_, command)
        calls = self._calls[name]
        now = time.monotonic()
        while calls.times and calls.times[0] < now - _LATE:
            calls.times.popleft()
        if not calls.times and has_waited not in calls.refused:
            self._take(type_, name, calls, has_waited=has_waited)
        calls.needed -= 1
        if has_waited in calls.refused:
            return calls.refused[has_waited]
        return max(calls.times.popleft() - time.monotonic(), 0.0)

    def waited(self, seconds: float) -> None:
        """Note that the batch has waited for a call."""
        self._waited += seconds

    def lasted(self, type_: str, seconds: float) -> None:
        """Note how long a call has lasted."""
        if type_ in self._lasts:
            self._lasts[type_] += (seconds - self._lasts[type_]) / 8

    def _take(self, type_: str, name: str, calls: _Calls, *, has_waited: bool) -> None:
        """Take as many calls as can be made at their times, or note what is waited for."""
        rate, concurrency = self._rates[type_], self._concurrency.get(type_)
        interval = rate.interval.total_seconds()
        # So many that the last of them is not late, because of those that are made before it.
        at_once = concurrency or int(_LATE / max(self._lasts[type_] - interval, 1e-6)) + 1
        values = {
            **self._keys,
            "rate": name,
            "seconds": interval,
            "burst": rate.burst,
            "calls": max(min(calls.needed, at_once, int(TURN / interval)), 1),
            "horizon": HORIZON if concurrency else self._horizon(),
            "is_new": not has_waited,
        }
        ((taken, first_in, next_in),) = self._connection.query("take_calls", values)
        now = time.monotonic()
        calls.times.extend(now + max(first_in + n * interval, 0.0) for n in range(taken))
        if not taken:
            failure = Failure(Reason.LIMITED, wait=next_in, rate=name, interval=interval)
            calls.refused[has_waited] = failure
        if now >= self._clean_at:
            self._clean_at = now + CLEANING
            self._connection.query("forget_rates", self._keys)

    def _horizon(self) -> float:
        """Return how many seconds the batch still waits, up to how far calls are taken ahead."""
        patience = PATIENCE + _PART * (time.monotonic() - self._began) - self._waited
        return min(max(patience, 0.0), HORIZON)

    def _name(self, type_: str, command: object) -> str:
        """Return the name of the rate of a message, which shows nothing of its data."""
        name, by = self._names[type_], self._rates[type_].by
        if by is None:
            return name
        value = getattr(command, by)
        text = str(value.value if isinstance(value, Enum) else value)
        return f"{name} {hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:32]}"
