"""How often a message is tried, what counts as an attempt, and when it is given up."""

import pytest

from consumers.dead_letters.failure import Reason
from consumers.decisions.blocking import blocking
from consumers.loop.retrying import attempts as module
from consumers.loop.retrying.attempts import Attemptable, Attempts
from consumers.runtime.backoff import Backoff
from consumers.runtime.stopping import Stop
from reservation.errors import DatabaseUnavailableError, DecodeError, HandlerError

NO, AWAY = HandlerError("no"), DatabaseUnavailableError("away")


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

    def run(self, attempts, stop=None):
        """Try it until it is done, and return what became of it."""
        message = Attemptable(
            self.key, "message", self.count, self.take_back, self.attempt, self.give_up
        )
        return attempts.run(message, stop or Stop())


@pytest.mark.parametrize(
    ("tried", "result", "calls", "counted", "given_up"),
    [
        (Tried("done"), "done", 1, 1, []),
        (Tried(NO, NO, "done"), "done", 3, 3, []),
        (Tried(NO, NO, NO), "given up", 3, 3, [(Reason.HANDLER, 3)]),
        (Tried(DecodeError("no")), "given up", 1, 1, [(Reason.UNDECODABLE, 1)]),
        (Tried(counted=3), "given up", 0, 4, [(Reason.PROCESS_DIED, 3)]),
        (Tried(None), None, 1, 0, []),
    ],
    ids=["success", "at last", "never", "permanent", "processes died", "stopped early"],
)
def test_a_message_is_tried_so_often(tried, result, calls, counted, given_up):
    """Three times, unless the message alone is at fault or processes died of it."""
    assert tried.run(Attempts(3)) == result
    assert (tried.calls, tried.counted, tried.given_up) == (calls, counted, given_up)


def test_a_fault_of_the_environment_counts_no_attempt():
    """It is raised."""
    tried = Tried(AWAY)
    with pytest.raises(DatabaseUnavailableError):
        tried.run(Attempts(3))
    assert (tried.counted, tried.given_up) == (0, [])


@pytest.mark.parametrize("next_one", ["the same", "another"])
def test_an_attempt_that_could_not_be_uncounted_is_not_counted_twice(next_one):
    """The database was away; another message has a count of its own."""
    attempts, tried = Attempts(2), Tried(AWAY, "done")

    def fail():
        raise AWAY

    tried.take_back = fail
    with pytest.raises(DatabaseUnavailableError):
        tried.run(attempts)
    if next_one == "another":
        tried = Tried("done", key=2)
    assert tried.run(attempts) == "done"
    assert tried.counted == 1


def test_nothing_is_tried_when_it_is_time_to_stop():
    """No attempt is made or counted."""
    stop, tried = Stop(), Tried("done")
    stop.request()
    assert tried.run(Attempts(3), stop) is None
    assert (tried.calls, tried.counted) == (0, 0)


def test_the_name_of_a_blocked_entity_fits_an_index():
    """Long names of blocked entities are shortened to fit an index and stay different."""
    assert blocking("account-1") == "account-1"
    long = ["account-" + "x" * 2000 + end for end in "ab"]
    assert len({blocking(name) for name in long}) == 2
    assert all(len(blocking(name).encode()) < 200 for name in long)
