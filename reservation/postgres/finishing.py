"""Giving back what was taken, although the task that took it is cancelled meanwhile.

A task may be cancelled at every ``await``, and more than once. So what is to be given back with one
is given back by a task of its own, which nobody cancels but the end of the event loop.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# An event loop itself keeps only weak references.
_running: set[asyncio.Task[Any]] = set()


def started(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Return a task that runs to its end although nobody awaits it."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Do something to its end although the caller is cancelled meanwhile; return its result."""
    return await asyncio.shield(started(work))
