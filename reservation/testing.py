"""What users test their own handlers with."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from reservation.component import Component
from reservation.context import Context
from reservation.errors import DeclarationError
from reservation.handlers.copying import copied
from reservation.handlers.returned import encode_events, encode_further, events_of
from reservation.idempotence.state_based.outputs import encode_state, outputs
from reservation.messages.message import StoredMessage
from reservation.messages.stream_name import identifier, of
from reservation.serialization import codec
from reservation.store.writing import Row

# Any: components have states and messages of their own.


class NotDeterministicError(AssertionError):
    """A handler that was given the same twice did not do the same."""


@dataclass(frozen=True, slots=True)
class Handled:
    """What a handler did.

    Attributes:
        state: the state as it left it.
        events: what it returned, in order.
        context: what it was given; what it wrote besides is in ``context.writes``.
    """

    state: Any
    events: list[Any]
    context: Context


def check_deterministic(
    component: Component,
    command: object,
    state: Any = None,
    *,
    message: StoredMessage | None = None,
) -> Handled:
    """Call the handler of a command twice, each time with the same, and make sure it does the same.

    A handler that draws its own random numbers or makes its own ids is found that way, and one that
    looks at the clock, if it looks closely. One that goes through a set of texts is found only by
    another process, because within one the order is the same.

    What the handler returned is dealt with as the consumers deal with it. What they refuse raises
    the same error here.

    Args:
        component: the declaration with the handler.
        command: the command to handle, left as it is.
        state: the state or entity to handle it on, left as it is; a new one if None.
        message: the command as it is stored; one is made up if None.

    Returns:
        What the handler did.

    Raises:
        NotDeterministicError: it did not do the same.
        DeclarationError: the component has no handler for the command.
        MessageError: the consumers would refuse what it did.
    """
    name = type(command).__name__
    if name not in component.handlers and name not in component.initiations:
        raise DeclarationError(
            f"{component.name} has no handler for {name}; declare one with "
            f"@{component.name}.handle({name})"
        )
    if state is None and component.entity is not None:
        state = component.entity()
    message = message or _stored(component, command)
    (first, one), (second, other) = (_handle(component, command, state, message) for _ in range(2))
    if name in component.two_phase:
        _compare_states(name, first.state, second.state)
    if len(one) != len(other):
        raise NotDeterministicError(
            f"The handler of {name} published {len(one)} messages, and the second time "
            f"{len(other)}. {_ADVICE}"
        )
    for n, (row, again) in enumerate(zip(one, other, strict=True), 1):
        parts = [part for part, a, b in zip(_PARTS, row, again, strict=True) if a != b]
        if parts:
            if parts == ["data"]:
                parts = _differing(row[3], again[3])
            raise NotDeterministicError(
                f"What the handler of {name} published as its message {n}, {row[2]}, was otherwise "
                f"the second time: {', '.join(parts)} differs. {_ADVICE}"
            )
    return first


_ADVICE = "Take ids, random numbers and the time from the context"
_PARTS = ("id", "stream name", "type", "data", "metadata", "expected version")


def _compare_states(name: str, first: object, second: object) -> None:
    changed = _differing(codec.encode(first), codec.encode(second))
    if changed:
        raise NotDeterministicError(
            f"The handler of {name} left another state the second time: {', '.join(changed)} "
            f"differs. {_ADVICE}"
        )


def _handle(
    component: Component, command: object, given: Any, message: StoredMessage
) -> tuple[Handled, list[Row]]:
    name = type(command).__name__
    command = codec.decode_encoded(type(command), codec.encode(command))
    entity_stream = component.entity_stream(command)
    state, context = copied(given), Context(message, entity_stream=entity_stream)
    initiation = component.initiations.get(name)
    if initiation is not None:
        returned = initiation.handler(command, context)
    else:
        returned = component.handlers[name](command, state, context)
    events = events_of(returned, message, component.commands, starts=initiation is not None)
    if name in component.two_phase:
        rows = outputs(message, entity_stream, events, context.writes)
        encode_state(state, message)
    else:
        rows = encode_events(events, message, entity_stream, message.follow_metadata())
        further, entity = encode_further(context.writes, message), copied(given)
        for row in rows:
            component.projection.apply_encoded(entity, row, message)
        rows += further
    return Handled(state, events, context), rows


def _stored(component: Component, command: object) -> StoredMessage:
    """Return a command as it would be read."""
    cardinal = identifier(component.entity_stream(command)) or ""
    return StoredMessage(
        id=str(uuid.uuid4()),
        stream_name=of(component.command_category, cardinal),
        type=type(command).__name__,
        position=0,
        global_position=1,
        data=codec.encode(command),
        metadata_json=None,
        time=datetime.now(UTC),
    )


def _differing(one: str, other: str) -> list[str]:
    """Return the names of the fields in which two JSON objects differ."""
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
    a, b = fields.decode(one), fields.decode(other)
    return [name for name in a if name not in b or bytes(a[name]) != bytes(b[name])]
