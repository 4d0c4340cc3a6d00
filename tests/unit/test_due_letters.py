"""How often consumers look for letters, and count those that wait."""

import time

from consumers.loop.retrying.due_letters import DueLetters, WaitingCount


def test_what_waits_is_counted_seldom_where_that_takes_long():
    """Else the last number stands."""
    counted = []

    def count(seconds):
        def call():
            counted.append(seconds)
            time.sleep(seconds)
            return len(counted)

        return call

    waiting = WaitingCount()
    assert waiting.at_rebalance(count(0.1)) == 1
    assert waiting.at_rebalance(count(0.1)) == 1
    assert counted == [0.1]


def test_queues_that_are_parked_are_looked_for_again_only_for_a_reason():
    """Not each time when a letter that waits is due."""
    due = DueLetters()
    assert due.takes_parked()
    due.looked(time.monotonic(), 0.0)
    assert due.now
    assert not due.takes_parked()
    due.also_parked()
    assert due.takes_parked()
    due.soon()
    assert due.takes_parked()
