"""In which order the calls of a batch begin, and which are left out when its time is over."""

import asyncio

from consumers.handling.concurrent.admission import Admission
from consumers.runtime.running_calls import RunningCalls


def admitted(places, *steps):
    """Return what became of messages, by their ordinals; None of those that still wait.

    Each step is a message, by its ordinal and whether it is async, or gives a place, or the end.
    """

    async def run():
        running = RunningCalls()
        running.limit("slow", places)
        admission = Admission(running)
        running.freed = admission.admit
        tasks = {}
        for step in steps:
            if step == "end":
                admission.end()
            elif step == "place":
                running.give_place("slow")
            else:
                ordinal, kind = step
                tasks[ordinal] = asyncio.create_task(admission.enter(ordinal, kind))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = {n: task.result() if task.done() else None for n, task in tasks.items()}
        for task in tasks.values():
            task.cancel()
        return found

    return asyncio.run(run())


def test_no_later_message_begins_before_one_that_has_no_place():
    """Not even one that needs none."""
    found = admitted(1, (0, "slow"), (2, "slow"), (3, None))
    assert found == {0: True, 2: None, 3: None}


def test_a_place_goes_to_the_first_that_waits():
    """Whichever came first."""
    found = admitted(1, (0, "slow"), (5, "slow"), (2, "slow"), "place")
    assert found == {0: True, 5: None, 2: True}


def test_at_the_end_only_what_needs_no_place_begins_before_the_first_left_out():
    """So a batch can end before that."""
    found = admitted(1, (0, "slow"), (5, "slow"), "end", (3, None), (6, None), (7, "slow"))
    assert found == {0: True, 5: False, 3: True, 6: False, 7: False}
