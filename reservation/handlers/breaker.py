"""A circuit breaker: while a provider is down, a handler's messages wait instead of failing.

(The pattern is that of Michael Nygard's "Release It!", and so are the names of its states: closed,
open and half-open.)
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from reservation.errors import DeclarationError
from reservation.handlers.arguments import exceptions, interval, whole_number
from reservation.handlers.retry import RetryLater
from reservation.serialization.durations import written

# The store keeps the time of each.
MOST_FAILURES = 1000


class Breaker:
    """A circuit breaker of one handler, over all processes of the store.

    ``@payments.handle(Capture, key="capture_id", breaker=Breaker(on=HTTPError))``

    It opens once the handler has failed so often within a time, however often it succeeded
    meanwhile. Then the handler's messages wait, without an attempt, and no more calls are made.
    After a pause one message in all processes tries. If that succeeds the breaker is closed, and
    otherwise the next one tries after another pause.

    Attributes:
        failures: how many failures open it.
        within: the time that they fall into.
        open_for: the pause before a message tries, and how long it may take to do so.
        on: the exceptions that are failures of the provider.
    """

    __slots__ = ("failures", "on", "open_for", "within")

    def __init__(
        self,
        *,
        on: type[Exception] | Iterable[type[Exception]],
        failures: int = 20,
        within: str | timedelta = "1m",
        open_for: str | timedelta = "30s",
    ) -> None:
        """Set the breaker.

        Args:
            on: the exceptions that are failures of the provider, with those derived from them.
                `RetryLater` is none.
            failures: how many of them open it, from 1 to 1000; more than a provider that works
                causes in that time.
            within: the time that they fall into, such as "1m", or a `timedelta`.
            open_for: the pause before a message tries; longer than a call may take, because another
                message tries then if it has not ended.

        Raises:
            DeclarationError: one of them is out of its range, or not what it must be.
        """
        self.failures = whole_number(
            "Breaker: failures", failures, MOST_FAILURES, "20", "write failures=20"
        )
        self.within = interval("Breaker: within", within)
        self.open_for = interval("Breaker: open_for", open_for)
        self.on = exceptions("Breaker", on, "name those of a provider that is down")

    def __repr__(self) -> str:
        on = ", ".join(one.__name__ for one in self.on)
        return (
            f"Breaker(failures={self.failures}, within={written(self.within)!r}, "
            f"open_for={written(self.open_for)!r}, on=({on},))"
        )

    def counts(self, error: BaseException | None) -> bool:
        """Return whether an exception that the handler raised is a failure of the provider."""
        return isinstance(error, self.on) and not isinstance(error, RetryLater)


# Any: whatever was given.
def check_breaker(component: str, message: type, breaker: Any) -> None:
    """Make sure that what was given as the breaker of a handler is one."""
    if breaker is None or isinstance(breaker, Breaker):
        return
    given = "the class Breaker" if breaker is Breaker else f"a {type(breaker).__name__}"
    raise DeclarationError(
        f"{component}: breaker= of {message.__name__} is {given}; write "
        f"breaker=Breaker(on=ConnectionError)"
    )
