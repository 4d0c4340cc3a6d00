"""How often a message is tried, which transactions follow a failed one, and what is counted."""

from dataclasses import dataclass

import pytest

from consumers.effects.blocking import blocking
from consumers.failures.failure import HandlerRaisedError, Reason, Unhandled, process_died
from consumers.failures.retries import Retries
from consumers.loop.retrying.attempts import CountedAttempts
from consumers.loop.retrying.bisection import Bisection
from reservation import Component, Retry, RetryLater
from reservation.errors import (
    DatabaseUnavailableError,
    DecodeError,
    HandlerError,
    IdempotenceKeyError,
    MessageError,
)
from reservation.messages.message import StoredMessage
from reservation.strategies import Processed


@dataclass
class Deposit:
    account_id: str


NO, AWAY = HandlerError("no"), DatabaseUnavailableError("away")
MESSAGES = [StoredMessage("", "a:command-1", "Deposit", n, n, "{}", None, None) for n in range(8)]


def retries(retry=None, attempts=3):
    component = Component("a", id="account_id", attempts=attempts)
    component.handle(Deposit, once=Processed(), retry=retry)(lambda command, entity, context: None)
    return Retries(component, "a:command")


def raised(cause):
    error = HandlerRaisedError("raised", MESSAGES[0])
    error.__cause__ = cause
    return error


# When a message is tried again

PATIENT = Retry(attempts=5, first="1h", on=OSError)


@pytest.mark.parametrize(
    ("retry", "error", "tried", "attempts", "wait"),
    [
        (None, raised(OSError()), 0, 1, (0.05, 0.1)),
        (None, raised(OSError()), 1, 2, (0.1, 0.2)),
        (None, raised(OSError()), 2, 3, None),
        (None, raised(SystemExit()), 0, 1, (0.05, 0.1)),
        (None, MessageError("refused"), 1, 2, (0.1, 0.2)),
        (None, DecodeError("no"), 0, 1, None),
        (None, IdempotenceKeyError("no"), 0, 1, None),
        (PATIENT, raised(OSError()), 3, 4, (1800, 3600)),
        (PATIENT, raised(OSError()), 4, 5, None),
        (PATIENT, raised(ValueError()), 1, 2, (0.1, 0.2)),
        (PATIENT, raised(ValueError()), 3, 4, None),
        (PATIENT, HandlerError("no event"), 0, 1, (0.05, 0.1)),
        (PATIENT, raised(RetryLater("90s")), 3, 4, (90, 90)),
        (PATIENT, raised(RetryLater("90s")), 4, 5, None),
        (None, raised(RetryLater("90s")), 9, 9, (90, 90)),
    ],
)
def test_a_message_that_failed_is_tried_again_after_a_while(retry, error, tried, attempts, wait):
    """By the policy of its handler for what that names, else by the component's attempts."""
    failure = retries(retry).failure("Deposit", error, tried)
    assert failure.attempts == attempts
    if wait is None:
        assert failure.wait is None
    else:
        least, most = wait
        assert least <= failure.wait <= most


# Which transactions follow a failed one


def aside(bisection):
    """Return what is set aside, if all failures that are known are."""
    return [Unhandled(MESSAGES[n], None, failure) for n, failure in bisection.failures.items()]


def named(n):
    error = MessageError("no")
    error.global_position = n
    return error


def test_a_message_that_an_error_names_is_set_aside_with_those_before_it():
    """Then as many follow as were before it, and twice as many each time."""
    bisection = Bisection(100, retries())
    bisection.failed(MESSAGES, named(5))
    assert (bisection.limit, list(bisection.failures), bisection.in_progress) == (6, [5], True)
    bisection.committed(6, aside(bisection))
    assert (bisection.limit, bisection.failures, bisection.in_progress) == (10, {}, False)
    assert not bisection.one_at_a_time


def test_an_error_that_names_none_after_one_that_does_is_searched_for():
    """What is known of the other message stays."""
    bisection = Bisection(100, retries())
    bisection.failed(MESSAGES, named(5))
    bisection.failed(MESSAGES[:6], MessageError("refused"))
    assert (bisection.limit, list(bisection.failures)) == (3, [5])
    bisection.committed(3, ())
    assert (bisection.limit, list(bisection.failures)) == (1, [5])


def test_a_message_that_no_error_names_is_found_by_halving():
    """The last one that is left is the one at fault."""
    bisection = Bisection(100, retries())
    bisection.failed(MESSAGES, MessageError("refused"))
    assert (bisection.limit, bisection.failures) == (4, {})
    bisection.committed(4, ())
    assert bisection.limit == 2
    bisection.failed(MESSAGES[4:6], MessageError("refused"))
    assert bisection.limit == 1
    bisection.failed(MESSAGES[4:5], MessageError("refused"))
    assert bisection.failures[4].reason is Reason.WRITE
    bisection.committed(1, aside(bisection))
    assert bisection.failures == {}


def test_after_a_death_each_message_is_handled_by_itself_until_it_is_found():
    """It is in the batch that was not committed."""
    bisection = Bisection(4, retries())
    bisection.died()
    for _ in range(4):
        assert (bisection.one_at_a_time, bisection.limit) == (True, 1)
        bisection.committed(1, ())
    assert not bisection.one_at_a_time
    bisection.died()
    bisection.committed(1, [Unhandled(MESSAGES[0], None, process_died("it", 3))])
    assert not bisection.one_at_a_time


def test_what_is_lost_with_the_connection_is_halved():
    """The server may not bear the whole, but its parts."""
    bisection = Bisection(1000, retries())
    for limit in (4, 2, 1, 1):
        bisection.interrupted(min(8, bisection.limit))
        assert bisection.limit == limit
    assert not bisection.in_progress


# What is counted


class Tried:
    """A message whose attempts end as listed: with an error, or with a result."""

    def __init__(self, *ends, counted=0, key=1):
        self.ends = list(ends)
        self.counted = counted
        self.numbers = []
        self.key = key

    def count(self):
        self.counted += 1
        return self.counted

    def uncount_attempt(self):
        self.counted -= 1

    def attempt(self, number):
        self.numbers.append(number)
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    def run(self, attempts):
        return attempts.run(self.key, self.count, self.uncount_attempt, self.attempt)


def test_an_attempt_is_counted_before_it_begins():
    """Its number is one more than what was counted before, in whichever process."""
    attempts = CountedAttempts()
    tried = Tried(NO, "done", counted=2)
    with pytest.raises(HandlerError):
        tried.run(attempts)
    assert tried.run(attempts) == "done"
    assert (tried.numbers, tried.counted) == ([3, 4], 4)


def test_an_attempt_that_ends_early_does_not_count():
    """Because it is time to stop."""
    tried = Tried(None)
    assert tried.run(CountedAttempts()) is None
    assert tried.counted == 0


def test_a_fault_of_the_environment_counts_no_attempt():
    """It is raised."""
    tried = Tried(AWAY)
    with pytest.raises(DatabaseUnavailableError):
        tried.run(CountedAttempts())
    assert tried.counted == 0


@pytest.mark.parametrize("next_one", ["the same", "another"])
def test_an_attempt_that_could_not_be_uncounted_is_not_counted_twice(next_one):
    """The database was away; another message has a count of its own."""
    attempts, tried = CountedAttempts(), Tried(AWAY, "done")

    def fail():
        raise AWAY

    tried.uncount_attempt = fail
    with pytest.raises(DatabaseUnavailableError):
        tried.run(attempts)
    if next_one == "another":
        tried = Tried("done", key=2)
    assert tried.run(attempts) == "done"
    assert tried.counted == 1


def test_nothing_is_tried_when_it_is_time_to_stop():
    """No attempt is made."""
    tried = Tried("done")
    tried.count = lambda: None
    assert tried.run(CountedAttempts()) is None
    assert tried.numbers == []


def test_the_name_of_a_blocked_entity_fits_an_index():
    """Long names of blocked entities are shortened to fit an index and stay different."""
    assert blocking("account-1") == "account-1"
    long = ["account-" + "x" * 2000 + end for end in "ab"]
    assert len({blocking(name) for name in long}) == 2
    assert all(len(blocking(name).encode()) < 200 for name in long)
