"""Cancelling a coroutine at a chosen one of the moments at which it waits."""

import asyncio
import itertools
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any


# Any: what coroutines give and return.
@types.coroutine
def _stepping(
    work: Coroutine[Any, Any, Any], step: int, times: float, waits: list[int]
) -> Generator[Any, None, Any]:
    task = asyncio.current_task()
    assert task is not None
    error: BaseException | None = None
    while True:
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value
        waits.append(len(waits))
        if step <= len(waits) < step + times:
            task.cancel()
        try:
            yield awaited
            error = None
        except BaseException as raised:  # noqa: BLE001  the work gets it
            error = raised


async def each_step(
    make: Callable[[int], Coroutine[Any, Any, Any]], times: float
) -> AsyncIterator[int]:
    """Cancel coroutines, each at a later one of the moments at which it waits; give its number.

    The last one comes to its end, and is not given.
    """
    for step in itertools.count(1):
        waits: list[int] = []
        task = asyncio.create_task(_run(make(step), step, times, waits))
        await asyncio.wait([task])
        if len(waits) < step:
            await task
            return
        yield step


async def _run(work: Coroutine[Any, Any, Any], step: int, times: float, waits: list[int]) -> Any:
    return await _stepping(work, step, times, waits)
