"""How often a message is tried, what counts as an attempt, and when it is given up."""

import pytest

from consumers.dead_letters.failure import Reason
from consumers.loop.retrying import attempts as module
from consumers.loop.retrying.attempts import Attemptable, Attempts
from consumers.runtime.backoff import Backoff
from consumers.runtime.stopping import Stop
from reservation.errors import DatabaseUnavailableError, DecodeError, HandlerError


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(module, "Backoff", lambda: Backoff(first=0.001, longest=0.001))


class Tried:
    """A message whose attempts end as listed: with an error, or with a result."""

    def __init__(self, *ends, counted=0, key=1):
        self.ends = list(ends)
        self.counted = counted
        self.calls = 0
        self.given_up = []
        self.key = key

    def count(self):
        self.counted += 1
        return self.counted

    def take_back(self):
        self.counted -= 1

    def attempt(self):
        self.calls += 1
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        return end

    def give_up(self, failure, attempts):
        self.given_up.append((failure.reason, attempts))
        return "given up"

    def run(self, attempts, stop):
        return attempts.run(
            Attemptable(
                self.key, "message", self.count, self.take_back, self.attempt, self.give_up
            ),
            stop,
        )


@pytest.fixture
def stop():
    return Stop()


def test_a_success_is_returned(stop):
    """A message that succeeds is tried once, and its attempt stays counted."""
    tried = Tried("result")
    assert tried.run(Attempts(3), stop) == "result"
    assert (tried.calls, tried.counted, tried.given_up) == (1, 1, [])


def test_a_message_that_fails_is_tried_again(stop):
    """A message that fails is tried until an attempt succeeds."""
    tried = Tried(HandlerError("no"), HandlerError("no"), "result")
    assert tried.run(Attempts(3), stop) == "result"
    assert (tried.calls, tried.counted) == (3, 3)


def test_it_is_given_up_after_the_last_attempt(stop):
    """A message is given up after its last attempt, with their number and the last reason."""
    tried = Tried(HandlerError("no"), HandlerError("no"))
    assert tried.run(Attempts(2), stop) == "given up"
    assert tried.given_up == [(Reason.HANDLER, 2)]


def test_a_permanent_failure_is_not_tried_again(stop):
    """A failure that depends on the message alone is not retried."""
    tried = Tried(DecodeError("no"))
    assert tried.run(Attempts(3), stop) == "given up"
    assert (tried.calls, tried.given_up) == (1, [(Reason.UNDECODABLE, 1)])


def test_attempts_of_processes_that_died_count(stop):
    """Attempts in which processes died count; a message that used them up is not tried."""
    tried = Tried(counted=3)
    assert tried.run(Attempts(3), stop) == "given up"
    assert (tried.calls, tried.given_up) == (0, [(Reason.PROCESS_DIED, 3)])


def test_a_fault_of_the_environment_counts_no_attempt(stop):
    """A fault of the environment is raised and counts no attempt."""
    tried = Tried(DatabaseUnavailableError("away"))
    with pytest.raises(DatabaseUnavailableError):
        tried.run(Attempts(3), stop)
    assert (tried.counted, tried.given_up) == (0, [])


def test_an_attempt_that_could_not_be_uncounted_is_not_counted_twice(stop):
    """An attempt that could not be uncounted, as the database was away, is not counted twice."""
    attempts, tried = Attempts(2), Tried(DatabaseUnavailableError("away"), "result")

    def fail():
        raise DatabaseUnavailableError("away")

    tried.take_back = fail
    with pytest.raises(DatabaseUnavailableError):
        tried.run(attempts, stop)
    assert tried.run(attempts, stop) == "result"
    assert tried.counted == 1


def test_another_message_has_a_count_of_its_own(stop):
    """Attempts are counted for each message by itself."""
    attempts = Attempts(2)
    first = Tried(DatabaseUnavailableError("away"), key=1)
    first.take_back = lambda: None
    with pytest.raises(DatabaseUnavailableError):
        first.run(attempts, stop)
    second = Tried("result", key=2)
    assert second.run(attempts, stop) == "result"
    assert second.counted == 1


def test_nothing_is_tried_when_it_is_time_to_stop(stop):
    """Once the process is to stop, no attempt is made or counted."""
    stop.request()
    tried = Tried("result")
    assert tried.run(Attempts(3), stop) is None
    assert (tried.calls, tried.counted) == (0, 0)


def test_an_attempt_that_stopped_early_is_uncounted(stop):
    """An attempt that ended because the process stops is not counted."""
    tried = Tried(None)
    assert tried.run(Attempts(3), stop) is None
    assert (tried.calls, tried.counted) == (1, 0)
