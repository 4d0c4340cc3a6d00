"""Tests of handlers: whether they do the same when they are given the same."""

from dataclasses import dataclass
from typing import Any

import msgspec

from reservation.component import Component
from reservation.context import Context
from reservation.effects.addressing import entity_stream_of
from reservation.effects.faults import is_interrupt
from reservation.entity.projection import Loaded
from reservation.handlers.copying import copied
from reservation.messages.message import StoredMessage
from reservation.serialization import codec
from reservation.store.writing.scheduling import ScheduledRow, ScheduledWrite
from reservation.store.writing.write import Row
from reservation.testing.calling import Call, call
from reservation.testing.messages import as_stored, declaration_of, decoded_again, sent


class NotDeterministicError(AssertionError):
    """A handler or upcaster did something else when it was called again with the same input."""


@dataclass(frozen=True, slots=True)
class Handled:
    """A handler's result.

    Attributes:
        state: the state or entity that the handler left.
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
    declared = declaration_of(component, type(command), category)
    if state is None and component.entity is not None:
        state = component.entity()
    written, to = declared.types.written(type(command)), sent(component, declared, command)
    message = message or as_stored(
        to.stream_name, written.name, codec.encode(command), written.version
    )
    stream = entity_stream_of(declared, message, decoded_again(command), is_interrupt)
    first, second = (
        call(component, declared, message, decoded_again(command), stream, Loaded(copied(state)))
        for _ in range(2)
    )
    if first.state is not None and second.state is not None:
        _compare_states(name, first.state, second.state)
    rows, rows_again = _rows(first), _rows(second)
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
    return Handled(first.left, first.events, first.context, first.rejection)


_ADVICE = "Take ids, random numbers and the time from the context"
_PARTS = ("id", "stream name", "type", "data", "metadata", "expected version")


def _rows(done: Call) -> list[Row | ScheduledRow]:
    return [*done.decided.events, *done.decided.further, *done.decided.scheduled]


def _compare_states(name: str, first: str, second: str) -> None:
    changed = _differing(first, second)
    if changed:
        raise NotDeterministicError(
            f"The handler of {name} left another state the second time: {', '.join(changed)} "
            f"differs. {_ADVICE}"
        )


def _differing(first: str, second: str) -> list[str]:
    """Return the names of the fields in which two JSON objects differ."""
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
    a, b = fields.decode(first), fields.decode(second)
    return [name for name in a if name not in b or bytes(a[name]) != bytes(b[name])]
