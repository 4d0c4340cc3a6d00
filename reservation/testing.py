"""Tests of handlers and upcasters: whether they do the same when they are given the same."""

import asyncio
import uuid
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, overload

import msgspec

from reservation.component import Component
from reservation.context import Context
from reservation.errors import DeclarationError
from reservation.handlers.copying import copied
from reservation.handlers.returned import encode_events, encode_further, events_of
from reservation.idempotence.state_based.outputs import encode_state, outputs
from reservation.messages.comparison import same_content
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.stream_name import identifier, of
from reservation.serialization import codec
from reservation.serialization.json_limits import encoder
from reservation.store.writing import Row

# Any: components have states and messages of their own.
T = TypeVar("T")


class NotDeterministicError(AssertionError):
    """What was called twice with the same input, a handler or an upcaster, did not do the same."""


@dataclass(frozen=True, slots=True)
class Handled:
    """What a handler did.

    Attributes:
        state: the state or entity after the call.
        events: the events that it returned, in order.
        context: the context that it was given; further messages are in ``context.writes``.
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
    """Call the handler of a command twice with the same input, and compare what it does.

    This finds a handler that draws its own random numbers or makes its own ids, and mostly one that
    reads the clock. It does not find one that iterates over a set of texts, because the order is
    the same within a process.

    An async handler is awaited, in an event loop of its own.

    What the handler returns is encoded and projected as in the consumers. What they refuse raises
    the same error here.

    Args:
        component: the declaration with the handler.
        command: the command to handle, left as it is.
        state: the state or entity to handle it with, left as it is; None for a new one.
        message: the command as it is stored; None for a made-up one.

    Returns:
        What the handler did.

    Raises:
        NotDeterministicError: the two calls differ.
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
    (first, rows), (second, rows_again) = (
        _handle(component, command, state, message) for _ in range(2)
    )
    if name in component.two_phase:
        _compare_states(name, first.state, second.state)
    if len(rows) != len(rows_again):
        raise NotDeterministicError(
            f"The handler of {name} published {len(rows)} messages, and the second time "
            f"{len(rows_again)}. {_ADVICE}"
        )
    for n, (row, again) in enumerate(zip(rows, rows_again, strict=True), 1):
        parts = [part for part, a, b in zip(_PARTS, row, again, strict=True) if a != b]
        if parts:
            if parts == ["data"]:
                parts = _differing(row[3], again[3])
            raise NotDeterministicError(
                f"The message {n} that the handler of {name} published, {row[2]}, was different "
                f"the second time: {', '.join(parts)} differs. {_ADVICE}"
            )
    return first


@overload
def check_upcast(
    component: Component, type_: type[T], data: Mapping[str, Any], *, version: int | None = None
) -> T: ...
@overload
def check_upcast(
    component: Component, type_: str, data: Mapping[str, Any], *, version: int | None = None
) -> Any: ...
def check_upcast(
    component: Component,
    type_: type[Any] | str,
    data: Mapping[str, Any],
    *,
    version: int | None = None,
) -> Any:
    """Decode a stored object twice, through the upcasters of its class, and compare the results.

    What comes out is then encoded and decoded once more, as a message that is written today: its
    upcasters must leave it as it is.

    Args:
        component: the declaration with the upcasters.
        type_: the class, or the name that the message is stored under, such as a former one.
        data: the JSON object as it is stored, with camelCase keys, left as it is.
        version: the version in the metadata; None for a message without one.

    Returns:
        The message, as an instance of its class.

    Raises:
        NotDeterministicError: the results differ, or a message of today is upcast again.
        DeclarationError: the component does not declare the type.
        DecodeError: an upcaster fails, or the result does not have the shape of the class.
    """
    name = type_ if isinstance(type_, str) else type_.__name__
    if name not in component.types:
        raise DeclarationError(f"{component.name} declares no message of the type {name}")
    class_ = component.types[name]
    text = encoder.encode(data).decode()
    former = _message(component.name, name, text, version)
    first, second = component.decode(former), component.decode(former)
    if not same_content(first, second):
        raise NotDeterministicError(
            f"The upcasters of {class_.__name__} made another message the second time; let them "
            f"depend on nothing but the object that they are given"
        )
    written = component.types.written(class_)
    today = _message(component.name, written.name, codec.encode(first), written.version)
    if not same_content(first, component.decode(today)):
        raise NotDeterministicError(
            f"The upcasters of {class_.__name__} change a message that has the shape of today; "
            f"let when= recognize the former shape alone"
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
    if name in component.concurrency:
        returned = _awaited(returned)
    events = events_of(returned, message, component.commands, starts=initiation is not None)
    written = component.types.written
    if name in component.two_phase:
        rows = outputs(message, entity_stream, events, context.writes, written)
        component.check_written(rows, message)
        encode_state(state, message)
    else:
        metadata = message.follow_metadata()
        rows = encode_events(events, message, entity_stream, metadata, written=written)
        further, entity = encode_further(context.writes, message, written), copied(given)
        component.check_written(further, message)
        for row in rows:
            component.projection.apply_encoded(entity, row, message)
        rows += further
    return Handled(state, events, context), rows


def _awaited(returned: Coroutine[Any, Any, Any]) -> object:
    """Return what an async handler returns, also where the test itself runs an event loop."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, returned).result()


def _stored(component: Component, command: object) -> StoredMessage:
    """Return a command as it would be read."""
    cardinal = identifier(component.entity_stream(command)) or ""
    stream_name = of(component.command_category, cardinal)
    written = component.types.written(type(command))
    return _message(stream_name, written.name, codec.encode(command), written.version)


def _message(stream_name: str, type_: str, data: str, version: int | None) -> StoredMessage:
    return StoredMessage(
        id=str(uuid.uuid4()),
        stream_name=stream_name,
        type=type_,
        position=0,
        global_position=1,
        data=data,
        metadata_json=Metadata(schema_version=version).encode(),
        time=datetime.now(UTC),
    )


def _differing(first: str, second: str) -> list[str]:
    """Return the names of the fields in which two JSON objects differ."""
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
    a, b = fields.decode(first), fields.decode(second)
    return [name for name in a if name not in b or bytes(a[name]) != bytes(b[name])]
