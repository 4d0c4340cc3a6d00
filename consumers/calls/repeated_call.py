"""Calling an async handler again after a fault of the environment on a connection of its own.

Its transaction was rolled back, or it is unknown whether it was committed. The handlers of other
messages go on meanwhile.

There are limits, because the cause may be the handler itself, which ends its session, or its batch,
which holds the lock that it waits for. Then its failure lets the messages be handled one by one. A
server that takes no connections is waited for as long as it lasts.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from psycopg_pool import PoolTimeout

from consumers.calls.handler_call import await_call, is_noted
from consumers.failures.failure import HandlerRaisedError
from consumers.runtime.backoff import Backoff
from consumers.runtime.losses import MOST
from consumers.runtime.observability.logs import Log
from reservation.context import Context
from reservation.messages.message import StoredMessage, printable
from reservation.postgres.sqlstates import Fault, errors_in, races_in
from reservation.raised import describe

# So many faults in a row are a failure of the message.
_MOST = {Fault.LOST: MOST, Fault.RACE: 10}


async def await_repeatedly(
    message: StoredMessage,
    handler: Callable[[], Awaitable[list[object]]],
    is_cancelled: Callable[[], bool],
    context: Context,
    log: Log,
) -> list[object]:
    """Return the events of the async handler of a message."""
    backoff, in_a_row = Backoff(), Counter[Fault]()
    while True:
        try:
            return await await_call(message, handler, is_cancelled)
        except HandlerRaisedError as error:
            cause = error.__cause__ or error
            if not is_noted(cause, context.noted):
                raise
            fault = _fault_of(cause)
            in_a_row = Counter({fault: in_a_row[fault] + 1})
            if in_a_row[fault] == _MOST.get(fault):
                raise
            delay = backoff.next()
            log.warning(
                "call_repeated",
                type=printable(message.type),
                stream_name=printable(message.stream_name),
                global_position=message.global_position,
                error=describe(cause),
                delay=round(delay, 3),
            )
        context.begin_again()
        await asyncio.sleep(delay)


def _fault_of(error: BaseException) -> Fault:
    """Return the fault that a handler's block has met."""
    if any(isinstance(one, PoolTimeout) for one in errors_in(error)):
        return Fault.ENVIRONMENT
    return Fault.RACE if races_in(error) else Fault.LOST
