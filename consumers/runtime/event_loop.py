"""The event loop in which a consumer awaits its async handlers.

It runs in the consumer's own thread: while a batch is decided on, and while the consumer waits with
calls that a batch did not wait for. Meanwhile no statement is sent. So a loop that is blocked gives
no sign of life, and neither does the consumer: its lease is not renewed, and its supervisor hears
nothing. What a handler leaves running goes on whenever the loop runs.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

from consumers.runtime.stopping import Stop
from reservation.errors import DeclarationError

# Seconds that a batch waits for its calls. A call that ends just after that is committed after the
# next batch, so twice as long, and the statements, are to take less than a second.
PATIENCE = 0.4

# Seconds between two signs of life of the loop.
TICK = 0.5

# Seconds without one after which it counts as blocked, and the lease is no longer renewed.
BLOCKED_AFTER = 5.0

# Seconds before the end of the grace at which calls are cancelled, at most; and between two
# attempts at cancelling calls that go on.
BEFORE_THE_END, AGAIN = 2.0, 0.1

# Steps of the loop that calls get between two batches.
_STEPS = 10


class CallsCancelledError(Exception):
    """The process has to stop, and its calls were cancelled; nothing of the batch is written."""


def _ignore() -> None:
    """Ignore the heartbeat."""


# Any: what tasks return.
Tasks = Collection["asyncio.Task[Any]"]


async def _all_of(tasks: Tasks) -> Tasks:
    """Wait for tasks; return none, because all have ended."""
    await asyncio.wait(tasks)
    return ()


class EventLoop:
    """The event loop of one consumer, made when it is needed first.

    Attributes:
        heartbeat: called at intervals, while the loop is not blocked.
        stop: what asks the consumer to stop; None if nothing does.
        grace: seconds that it then has; None for no limit.
        patience: seconds that a batch waits for its calls.
        cancelling: whether the grace is nearly over, so that calls are cancelled.
        closing: called in the loop before it is closed; None for nothing.
    """

    def __init__(
        self,
        heartbeat: Callable[[], None] = _ignore,
        grace: float | None = None,
    ) -> None:
        self.heartbeat = heartbeat
        self.stop: Stop | None = None
        self.grace = grace
        self.patience = PATIENCE
        self.cancelling = False
        self.closing: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._runner: asyncio.Runner | None = None
        self._ticked: float | None = None  # when the loop gave its last sign; None if it need not
        self._is_stopping = False
        self._cancel_at: float | None = None  # by the monotonic clock, once it is time to stop
        self._open: set[asyncio.Task[Any]] = set()
        self._wake: asyncio.Event | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the loop is not blocked; asked from any thread."""
        ticked = self._ticked
        return ticked is None or time.monotonic() - ticked < BLOCKED_AFTER

    # Any: what coroutines return.
    def run(
        self,
        calls: Callable[[], Sequence[Coroutine[Any, Any, Any]]],
        wait: Callable[[Tasks], Awaitable[Tasks]] = _all_of,
    ) -> None:
        """Await coroutines, all at a time; one that raises ends the others.

        What waits for them may return some that go on whenever the loop runs.
        """
        self._drive(self._all(calls, wait))

    def wait(self, descriptors: Collection[int], seconds: float) -> None:
        """Let calls go on until one ends, a descriptor can be read, or the time is over."""
        self._drive(self._wait(descriptors, seconds))

    def cancel(self, tasks: Tasks) -> None:
        """Cancel tasks, and wait until they have ended."""
        if tasks:
            self._drive(self._cancel(tasks))

    @contextlib.contextmanager
    def used(self, stop: Stop) -> Iterator[None]:
        """Run all that the consumer does; afterwards cancel what handlers left running."""
        self.stop = stop
        self.cancelling, self._is_stopping, self._cancel_at = False, False, None
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # a handler may have closed its descriptors
                self.close()

    def close(self) -> None:
        """Close the loop; what handlers left running is cancelled."""
        if self._runner is not None:
            if self.closing is not None:
                self._runner.run(self.closing())
            self._runner.close()
            self._runner = None

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """Run the call of a handler that is not async, which may block the loop."""
        self._ticked = None
        try:
            yield
        finally:
            self._ticked = time.monotonic()

    def _drive(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            _refuse_nested()
            if self._runner is None:
                self._runner = asyncio.Runner()
            self._runner.run(self._run(work))
        finally:
            work.close()
            self._ticked = None

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        descriptors = [] if self.stop is None else list(self.stop.descriptors)
        timers: dict[str, asyncio.TimerHandle] = {}

        def tick() -> None:
            self._ticked = time.monotonic()
            self.heartbeat()
            timers["tick"] = loop.call_later(TICK, tick)

        def stopping() -> None:
            unwatch()
            if not self._is_stopping and self._wake is not None:
                self._wake.set()
            self._is_stopping = True
            if self.grace is not None:
                before = min(BEFORE_THE_END, self.grace / 2)
                now = time.monotonic()
                self._cancel_at = self._cancel_at or now + self.grace - before
                timers["cancel"] = loop.call_later(max(self._cancel_at - now, 0.0), cancel)

        def cancel() -> None:
            self.cancelling = True
            for task in list(self._open):
                task.cancel()
            timers["cancel"] = loop.call_later(AGAIN, cancel)

        def unwatch() -> None:
            while descriptors:
                loop.remove_reader(descriptors.pop())

        for descriptor in descriptors:
            loop.add_reader(descriptor, stopping)
        tick()
        try:
            await work
        finally:
            unwatch()
            for timer in timers.values():
                timer.cancel()

    async def _all(
        self,
        calls: Callable[[], Sequence[Coroutine[Any, Any, Any]]],
        wait: Callable[[Tasks], Awaitable[Tasks]],
    ) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(call) for call in calls()]
        self._open.update(tasks)
        left: set[asyncio.Task[Any]] = set()
        try:
            if tasks:
                left.update(await wait(tasks))
            if self.cancelling and self._open:
                await asyncio.wait(self._open)
        finally:
            self._open.difference_update(tasks)
        for task in left:
            self._open.add(task)
            task.add_done_callback(self._ended)
        # Each is asked for its exception, or asyncio would log that nobody did.
        errors = [
            None if self.cancelling and task.cancelled() else task.exception()
            for task in tasks
            if task not in left
        ]
        if self.cancelling:
            raise CallsCancelledError
        for error in errors:
            if error is not None:
                raise error

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._open.discard(task)
        if self._wake is not None:
            self._wake.set()

    async def _wait(self, descriptors: Collection[int], seconds: float) -> None:
        loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        for descriptor in descriptors:
            loop.add_reader(descriptor, self._wake.set)
        try:
            # What has arrived for calls is taken in even where there is no time to wait.
            for _ in range(_STEPS):
                await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds if seconds < float("inf") else None):
                    await self._wake.wait()
        finally:
            self._wake = None
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    async def _cancel(self, tasks: Tasks) -> None:
        while left := [task for task in tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=AGAIN)


def _refuse_nested() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise DeclarationError(
        "Async handlers cannot be awaited in a thread that runs an event loop already; call "
        "`await asyncio.to_thread(drain, component, url)`"
    )
