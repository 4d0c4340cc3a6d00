"""Letting the calls of one batch begin, in the order of its messages.

So a batch can end before the first message whose handler was not called: none after it was. The
exceptions are messages that could begin only when later ones had begun; each of them is a letter.
"""

import asyncio
import heapq
from collections.abc import Callable, Hashable

from consumers.runtime.running_calls import RunningCalls


class Admission:
    """Admits one batch's messages to calls, none once the consumer is paused.

    A handler that is not async needs no place, and is called even if the time is over, unless an
    async one before it was refused.
    """

    def __init__(
        self, running: RunningCalls, is_paused: Callable[[], bool] = lambda: False
    ) -> None:
        self._running = running
        self._is_paused = is_paused
        self._is_over = running.closed
        self._refused: int | None = None
        self._waiting: list[tuple[int, asyncio.Future[bool], Hashable | None]] = []

    async def enter(self, ordinal: int, kind: Hashable | None) -> bool:
        """Wait until a call may begin, which takes a place; False if the time is over."""
        if self._is_paused():
            return False
        if not (self._waiting or self._is_over) and self._takes_place(kind):
            return True
        admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ordinal, admitted, kind))
        self.admit()
        return await admitted

    def end(self) -> None:
        """Let no further async call begin."""
        self._is_over = True
        self.admit()

    def admit(self) -> None:
        """Let the calls that wait begin, up to the first without a place."""
        while self._waiting:
            ordinal, admitted, kind = self._waiting[0]
            if self._is_paused():
                may_begin = False
            elif kind is not None and self._is_over:
                self._refused = ordinal if self._refused is None else min(ordinal, self._refused)
                may_begin = False
            elif kind is None and self._refused is not None:
                may_begin = ordinal < self._refused
            elif self._takes_place(kind):
                may_begin = True
            else:
                return
            heapq.heappop(self._waiting)
            if not admitted.done():  # its lane was cancelled
                admitted.set_result(may_begin)
            elif may_begin:
                self._running.give_place(kind)

    def _takes_place(self, kind: Hashable | None) -> bool:
        """Take a place if one is needed; return whether there was one."""
        return kind is None or self._running.take_place(kind)
