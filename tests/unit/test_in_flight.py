"""What consumers have in flight, in memory that their host reads after their process has died."""

import os
import signal
import threading

import pytest

from consumers.failures.retries import Retries
from consumers.loop.retrying.attempts import CountedAttempts
from consumers.loop.retrying.bisection import Bisection
from consumers.loop.retrying.suspects import Suspects
from consumers.runtime.in_flight import NOTHING, SOME, Record
from consumers.runtime.stopping import Stop
from consumers.supervisor import stuck as stuck_module
from consumers.supervisor.memory import Memory
from consumers.supervisor.stuck import Stuck
from reservation import Component
from reservation.errors import MessageError
from tests.support.controls import close, stored

LEFT, RIGHT = ("left", "left:command"), ("right", "right:command")


@pytest.fixture
def memory():
    """Give the memory of a host with two processes of two consumers."""
    return Memory(2, (LEFT, RIGHT))


def at(position):
    """Return a message at a global position."""
    return stored(close(), global_position=position)


def now(memory, process=0):
    """Return the records of a process."""
    return dict(memory.records(process))


def test_a_batch_is_at_hand_from_before_it_is_read_until_it_is_committed(memory):
    """Where it is not read yet, it is known how many messages it has at most."""
    in_flight = memory.in_flight(0, LEFT)
    in_flight.reads(4, 10)
    assert now(memory) == {LEFT: Record(5, 0, 10), RIGHT: NOTHING}
    in_flight.takes([at(5), at(7)])
    assert now(memory)[LEFT] == Record(5, 7, 2)
    in_flight.calls(7)
    assert now(memory)[LEFT].called == 7
    in_flight.returned()
    in_flight.committed()
    assert not now(memory)[LEFT].was_read


def test_a_killed_process_leaves_it_behind():
    """The memory is not the process's own."""
    memory = Memory(1, (LEFT,))
    child = os.fork()
    if not child:
        in_flight = Memory(1, (LEFT,), memory.descriptor).in_flight(0, LEFT)
        in_flight.takes([at(5), at(6)])
        in_flight.calls(6)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (record,) = now(memory).values()
    assert (record.first, record.last, record.called) == (5, 6, 6)


def test_what_is_left_is_found_by_the_partitions_that_were_held(memory):
    """By whichever process of the host takes them; of those of another host nothing is known."""
    died, other = memory.in_flight(0, LEFT), memory.in_flight(1, LEFT)
    died.holds([0, 3, 1023])
    died.takes([at(5)])
    memory.hand_on(0)
    (record,) = other.left([3])
    assert (record.first, record.last, record.partitions) == (5, 5, {0, 3, 1023})
    assert other.left([1023]) == []  # it was returned before
    assert other.left([0, 1]) is None
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert record.first == 5
    assert not now(memory)[LEFT].was_read


def test_an_attempt_is_taken_back_only_if_others_may_be_to_blame(memory):
    """Those that wait for their turn have nothing in flight."""
    left, right = (memory.in_flight(0, reads) for reads in (LEFT, RIGHT))
    for one in (left, right):
        one.holds([0])
        one.takes([at(5)])
        one.counts(5, False)
    right.waits()
    memory.hand_on(0)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.owed, record.correction) == (0, 0)
    left, right = (memory.in_flight(0, reads) for reads in (LEFT, RIGHT))
    for one in (left, right):
        one.holds([0])
        one.takes([at(5)])
    left.counts(5, False)
    memory.hand_on(0)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.owed, record.correction) == (5, -1)


def test_what_was_left_stays_until_it_is_taken_over(memory):
    """The next process may die of another consumer's message before that."""
    left, right = (memory.in_flight(0, reads) for reads in (LEFT, RIGHT))
    for one in (left, right):
        one.holds([0])
        one.counts(5, False)
        one.takes([at(5)])
    memory.hand_on(0)
    right = memory.in_flight(0, RIGHT)
    right.holds([0])
    right.takes([at(5)])
    memory.hand_on(0)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.last, record.owed, record.correction) == (5, 5, -1)


def test_an_attempt_whose_connection_was_lost_is_taken_back(memory):
    """It waits for its turn to begin anew, without being counted again."""
    left = memory.in_flight(0, LEFT)
    left.holds([0])
    left.counts(5, False)
    left.reads(4, 1)
    left.takes([at(5)])
    left.waits()
    memory.hand_on(0)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.owed, record.correction) == (5, -1)


def test_letters_stay_letters_after_an_attempt(memory):
    """So they are taken one by one if the process dies before anything else is in flight."""
    in_flight = memory.in_flight(0, LEFT)
    in_flight.holds([0])
    in_flight.counts(5, True)
    in_flight.takes([at(5)], are_letters=True)
    in_flight.counts(0, False)
    memory.hand_on(0)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.are_letters, record.count, record.owed) == (True, 1, 0)


def test_an_attempt_that_failed_is_not_taken_back(memory):
    """It was handled as a failure."""
    in_flight = memory.in_flight(0, LEFT)
    in_flight.holds([0])

    def fails(number):
        raise MessageError("fails")

    with pytest.raises(MessageError):
        CountedAttempts(in_flight.counts).run(5, lambda: 1, list, fails)
    in_flight.waits()
    memory.hand_on(0)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.owed, record.correction) == (0, 0)


@pytest.mark.parametrize("is_letter", [False, True])
def test_an_attempt_at_what_was_not_read_yet_is_taken_back(memory, is_letter):
    """No code has run for it, so another consumer's message has ended the process."""
    left = memory.in_flight(0, LEFT)
    left.holds([0])
    left.waits()
    left.counts(5, is_letter)
    memory.hand_on(0)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.owed, record.correction) == (-5 if is_letter else 5, -1)


def test_a_correction_is_owed_until_the_next_attempt_is_counted(memory):
    """However often the process dies before that."""
    in_flight = memory.in_flight(0, LEFT)
    in_flight.holds([0])
    in_flight.owes(Record(owed=-5, correction=-1))
    in_flight.waits()
    memory.hand_on(0)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.owed, record.correction) == (-5, -1)
    in_flight = memory.in_flight(0, LEFT)
    in_flight.owes(record)
    in_flight.counts(5, False)
    assert now(memory)[LEFT].owed == 0


def test_only_the_message_that_is_stuck_is_to_blame(memory):
    """Its attempt counts, although its batch was not; an attempt of another is taken back."""
    left, right = (memory.in_flight(0, reads) for reads in (LEFT, RIGHT))
    for one in (left, right):
        one.holds([0])
        one.takes([at(5), at(6)])
    left.calls(6)
    right.counts(5, False)
    memory.hand_on(0, stuck=LEFT)
    (record,) = memory.in_flight(0, LEFT).left([0])
    assert (record.first, record.last, record.owed, record.correction) == (5, 6, 6, 1)
    (record,) = memory.in_flight(0, RIGHT).left([0])
    assert (record.was_read, record.last, record.owed, record.correction) == (False, 0, 5, -1)


@pytest.fixture
def later(monkeypatch):
    """Give a function that lets so many seconds pass."""
    passed = [0.0]
    monkeypatch.setattr(stuck_module.time, "monotonic", lambda: passed[0])

    def pass_(seconds):
        passed[0] += seconds

    return pass_


def test_a_consumer_is_stuck_that_gives_no_sign_of_life_in_a_call(memory, later):
    """Not one that gives some, or that calls no handler; and a host that slept sees nothing."""
    left, right = (memory.in_flight(0, reads) for reads in (LEFT, RIGHT))
    stuck = Stuck(10)
    left.calls(SOME)
    right.calls(3)

    def seen(*, beats=True, seconds=1.0):
        later(seconds)
        if beats:
            left.beats()
        return [reads for reads, _ in stuck.among(memory.records(0))]

    assert [seen() for _ in range(10)] == [[]] * 10
    assert seen() == [RIGHT]
    right.returned()
    assert seen() == []
    right.calls(4)
    assert seen() == []
    assert seen(seconds=1000.0) == []


def test_suspects_are_taken_up_to_where_they_were():
    """Whatever else comes on the way, and however often a batch fails."""
    bisection = Bisection(100, Retries(Component("a", id="a_id"), "a:command"))
    bisection.died(1, until=8)
    assert bisection.reached(4) == 8
    for position in (5, 7):
        assert bisection.one_at_a_time
        bisection.committed(1, ())
        assert bisection.reached(position) == 8
    bisection.committed(1, ())
    assert bisection.reached(8) == 0
    assert not bisection.one_at_a_time


def test_suspects_have_turns_in_the_order_in_which_they_came():
    """One at a time; who is to stop gives up its turn."""
    suspects, stop = Suspects(), Stop(takes_signals=False)
    order, waits = [], threading.Semaphore(0)
    assert suspects.take(stop, list)

    def take(name):
        assert suspects.take(stop, waits.release)
        order.append(name)
        suspects.give()

    threads = []
    for name in ("second", "third"):
        threads.append(threading.Thread(target=take, args=[name]))
        threads[-1].start()
        assert waits.acquire(timeout=60)
        waits.acquire(timeout=1)
    asked = Stop(takes_signals=False)
    asked.request()
    assert not suspects.take(asked, list)
    suspects.give()
    for thread in threads:
        thread.join()
    assert order == ["second", "third"]
    for one in (stop, asked):
        with one:
            pass


def test_a_suspect_may_have_the_process_for_itself():
    """It waits for the batches that run, and others wait for it."""
    suspects, stop, asked = Suspects(), Stop(takes_signals=False), Stop(takes_signals=False)
    order, waits = [], threading.Semaphore(0)
    assert suspects.begin_batch(stop, list)

    def take():
        assert suspects.take(stop, waits.release, exclusive=True)
        order.append("suspect")
        suspects.give()

    def batch():
        assert suspects.begin_batch(stop, waits.release)
        order.append("batch")
        suspects.end_batch()

    threads = []
    for one in (take, batch):
        threads.append(threading.Thread(target=one))
        threads[-1].start()
        assert waits.acquire(timeout=60)
    asked.request()
    assert not suspects.begin_batch(asked, list)
    assert order == []
    order.append("first")
    suspects.end_batch()
    for thread in threads:
        thread.join()
    assert order == ["first", "suspect", "batch"]
    for one in (stop, asked):
        with one:
            pass
