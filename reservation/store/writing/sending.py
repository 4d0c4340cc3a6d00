"""The span of a call that sends messages, whose context the messages carry."""

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reservation.errors import EncodeError
from reservation.messages.ids import uuid7s
from reservation.messages.stream_name import category
from reservation.messages.written import written_as
from reservation.store.writing.write import Write
from reservation.tracing import current_tracing

if TYPE_CHECKING:
    from reservation.tracing.tracing import Attributes


@contextmanager
def in_span(writes: Iterable[Write], operation: str = "send") -> Iterator[Iterable[Write]]:
    """Run a block that sends messages in a span, and give it the messages with its context.

    The parent is the span that is current. Where there is none, it is the one in the metadata of
    the messages, if they have one in common. A process that does not trace gets the messages as
    they are, and so does what the store refuses.
    """
    tracing = current_tracing()
    if tracing is None or not isinstance(writes, Iterable):
        yield writes
        return
    from opentelemetry.trace import SpanKind, get_current_span

    from reservation.tracing.propagation import context_of, distinct, with_context
    from reservation.tracing.tracing import BATCH_SIZE, child_of

    writes = list(writes)
    if not writes or not all(isinstance(write, Write) for write in writes):
        yield writes
        return
    if len(writes) == 1 and writes[0].id is None:
        writes = [dataclasses.replace(writes[0], id=uuid7s(1)[0])]
    context = None
    if not get_current_span().get_span_context().is_valid:
        found = [context_of(getattr(write.metadata, "properties", None)) for write in writes]
        inherited = distinct(filter(None, found))
        common = len(inherited) == 1 and None not in found
        context = child_of(inherited[0] if common else None)
    names = {write.stream_name for write in writes}
    categories = {category(name) if isinstance(name, str) else None for name in names}
    destination = categories.pop() if len(categories) == 1 else None
    attributes = _of_one(writes[0]) if len(writes) == 1 else {BATCH_SIZE: len(writes)}
    with tracing.span(
        SpanKind.PRODUCER, (operation, "send"), destination, attributes, context
    ) as span:
        if span.get_span_context().is_valid:
            writes = [
                dataclasses.replace(write, metadata=with_context(write.metadata, span))
                for write in writes
            ]
        yield writes


def _of_one(write: Write) -> "Attributes":
    """Return the attributes of a single message."""
    from reservation.tracing.tracing import MESSAGE_ID, MESSAGE_TYPE

    # Any: the class of the message is known only now.
    class_: Any = type(write.message)
    try:
        return {MESSAGE_ID: str(write.id), MESSAGE_TYPE: written_as(class_).name}
    except EncodeError:  # which the store will say
        return {}
