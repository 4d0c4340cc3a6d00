"""The event loop of async handlers: what is raised, cancelled, and reported as a sign of life."""

import asyncio
import gc
import threading
import time

import pytest

from consumers.runtime.event_loop import CallsCancelledError, EventLoop
from consumers.runtime.stopping import Stop
from tests.support.consuming import until
from tests.support.started import PATIENCE


def test_a_call_that_ignores_its_cancellation_is_cancelled_again():
    """Cancelling goes on until every call has ended."""
    loop, times = EventLoop(grace=0.2), []
    loop.stop = Stop(takes_signals=False)
    loop.stop.request()

    async def stubborn():
        while len(times) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                times.append(time.monotonic())

    with loop.stop, pytest.raises(CallsCancelledError):
        loop.run(lambda: [stubborn()])
    assert len(times) == 3
    loop.close()


def test_of_calls_that_fail_together_the_first_is_raised_and_none_is_logged_as_forgotten(caplog):
    """asyncio logs the exception of a task that nobody asks for, once the task is collected."""
    loop = EventLoop()

    async def fail(name):
        raise KeyError(name)

    with pytest.raises(KeyError, match="first"):
        loop.run(lambda: [fail("first"), fail("second")])
    gc.collect()
    assert caplog.records == []
    loop.close()


def test_a_blocked_loop_gives_no_sign_of_life(monkeypatch):
    """While a coroutine blocks the loop there are no beats, and it does not count as alive."""
    monkeypatch.setattr("consumers.runtime.event_loop.TICK", 0.02)
    monkeypatch.setattr("consumers.runtime.event_loop.BLOCKED_AFTER", 0.2)
    beats, seen = [], []
    loop = EventLoop(lambda: beats.append(time.monotonic()))
    blocked, looked = threading.Event(), threading.Event()

    async def waits():
        await asyncio.sleep(0.3)
        assert loop.is_alive
        beats.clear()
        blocked.set()
        looked.wait(PATIENCE)

    def look():
        blocked.wait(PATIENCE)
        until(lambda: not loop.is_alive)
        seen.extend(beats)
        looked.set()

    looking = threading.Thread(target=look)
    looking.start()
    assert loop.is_alive
    loop.run(lambda: [waits()])
    looking.join()
    assert seen == []
    assert loop.is_alive

    def slow():
        with loop.blocking():
            time.sleep(0.3)
            assert loop.is_alive

    async def mixed():
        slow()

    loop.run(lambda: [mixed()])
    loop.close()
