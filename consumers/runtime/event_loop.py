"""The event loop in which a consumer awaits its async handlers.

It runs in the consumer's own thread, and only while a batch is decided on. Meanwhile no statement
is sent. So a loop that is blocked gives no sign of life, and neither does the consumer: its lease
is not renewed, and its supervisor hears nothing. What a handler leaves running goes on with the
next batch.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from consumers.runtime.stopping import Stop
from reservation.errors import DeclarationError

# Seconds between two signs of life of the loop.
TICK = 0.5

# Seconds without one after which it counts as blocked, and the lease is no longer renewed.
BLOCKED_AFTER = 5.0

# Seconds before the end of the grace at which calls are cancelled, at most; and between two
# attempts at cancelling calls that go on.
BEFORE_THE_END, AGAIN = 2.0, 0.1


class CallsCancelledError(Exception):
    """The process has to stop, and its calls were cancelled; nothing of the batch is written."""


def _ignore() -> None:
    """Stand for a heartbeat that nobody listens to."""


class EventLoop:
    """The event loop of one consumer, made when it is needed first.

    Attributes:
        heartbeat: called at intervals, while the loop is not blocked.
        stop: what asks the consumer to stop; None if nothing does.
        grace: seconds that it then has; None for no limit.
    """

    def __init__(
        self,
        heartbeat: Callable[[], None] = _ignore,
        grace: float | None = None,
    ) -> None:
        self.heartbeat = heartbeat
        self.stop: Stop | None = None
        self.grace = grace
        self._runner: asyncio.Runner | None = None
        self._ticked: float | None = None  # when the loop gave its last sign; None if it need not
        self._open: set[asyncio.Task[None]] = set()
        self.cancelling = False

    @property
    def is_alive(self) -> bool:
        """Whether the loop is not blocked; asked from any thread."""
        ticked = self._ticked
        return ticked is None or time.monotonic() - ticked < BLOCKED_AFTER

    def run(self, calls: Callable[[], Sequence[Coroutine[Any, Any, None]]]) -> None:
        """Await coroutines, all at a time; one that raises ends the others."""
        _refuse_nested()
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            self._runner.run(self._run(calls))
        finally:
            self._ticked = None

    @contextlib.contextmanager
    def used(self, stop: Stop) -> Iterator[None]:
        """Around all that the consumer does; afterwards what handlers left running is cancelled."""
        self.stop = stop
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a handler may have closed its descriptors
                self.close()

    def close(self) -> None:
        """Close the loop; what handlers left running is cancelled."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """Around the call of a handler that is not async, which may block the loop."""
        self._ticked = None
        try:
            yield
        finally:
            self._ticked = time.monotonic()

    async def _run(self, calls: Callable[[], Sequence[Coroutine[Any, Any, None]]]) -> None:
        loop = asyncio.get_running_loop()
        self.cancelling = False
        watched = [] if self.stop is None else list(self.stop.watched)
        timers: dict[str, asyncio.TimerHandle] = {}

        def tick() -> None:
            self._ticked = time.monotonic()
            self.heartbeat()
            timers["tick"] = loop.call_later(TICK, tick)

        def stopping() -> None:
            unwatch()
            if self.grace is not None:
                before = min(BEFORE_THE_END, self.grace / 2)
                timers["cancel"] = loop.call_later(self.grace - before, cancel)

        def cancel() -> None:
            self.cancelling = True
            for task in self._open:
                task.cancel()
            timers["cancel"] = loop.call_later(AGAIN, cancel)

        def unwatch() -> None:
            while watched:
                loop.remove_reader(watched.pop())

        for descriptor in watched:
            loop.add_reader(descriptor, stopping)
        tick()
        try:
            tasks = [loop.create_task(call) for call in calls()]
            self._open.update(tasks)
            if tasks:
                await asyncio.wait(tasks)
        finally:
            unwatch()
            for timer in timers.values():
                timer.cancel()
            self._open.clear()
        # Each is asked for its exception, or asyncio would log that nobody did.
        errors = [
            None if self.cancelling and task.cancelled() else task.exception() for task in tasks
        ]
        if self.cancelling:
            raise CallsCancelledError
        for error in errors:
            if error is not None:
                raise error


def _refuse_nested() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise DeclarationError(
        "Async handlers cannot be awaited in a thread that runs an event loop already; call "
        "`await asyncio.to_thread(drain, component, url)`"
    )
