"""One call of a handler, without a database, as the consumers call it."""

import asyncio
import dataclasses
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from psycopg import Connection

from reservation.component import Component
from reservation.context import Context
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.effects.deciding import (
    EncodedEffects,
    apply,
    copy_for,
    decide,
    decide_with_state,
    invoke,
    invoke_async,
    marks_first,
    rejection,
    with_first,
)
from reservation.effects.faults import RaisedByHandlerError, handler_raised, is_interrupt
from reservation.entity.projection import Loaded
from reservation.errors import MessageError
from reservation.handlers.reject import Reject
from reservation.messages.message import StoredMessage
from reservation.testing.reference.recognition import traced

T = TypeVar("T")


# Any: components have entities and events of their own.
@dataclass(frozen=True, slots=True)
class Call:
    """One call of a handler.

    Attributes:
        events: the events that it returned, in order; none of a command that it rejected.
        context: the context that it was given.
        entity: its entity, with those events applied; of `StateBased` the state that it left.
        left: the copy of the entity, or the state, that it was given, as it left that.
        decided: what is to be written.
        state: of `StateBased` the state as JSON text; else None.
        rejection: why it rejected the command; None if it did not.
    """

    events: list[Any]
    context: Context
    entity: Any
    left: Any
    decided: EncodedEffects
    state: str | None = None
    rejection: str | None = None


def call(
    component: Component[Any],
    declared: CategoryDeclarations,
    message: StoredMessage,
    command: object,
    entity_stream: str,
    loaded: Loaded,
    connection: Connection[Any] | None = None,
    version: int | None = None,
) -> Call:
    """Call the handler of a message, and encode and apply its effects."""
    table = declarations(component)
    keeps_state = message.type in declared.state_based
    awaited = message.type in declared.concurrency
    initiates = declared[message.type].role is Role.INITIATE
    context = Context(
        message,
        entity_stream=entity_stream,
        connection=None if keeps_state or awaited else connection,
        replies_to=table.replies_to,
    )
    given = None if initiates else copy_for(loaded.entity, message)
    reason: str | None = None
    arguments = declared, message, command, given, context, table.commands
    try:
        returned = _awaited(invoke_async(*arguments)) if awaited else invoke(*arguments)
        events = returned
    except Reject as reject:
        reason, returned = reject.reason, []
        events = rejection(declared, message, reject, context)
        given = copy_for(loaded.entity, message)
    except MessageError:
        raise
    except BaseException as error:  # a handler can raise anything
        if is_interrupt(error):
            raise
        raise RaisedByHandlerError(handler_raised(message, error), message) from error
    if keeps_state:
        decided, state = decide_with_state(
            component, message, entity_stream, events, context, given
        )
        return Call(returned, context, given, given, decided, state, reason)
    events, local = traced(declared[message.type].once, message, events)
    metadata = dataclasses.replace(message.follow_metadata(), local_properties=local)
    if marks_first(component):
        metadata = with_first(metadata, loaded)
    decided = decide(
        component, message, entity_stream, events, context, metadata=metadata, version=version
    )
    for row in decided.events:
        apply(component, row, loaded, message)
    return Call(returned, context, loaded.entity, given, decided, None, reason)


def _awaited(returned: Coroutine[Any, Any, T]) -> T:
    """Return what an async handler returns, also where the test itself runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(returned)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, returned).result()
