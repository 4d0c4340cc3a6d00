"""Retries of a message whose handler failed: a policy, and an exception that asks for one.

The message waits in the database, and the consumer goes on with other entities. (Policy and names
are those of Celery's `retry_backoff` and tenacity's `wait_exponential_jitter`.)
"""

import random
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from reservation.errors import DeclarationError
from reservation.handlers.arguments import exceptions, interval, whole_number
from reservation.serialization.durations import time_span, written

# Of a policy's attempts, because the store counts them in 32 bits, and nobody waits for more.
MOST_ATTEMPTS = 1_000_000


class RetryLater(Exception):
    """Raised by a handler to be called again later, with the same message.

    What the handler did through the context is undone. Of a handler that is declared with a `Retry`
    this counts as one of its attempts. Without one it does not count, and there is no limit.

    Attributes:
        after: how long to wait.
    """

    def __init__(self, after: str | timedelta, reason: str = "") -> None:
        """Ask for another attempt.

        Args:
            after: how long to wait at least, such as "90s" or "10m", or a `timedelta`.
            reason: why, for whoever reads the traceback; neither stored nor logged.

        Raises:
            ValueError: the time span cannot be read, or is negative.
        """
        try:
            self.after = time_span(after)
        except ValueError as error:
            raise ValueError(f"RetryLater: {error}") from None
        super().__init__(reason or f"again in {written(self.after)}")


class Retry:
    """A policy of attempts and intervals for a message whose handler raises.

    ``@payments.handle(Refund, retry=Retry(attempts=10, first="1s", most="1h", on=(HTTPError,)))``

    The interval doubles from one attempt to the next. Each is shortened at random by up to a half,
    so that many messages that failed together do not come back together.

    Attributes:
        attempts: how often a message is tried before it becomes a dead letter.
        first: the interval after the first attempt, at most.
        most: the longest interval.
        on: the exceptions after which a message is tried again.
    """

    __slots__ = ("attempts", "first", "most", "on")

    def __init__(
        self,
        *,
        attempts: int,
        first: str | timedelta = "1s",
        most: str | timedelta = "1h",
        on: type[Exception] | Iterable[type[Exception]] = (Exception,),
    ) -> None:
        """Set the policy.

        Args:
            attempts: how often a message is tried before it becomes a dead letter; at least 1.
            first: the interval after the first attempt, such as "500ms", or a `timedelta`.
            most: the longest interval; not shorter than ``first``.
            on: the exceptions after which a message is tried again, with those derived from them.
                After another one, the component's `attempts` apply, as without a policy.

        Raises:
            DeclarationError: one of them is out of its range, or not what it must be.
        """
        self.attempts = whole_number(
            "Retry: attempts", attempts, MOST_ATTEMPTS, "10", "a message is tried at least once"
        )
        self.first = interval("Retry: first", first)
        self.most = interval("Retry: most", most)
        if self.most < self.first:
            raise DeclarationError(
                f"Retry: most={written(self.most)} is shorter than first={written(self.first)}; "
                f"exchange them"
            )
        self.on = exceptions("Retry", on, "leave it out for every Exception")

    def __repr__(self) -> str:
        on = ", ".join(one.__name__ for one in self.on)
        return (
            f"Retry(attempts={self.attempts}, first={written(self.first)!r}, "
            f"most={written(self.most)!r}, on=({on},))"
        )

    def interval(self, attempt: int) -> float:
        """Return the seconds to wait after an attempt: at random, from half the interval to all.

        Args:
            attempt: the number of the attempt that failed, from 1.
        """
        first, most = self.first.total_seconds(), self.most.total_seconds()
        # 2 to the 60th times a millisecond is longer than any interval.
        longest = min(most, first * 2.0 ** min(attempt - 1, 60))
        return random.uniform(longest / 2, longest)

    def applies_to(self, error: BaseException) -> bool:
        """Return whether a message is tried again after an exception that its handler raised."""
        return isinstance(error, self.on)


class AfterFailure(NamedTuple):
    """The consequence of a failure.

    Attributes:
        attempts: how often it was tried, as far as that counts.
        wait: seconds until the next attempt; None if there is none.
    """

    attempts: int
    wait: float | None


def next_attempt(
    error: BaseException | None,
    retry: Retry | None,
    default: Retry,
    tried: int,
    *,
    may_be_last: bool = True,
) -> AfterFailure:
    """Return what follows when a message failed that was tried so often before.

    Args:
        error: what its handler raised; None if it failed otherwise.
        retry: the policy of its handler; None if it has none.
        default: the policy for what that one does not name.
        tried: how many attempts were counted before.
        may_be_last: whether the last attempt is counted, because the message may be at fault.
    """
    if isinstance(error, RetryLater) and retry is None:
        return AfterFailure(tried, error.after.total_seconds())
    policy = retry if retry is not None and is_named(error, retry) else default
    if tried + 1 >= policy.attempts:
        if may_be_last:
            return AfterFailure(tried + 1, None)
        tried = max(tried - 1, 0)
    if isinstance(error, RetryLater):
        return AfterFailure(tried + 1, error.after.total_seconds())
    return AfterFailure(tried + 1, policy.interval(tried + 1))


def is_named(error: BaseException | None, retry: Retry | None) -> bool:
    """Return whether a handler asked for another attempt, or its policy names what it raised."""
    if isinstance(error, RetryLater):
        return True
    return retry is not None and error is not None and retry.applies_to(error)


def check_retry(component: str, command: type, retry: Any) -> None:
    """Make sure that what was given as the policy of a handler is one."""
    if retry is None or isinstance(retry, Retry):
        return
    given = "the class Retry" if retry is Retry else f"a {type(retry).__name__}"
    raise DeclarationError(
        f"{component}: retry= of {command.__name__} is {given}; write retry=Retry(attempts=10)"
    )
