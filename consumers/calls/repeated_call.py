"""Calling an async handler again after a fault of the environment on a connection of its own.

Its transaction was rolled back, or it is unknown whether it was committed. The handlers of other
messages go on meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable

from psycopg_pool import PoolTimeout

from consumers.calls.handler_call import await_call, is_noted
from consumers.failures.failure import HandlerRaisedError
from consumers.runtime.backoff import Backoff
from consumers.runtime.losses import MOST
from consumers.runtime.observability.logs import Log
from reservation.context import Context
from reservation.messages.message import StoredMessage, printable
from reservation.postgres.sqlstates import errors_in, races_in
from reservation.raised import describe


async def await_repeatedly(
    message: StoredMessage,
    handler: Callable[[], Awaitable[list[object]]],
    is_cancelled: Callable[[], bool],
    context: Context,
    log: Log,
) -> list[object]:
    """Return the events of the async handler of a message.

    A connection that is lost in so many calls in a row, while the server takes new ones, is a
    failure of the message: its handler may end the session itself.
    """
    backoff, losses = Backoff(), 0
    while True:
        try:
            return await await_call(message, handler, is_cancelled)
        except HandlerRaisedError as error:
            if not is_noted(error, context.noted):
                raise
            losses = losses + 1 if _is_loss(error) else 0
            if losses >= MOST:
                raise
            delay = backoff.next()
            log.warning(
                "call_repeated",
                type=printable(message.type),
                stream_name=printable(message.stream_name),
                global_position=message.global_position,
                error=describe(error.__cause__ or error),
                delay=round(delay, 3),
            )
        context.begin_again()
        await asyncio.sleep(delay)


def _is_loss(error: HandlerRaisedError) -> bool:
    """Return whether a connection was lost that there had been."""
    is_refused = any(isinstance(one, PoolTimeout) for one in errors_in(error))
    return not (is_refused or races_in(error))
