"""The effects of a handler's call: the events, the further messages and the scheduled ones.

Everything is encoded as soon as the handler returns, and what cannot be stored is refused there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from reservation.component import Component
from reservation.context import Context
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.entity.projection import Loaded
from reservation.errors import DecodeError, HandlerError
from reservation.handlers.copying import copied
from reservation.handlers.reject import Reject
from reservation.handlers.returned import (
    encode_events,
    encode_further,
    encode_scheduled,
    events_of,
    with_trace,
)
from reservation.idempotence.in_events import with_local
from reservation.idempotence.state_based.outputs import check_outputs, encode_state
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.pseudo_event import FIRST, PSEUDO_EVENT
from reservation.raised import describe
from reservation.serialization import codec
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row

E = TypeVar("E")


class EncodedEffects(NamedTuple):
    """The effects of a handler, encoded.

    Attributes:
        events: the events of its entity, in order.
        further: the messages that it wrote to other streams, in order.
        scheduled: the messages that are written later, in order.
    """

    events: list[Row]
    further: list[Row]
    scheduled: list[ScheduledRow]


# Any: components have commands, entities and events of their own.
def invoke(
    declared: CategoryDeclarations,
    message: StoredMessage,
    command: Any,
    entity: Any,
    context: Context,
    commands: frozenset[type],
) -> list[object]:
    """Call the handler of a message, and return its events."""
    one = declared[message.type]
    starts = one.role is Role.INITIATE
    returned = one.handler(command, context) if starts else one.handler(command, entity, context)
    return events_of(returned, message, commands, starts=starts)


async def invoke_async(
    declared: CategoryDeclarations,
    message: StoredMessage,
    command: Any,
    entity: Any,
    context: Context,
    commands: frozenset[type],
) -> list[object]:
    """Await the async handler of a message, and return its events; see `invoke`."""
    one = declared[message.type]
    starts = one.role is Role.INITIATE
    call = one.handler(command, context) if starts else one.handler(command, entity, context)
    return events_of(await call, message, commands, starts=starts)


def rejection(
    declared: CategoryDeclarations, message: StoredMessage, reject: Reject, context: Context
) -> list[object]:
    """Return the event of a command that was rejected; what its handler wrote is dropped."""
    context.writes.clear()
    context.scheduled = ()
    return [reject.event(message.type, starts=declared[message.type].role is Role.INITIATE)]


def copy_for(entity: E, message: StoredMessage) -> E:
    """Return a copy of an entity for a handler, so that only projectors change what is kept.

    One that cannot be changed is given as it is.
    """
    try:
        return copied(entity)
    except Exception as error:
        raise HandlerError(
            f"The {type(entity).__name__} that {message} is for cannot be copied for its "
            f"handler: {describe(error)}; keep in an entity what `copy.deepcopy` can copy"
        ) from error


def marks_first(component: Component[Any]) -> bool:
    """Return whether the first event after pseudo events says where it is.

    With other strategies pseudo events of theirs may come first, and nobody relies on it.
    """
    declared = declarations(component)
    return declared.own.initiates and declared.starts_are_first


def is_first(loaded: Loaded) -> bool:
    """Return whether an event starts an entity's stream that holds nothing but pseudo events."""
    return not loaded.started and loaded.version >= 0


def with_first(metadata: Metadata, loaded: Loaded) -> Metadata:
    """Return the metadata of an event that starts a stream, see `is_first`."""
    return with_local(metadata, FIRST, loaded.version + 1) if is_first(loaded) else metadata


def decide(
    component: Component[Any],
    message: StoredMessage,
    entity_stream: str,
    events: Sequence[object],
    context: Context,
    *,
    metadata: Metadata | None,
    version: int | None,
) -> EncodedEffects:
    """Return the effects of a handler, encoded and checked."""
    declared = declarations(component)
    written = declared.types.written
    if context.scheduled:
        events = with_trace(events, context.scheduled)
    rows = encode_events(events, message, entity_stream, metadata, version, written)
    further: list[Row] = []
    scheduled: list[ScheduledRow] = []
    if context.writes:
        further = encode_further(context.writes, message, written)
        declared.check_written(further, message)
    if context.scheduled:
        scheduled = encode_scheduled(context.scheduled, message, written)
        declared.check_written(scheduled, message)
    return EncodedEffects(rows, further, scheduled)


def state_of(component: Component[Any], text: str | None, message: StoredMessage) -> Any:
    """Return a state from its JSON text, None for a new one."""
    entity: Any = component.entity
    try:
        return codec.decode(entity, codec.encode(entity()) if text is None else text)
    except Exception as error:  # a class may check itself as it likes
        raise DecodeError(
            f"Cannot handle {message}: the stored state does not fit {entity.__name__}: "
            f"{codec.explain(error)}. Give new fields a default, so that the class can read "
            f"former states"
        ) from error


def decide_with_state(
    component: Component[Any],
    message: StoredMessage,
    entity_stream: str,
    events: Sequence[object],
    context: Context,
    state: object,
) -> tuple[EncodedEffects, str]:
    """Return the effects of a handler with a state, and the state as JSON text."""
    declared = declarations(component)
    written = declared.types.written
    rows = encode_events(events, message, entity_stream, written=written)
    further = encode_further(context.writes, message, written)
    scheduled = encode_scheduled(context.scheduled, message, written)
    check_outputs(message, [*rows, *further], scheduled)
    declared.check_written([*rows, *further, *scheduled], message)
    return EncodedEffects(rows, further, scheduled), encode_state(state, message)


def apply(component: Component[Any], row: Row, loaded: Loaded, message: StoredMessage) -> None:
    """Apply an event that is going to be written to its entity."""
    loaded.entity = declarations(component).projection.apply_encoded(loaded.entity, row, message)
    loaded.version += 1
    loaded.started = loaded.started or row.type != PSEUDO_EVENT
