"""Waiting for an outcome in an event loop."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from psycopg import AsyncConnection

from reservation.store.answers.async_listener import AsyncListener
from reservation.store.answers.listeners import check_free
from reservation.store.answers.outcome import Outcome
from reservation.store.answers.pace import Pace
from reservation.store.answers.question import OutcomeAnswer, Question
from reservation.store.statements import Statement


async def wait_async(
    question: Question,
    timeout: float,
    run: Callable[[Statement[OutcomeAnswer]], Awaitable[OutcomeAnswer]],
    connected: Callable[[], AbstractAsyncContextManager[AsyncConnection[Any]]],
    listener: AsyncListener,
    *,
    has_pool: bool,
) -> Outcome:
    """Ask until it is decided what became of a command, or the time is over."""
    pace = Pace(timeout)
    if not has_pool:
        async with connected() as connection:
            check_free(connection)
    woken: asyncio.Event | None = None
    try:
        while True:
            if woken is not None:
                woken.clear()
            answer = await run(question.statement())
            if answer.outcome.is_settled or pace.is_over:
                return answer.outcome
            if answer.notices and woken is None:
                woken = await listener.enter(question.category, connected)
                if woken is not None:
                    continue
            pause = pace.pause(notices=answer.notices and woken is not None)
            if woken is None or not answer.notices:
                await asyncio.sleep(pause)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), pause)
    finally:
        if woken is not None:
            listener.leave(question.category, woken)
