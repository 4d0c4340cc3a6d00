"""What a supervisor knows of its consumers from their reports."""

import os

import pytest

from consumers.runtime.observability.telemetry import BUCKETS, Telemetry
from consumers.supervisor.health import Board
from tests.support.watching import until

COMMANDS = "account:command"
READS = ("account", COMMANDS)


@pytest.fixture
def board():
    """Give a board of one consumer, on which silence is noticed soon."""
    board = Board([READS], stuck_after=0.2)
    yield board
    board.close()


def test_a_consumer_that_is_silent_for_too_long_counts_as_stuck(board):
    """A consumer that is silent for too long counts as stuck until its next sign of life."""
    board.started(os.getpid(), [READS])
    (problem,) = until(board.stuck)
    assert problem.startswith(f"account {COMMANDS} in process {os.getpid()}: no sign of life for ")
    assert problem in board.not_ready() or len(board.not_ready()) == 2
    Telemetry(board.sender, READS).holds({0: 5}, 7)
    board.take_in()
    assert board.stuck() == []
    assert board.not_ready() == []


def test_a_process_that_has_not_reported_is_not_ready(board):
    """A process that has not reported, or does not exist, is not ready."""
    assert board.not_ready() == [f"account {COMMANDS}: 0 of 1 processes run"]
    board.started(os.getpid(), [READS])
    assert board.not_ready() == [f"account {COMMANDS} in process {os.getpid()}: starting"]


def test_a_consumer_never_waits_for_its_supervisor(board):
    """A report that does not fit is lost, and the next one makes up for it."""
    telemetry = Telemetry(board.sender, READS)
    board.started(os.getpid(), [READS])
    for _ in range(5000):
        telemetry.committed({"handled": 1}, 0.01, {})
    board.take_in()
    assert board.counts()[READS].counts["handled"] < 5000
    telemetry.committed({"handled": 1}, max(BUCKETS) + 1, {})
    board.ended(os.getpid())
    tally = board.counts()[READS]
    assert tally.counts["handled"] == 5001
    assert (sum(tally.buckets), tally.buckets[-1]) == (5001, 1)
    assert tally.seconds == pytest.approx(5000 * 0.01 + max(BUCKETS) + 1)


def test_a_report_of_a_process_that_ended_is_not_counted_twice(board):
    """A late report of a process that has ended is not counted again."""
    telemetry = Telemetry(board.sender, READS)
    board.started(os.getpid(), [READS])
    telemetry.committed({"handled": 1}, 0.01, {})
    board.ended(os.getpid())
    telemetry.committed({"handled": 1}, 0.01, {})
    board.take_in()
    assert board.counts()[READS].counts == {"handled": 1}
