"""The spans of a consumer: one for each message that it handles, one for each batch it reserves.

How many a batch makes is limited, so that a backlog is not handled more slowly because it is
traced. A message beyond that has no span of its own, and what follows from it stays in the trace of
its sender.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from psycopg import Connection

from reservation.context import Context
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.stream_name import category
from reservation.postgres.arrays import IntArray, fetch_all
from reservation.postgres.queries import load_queries
from reservation.tracing import current_tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

    from reservation.tracing.tracing import Tracing

# How many messages of a batch have a span of their own.
MOST_SPANS = 20
# How many commands of a batch its span is linked to.
MOST_LINKS = 32

_QUERIES = load_queries("consumers.runtime.observability")


class MessageSpan:
    """The span in which a message is handled.

    Attributes:
        outcome: what has become of the message.
    """

    def __init__(self, span: "Span") -> None:
        self._span = span
        self.outcome = "failed"  # until it is known

    def propagate(self, metadata: Metadata, context: Context) -> Metadata:
        """Return metadata of what the handler returned with the context of this span.

        What the handler wrote besides, which its context holds, carries it too from now on.
        """
        context.writes[:] = [self._propagated(write) for write in context.writes]
        context.scheduled = [self._propagated(write) for write in context.scheduled]
        return self._with_context(metadata)

    # Any: a `Write` or a `ScheduledWrite`.
    def _propagated(self, write: Any) -> Any:
        return dataclasses.replace(write, metadata=self._with_context(write.metadata))

    def _with_context(self, metadata: Metadata) -> Metadata:
        from reservation.tracing.propagation import with_context

        return with_context(metadata, self._span) or metadata


class Spans:
    """Makes the spans of one consumer, batch after batch.

    Attributes:
        tracing: what makes them for this batch; None if the process does not trace.
    """

    def __init__(self) -> None:
        self.tracing: Tracing | None = None
        self._left = 0
        self._tried: Mapping[int, int] = MappingProxyType({})
        self._begun: set[int] = set()

    @contextmanager
    def batch(self, tried: Mapping[int, int] = MappingProxyType({})) -> Iterator[None]:
        """Run a block that handles a batch, or letters.

        What a handler does in a message without a span is not recorded either, by samplers that go
        by the parent.
        """
        self.tracing = current_tracing()
        if self.tracing is None:
            yield
            return
        from opentelemetry.context import attach, detach

        from reservation.tracing.propagation import is_left_out
        from reservation.tracing.tracing import unsampled

        self._is_left_out = is_left_out
        self._left = MOST_SPANS
        self._tried = tried
        token = attach(unsampled())
        try:
            yield
            self._begun.clear()
        finally:
            detach(token)

    def wants_span(self, message: StoredMessage) -> bool:
        """Return whether a message is to have a span of its own."""
        if self.tracing is None or not self._left:
            return False
        return not self._is_left_out(message.metadata_json)

    @contextmanager
    def handling(
        self, message: StoredMessage, consumer: str, *, again: bool = False
    ) -> Iterator[MessageSpan | None]:
        """Handle a message in a span, and give that; None if none is recorded.

        The parent is the span in which the message was sent. Another attempt is not its child but
        the first of a trace of its own, and linked to it.
        """
        if self.tracing is None or not self.wants_span(message):
            yield None
            return
        from opentelemetry.trace import SpanKind

        from reservation.tracing.propagation import context_of, properties_of
        from reservation.tracing.tracing import GROUP, MESSAGE_ID, MESSAGE_TYPE, child_of

        sent = context_of(properties_of(message.metadata_json))
        self._left -= 1
        position = message.global_position
        again = again or position in self._begun or position in self._tried
        self._begun.add(position)
        with self.tracing.span(
            SpanKind.CONSUMER,
            ("process", "process"),
            category(message.stream_name),
            {
                GROUP: consumer,
                MESSAGE_ID: message.id,
                MESSAGE_TYPE: message.type,
                "reservation.message.global_position": position,
                "reservation.redelivered": again,
            },
            child_of(None if again else sent),
            () if sent is None or not again else (sent,),
        ) as span:
            handling = MessageSpan(span)
            try:
                yield handling if span.is_recording() else None
            finally:
                span.set_attribute("reservation.outcome", handling.outcome)

    def skipped(self, message: StoredMessage, consumer: str, outcome: str) -> None:
        """Make the span of a message that is skipped, because it has taken effect already."""
        if self.tracing is None:
            return
        with self.handling(message, consumer, again=True) as span:
            if span is not None:
                span.outcome = outcome

    @contextmanager
    def reserving(
        self,
        connection: Connection[Any],
        consumer: str,
        commands: Sequence[StoredMessage],
        counts: Counter[str],
    ) -> Iterator[None]:
        """Reserve a batch of commands in a span that is linked to those in which they were sent.

        Where all of them were sent in one span, that is the parent too.
        """
        if self.tracing is None or not commands:
            yield
            return
        from opentelemetry.trace import SpanKind

        from reservation.tracing.propagation import distinct
        from reservation.tracing.tracing import BATCH_SIZE, GROUP, child_of

        sent = self._sent(connection, commands[:MOST_LINKS])
        links = distinct(filter(None, sent))
        together = len(links) == 1 and None not in sent and len(sent) == len(commands)
        parent = links[0] if together else None
        before = counts.copy()
        with self.tracing.span(
            SpanKind.CONSUMER,
            ("reserve", "process"),
            category(commands[0].stream_name),
            {GROUP: consumer, BATCH_SIZE: len(commands)},
            child_of(parent),
            links,
        ) as span:
            yield
            for outcome, count in (counts - before).items():
                span.set_attribute(f"reservation.count.{outcome}", count)

    @staticmethod
    def _sent(
        connection: Connection[Any], commands: Sequence[StoredMessage]
    ) -> "list[SpanContext | None]":
        """Return the contexts in which commands were sent; None for traces that are not sampled.

        The server has kept the metadata of commands whose key it has taken.
        """
        from reservation.tracing.propagation import TRACEPARENT, TRACESTATE, context_of, is_sampled

        positions = IntArray([command.global_position for command in commands])
        rows = fetch_all(connection, _QUERIES["sent_in"], [positions])
        contexts = (
            context_of({TRACEPARENT: parent, TRACESTATE: state}) if is_sampled(parent) else None
            for parent, state in rows
        )
        return [one if one and one.trace_flags.sampled else None for one in contexts]


# Any: structlog's loggers have no common type.
def add_span(logger: Any, method: str, event: Any) -> Any:
    """Add the ids of the trace and the span to what is logged in a span that is recorded."""
    del logger, method
    if current_tracing() is not None:
        from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

        span = get_current_span()
        if span.is_recording():
            context = span.get_span_context()
            event["trace_id"] = format_trace_id(context.trace_id)
            event["span_id"] = format_span_id(context.span_id)
    return event
