"""Tests of handlers and upcasters: whether they do the same when they are given the same."""

import asyncio
import uuid
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, overload

import msgspec

from reservation.component import CategoryDeclaration, Component
from reservation.context import Context
from reservation.declaration.subscribed_category import SubscribedCategory
from reservation.errors import DeclarationError, RefusedError
from reservation.handlers.copying import copied
from reservation.handlers.reject import Reject
from reservation.handlers.returned import (
    encode_events,
    encode_further,
    encode_scheduled,
    events_of,
    with_trace,
)
from reservation.idempotence.state_based.outputs import encode_state, outputs, scheduled_outputs
from reservation.messages.comparison import same_content
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.stream_name import identifier, of
from reservation.postgres.connection import connect
from reservation.serialization import codec
from reservation.serialization.durations import time_span
from reservation.serialization.json_limits import encoder
from reservation.store.scheduling import (
    ScheduledRow,
    ScheduledWrite,
    bring_forward,
    write_due,
)
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
        rejection: why it rejected the command, with `Reject`; None if it did not.
    """

    state: Any
    events: list[Any]
    context: Context
    rejection: str | None = None

    @property
    def scheduled(self) -> list[ScheduledWrite]:
        """The messages that it scheduled, in order, each with the time when it is ``due``."""
        return list(self.context.scheduled)


def check_deterministic(
    component: Component,
    command: object,
    state: Any = None,
    *,
    message: StoredMessage | None = None,
    category: str | None = None,
) -> Handled:
    """Call a handler twice with the same input, and compare what it does.

    This finds a handler that draws its own random numbers or makes its own ids, and mostly one that
    reads the clock. It does not find one that iterates over a set of texts, because the order is
    the same within a process.

    An async handler is awaited, in an event loop of its own.

    What the handler returns is encoded and projected as in the consumers. What they refuse raises
    the same error here.

    Args:
        component: the declaration with the handler.
        command: the command or message to handle, left as it is.
        state: the state or entity to handle it with, left as it is; None for a new one.
        message: the command as it is stored; None for a made-up one.
        category: the subscribed category whose handler is called; None for the only one that there
            is for the class, which may be that of a command.

    Returns:
        What the handler did.

    Raises:
        NotDeterministicError: the two calls differ.
        DeclarationError: the component has no handler for the command.
        MessageError: the consumers would refuse what it did.
    """
    name = type(command).__name__
    declared = _declaration(component, type(command), category)
    if state is None and component.entity is not None:
        state = component.entity()
    message = message or _stored(component, declared, command)
    (first, rows), (second, rows_again) = (
        _handle(component, declared, command, state, message) for _ in range(2)
    )
    if name in declared.two_phase:
        _compare_states(name, first.state, second.state)
    if len(rows) != len(rows_again):
        raise NotDeterministicError(
            f"The handler of {name} published {len(rows)} messages, and the second time "
            f"{len(rows_again)}. {_ADVICE}"
        )
    for n, (row, again) in enumerate(zip(rows, rows_again, strict=True), 1):
        parts = [part for part, a, b in zip(_PARTS, row, again, strict=True) if a != b]
        if parts:
            if isinstance(row, ScheduledRow) and row.due != again[5]:
                parts[-1] = "due time"
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


def pass_time(database_url: str, span: timedelta | str) -> int:
    """Let time pass for scheduled messages, and write those that are due then.

    Each becomes due earlier by the span; clocks and other times stay as they are. Handle what was
    written with `consumers.drain`.

    Args:
        database_url: a libpq URL or connection string, of a database for tests.
        span: how much time is to pass: a `timedelta`, or a text such as ``"30m"``.

    Returns:
        How many messages were written by this call. A consumer that runs meanwhile may have
        written others.

    Raises:
        ValueError: the span is none, or is negative.
        StoreError: the database is away, or refuses a message that is due.
    """
    passed, count, refused = time_span(span), 0, 0
    with connect(database_url, autocommit=True) as connection:
        bring_forward(connection, passed)
        done = None
        while done is None or done.written:
            done = write_due(connection)
            count += done.written
            refused += done.refused
    if refused:
        raise RefusedError(
            f"The log refuses {refused} messages that are due; `reservation scheduled list` "
            f"shows why"
        )
    return count


_ADVICE = "Take ids, random numbers and the time from the context"
_PARTS = ("id", "stream name", "type", "data", "metadata", "expected version")


def _compare_states(name: str, first: object, second: object) -> None:
    changed = _differing(codec.encode(first), codec.encode(second))
    if changed:
        raise NotDeterministicError(
            f"The handler of {name} left another state the second time: {', '.join(changed)} "
            f"differs. {_ADVICE}"
        )


def _declaration(component: Component, class_: type, category: str | None) -> CategoryDeclaration:
    """Return the declaration that has the handler for a class."""
    name = class_.__name__
    subscribed = [
        one
        for one in component.subscribed.values()
        if one.types.has(class_) and category in (None, one.category)
    ]
    found: list[CategoryDeclaration] = [*subscribed]
    if category is None and (name in component.handlers or name in component.initiations):
        found.append(component)
    if len(found) > 1:
        raise DeclarationError(
            f"{component.name} has several handlers for {name}; give category= the name of the "
            f"subscribed category"
        )
    if not found:
        raise DeclarationError(
            f"{component.name} has no handler for {name}; declare one with "
            f"@{component.name}.handle({name}), or with @{component.name}.on({name}, category=…)"
        )
    return found[0]


def _handle(
    component: Component,
    declared: CategoryDeclaration,
    command: object,
    given: Any,
    message: StoredMessage,
) -> tuple[Handled, list[Row | ScheduledRow]]:
    name = type(command).__name__
    command = codec.decode_encoded(type(command), codec.encode(command))
    entity_stream = declared.entity_stream(command)
    state, context = copied(given), Context(message, entity_stream=entity_stream)
    initiation, rejection = declared.initiations.get(name), None
    events: list[object]
    try:
        if initiation is not None:
            returned = initiation.handler(command, context)
        else:
            returned = declared.handlers[name](command, state, context)
        if name in declared.concurrency:
            returned = _awaited(returned)
        events = events_of(returned, message, component.commands, starts=initiation is not None)
    except Reject as reject:
        rejection = reject.reason
        events = [reject.event(message.type, starts=initiation is not None)]
        state = copied(given)
        context.writes.clear()
        context.scheduled = ()
    written = component.types.written
    rows: list[Row | ScheduledRow] = []
    if name in declared.two_phase:
        rows += outputs(message, entity_stream, events, context.writes, written)
        rows += scheduled_outputs(message, context.scheduled, written)
        component.check_written(rows, message)
        encode_state(state, message)
    else:
        metadata = message.follow_metadata()
        traced = with_trace(events, context.scheduled)
        own = encode_events(traced, message, entity_stream, metadata, written=written)
        further, entity = encode_further(context.writes, message, written), copied(given)
        scheduled = encode_scheduled(context.scheduled, message, written)
        component.check_written([*further, *scheduled], message)
        for row in own:
            component.projection.apply_encoded(entity, row, message)
        rows += [*own, *further, *scheduled]
    return Handled(state, [] if rejection else events, context, rejection), rows


def _awaited(returned: Coroutine[Any, Any, Any]) -> object:
    """Return what an async handler returns, also where the test itself runs an event loop."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, returned).result()


def _stored(component: Component, declared: CategoryDeclaration, command: object) -> StoredMessage:
    """Return a command, or a message of a subscribed category, as it would be read."""
    cardinal = identifier(declared.entity_stream(command)) or ""
    category = component.command_category
    if isinstance(declared, SubscribedCategory):
        category = declared.category
    stream_name = of(category, cardinal)
    written = declared.types.written(type(command))
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
