"""What the call of a handler decides: the events, the further messages and the scheduled ones.

Everything is encoded as soon as the handler returns, and what cannot be stored is refused there.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from reservation.component import CategoryDeclaration, Component
from reservation.context import Context
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
from reservation.idempotence.in_events.event_causes import with_local
from reservation.idempotence.state_based.outputs import encode_state, outputs, scheduled_outputs
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.pseudo_event import FIRST, PSEUDO_EVENT
from reservation.raised import describe
from reservation.serialization import codec
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row

E = TypeVar("E")


class Decided(NamedTuple):
    """What a handler brings about, encoded.

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
    declared: CategoryDeclaration,
    message: StoredMessage,
    command: Any,
    entity: Any,
    context: Context,
    commands: frozenset[type],
) -> list[object]:
    """Call the handler of a message, and return its events.

    Args:
        declared: what declares the handler, which is not async.
        message: the message.
        command: the command in it.
        entity: a copy of its entity; not used where the command initiates.
        context: the context of the call.
        commands: the classes of the component's commands.

    Raises:
        HandlerError: it returned what is no event.
        BaseException: whatever the handler raises.
    """
    initiation = declared.initiations.get(message.type)
    if initiation is not None:
        returned = initiation.handler(command, context)
    else:
        returned = declared.handlers[message.type](command, entity, context)
    return events_of(returned, message, commands, starts=initiation is not None)


async def invoke_async(
    declared: CategoryDeclaration,
    message: StoredMessage,
    command: Any,
    entity: Any,
    context: Context,
    commands: frozenset[type],
) -> list[object]:
    """Await the async handler of a message, and return its events; see `invoke`."""
    initiation = declared.initiations.get(message.type)
    if initiation is not None:
        returned = await initiation.handler(command, context)
    else:
        returned = await declared.handlers[message.type](command, entity, context)
    return events_of(returned, message, commands, starts=initiation is not None)


def rejection(
    declared: CategoryDeclaration, message: StoredMessage, reject: Reject, context: Context
) -> list[object]:
    """Return the event of a command that was rejected; what its handler wrote is dropped."""
    context.writes.clear()
    context.scheduled = ()
    return [reject.event(message.type, starts=message.type in declared.initiations)]


def lent(entity: E, message: StoredMessage) -> E:
    """Return a copy of an entity for a handler, so that only projectors change what is kept.

    Raises:
        HandlerError: it cannot be copied.
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
    once = component.strategies.values()
    return bool(component.initiations) and all(one.two_phase for one in once)


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
) -> Decided:
    """Return what a handler brings about, encoded and checked.

    Args:
        component: the component.
        message: the message that was handled.
        entity_stream: the stream of its entity.
        events: what the handler returned, or the event of its rejection.
        context: what else it wrote.
        metadata: that of its events; None for that of a message that follows.
        version: the version of the entity's stream; None if it does not matter.

    Raises:
        MessageError: something of it cannot be stored, or nobody would know it when it is read.
    """
    written = component.types.written
    if context.scheduled:
        events = with_trace(events, context.scheduled)
    rows = encode_events(events, message, entity_stream, metadata, version, written)
    further: list[Row] = []
    scheduled: list[ScheduledRow] = []
    if context.writes:
        further = encode_further(context.writes, message, written)
        component.check_written(further, message)
    if context.scheduled:
        scheduled = encode_scheduled(context.scheduled, message, written)
        component.check_written(scheduled, message)
    return Decided(rows, further, scheduled)


def state_of(component: Component[Any], text: str | None, message: StoredMessage) -> Any:
    """Return a state from its JSON text, None for a new one.

    Raises:
        DecodeError: the text is none of the component's entity.
    """
    entity: Any = component.entity
    try:
        return codec.decode(entity, codec.encode(entity()) if text is None else text)
    except Exception as error:  # a class may check itself as it likes
        raise DecodeError(
            f"Cannot handle {message}: its state is none of {entity.__name__}: "
            f"{codec.explain(error)}. Let the class read what it has written: give new fields "
            f"a default"
        ) from error


def decide_two_phase(
    component: Component[Any],
    message: StoredMessage,
    entity_stream: str,
    events: Sequence[object],
    context: Context,
    state: object,
) -> tuple[Decided, str]:
    """Return what a handler of a two-phase strategy brings about, and its state as JSON text.

    Args:
        component: the component.
        message: the message that was handled.
        entity_stream: the stream of its entity.
        events: what the handler returned, or the event of its rejection.
        context: what else it wrote.
        state: the state that it left.

    Raises:
        MessageError: something of it cannot be stored, or nobody would know it when it is read.
    """
    written = component.types.written
    rows = outputs(message, entity_stream, events, context.writes, written)
    scheduled = scheduled_outputs(message, context.scheduled, written)
    component.check_written([*rows, *scheduled], message)
    return Decided(rows[: len(events)], rows[len(events) :], scheduled), encode_state(
        state, message
    )


def apply(component: Component[Any], row: Row, loaded: Loaded, message: StoredMessage) -> None:
    """Apply an event that is going to be written to its entity.

    Raises:
        HandlerError: its type is not declared, it cannot be read again, or the projector raised.
    """
    component.projection.apply_encoded(loaded.entity, row, message)
    loaded.version += 1
    loaded.started = loaded.started or row.type != PSEUDO_EVENT
