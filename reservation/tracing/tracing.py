"""Making spans, after OpenTelemetry's semantic conventions for messaging.

This module imports OpenTelemetry, and is only imported where the program did so before.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    ProxyTracer,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.util.types import AttributeValue

from reservation.errors import MessageError
from reservation.raised import describe

SYSTEM = "message_db"

OPERATION_NAME = "messaging.operation.name"
BATCH_SIZE = "messaging.batch.message_count"
GROUP = "messaging.consumer.group.name"
MESSAGE_ID = "messaging.message.id"
MESSAGE_TYPE = "reservation.message.type"
ERROR_TYPE = "error.type"

Attributes = dict[str, AttributeValue]


class Tracing:
    """Makes the spans of this process.

    Attributes:
        tracer: the tracer of OpenTelemetry.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._has_failed = False

    @contextmanager
    def span(
        self,
        kind: SpanKind,
        operation: tuple[str, str],
        destination: str | None,
        attributes: Mapping[str, AttributeValue],
        context: Context | None = None,
        links: Sequence[SpanContext] = (),
    ) -> Iterator[Span]:
        """Run a block in a span, which is the current one meanwhile.

        If the block raises, the span has the status of an error and the type of the exception.
        Neither its text nor its traceback is recorded, because these may hold data.

        What samplers and span processors raise is logged once and nothing else. Where the span does
        not begin, its parent takes its place.
        """
        name, type_ = operation
        try:
            span = self.tracer.start_span(
                name if destination is None else f"{name} {destination}",
                context,
                kind,
                {
                    "messaging.system": SYSTEM,
                    OPERATION_NAME: name,
                    "messaging.operation.type": type_,
                    **({} if destination is None else {"messaging.destination.name": destination}),
                    **attributes,
                },
                [Link(context) for context in links],
                record_exception=False,
                set_status_on_exception=False,
            )
        except Exception as error:  # noqa: BLE001  a program's own processor can raise anything
            self._log(error)
            span = NonRecordingSpan(get_current_span(context).get_span_context())
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            _failed(span, error)
            raise
        finally:
            try:
                span.end()
            except Exception as error:  # noqa: BLE001  as above
                self._log(error)

    def _log(self, error: Exception) -> None:
        """Log the first failure of what a program adds to OpenTelemetry."""
        if not self._has_failed:
            self._has_failed = True
            structlog.get_logger().warning("tracing_failed", error=describe(error))


def _failed(span: Span, error: BaseException) -> None:
    """Mark the span of what failed, with nothing but the type of the exception.

    Of a message that could not be handled that is what its handler raised.
    """
    kind = type((isinstance(error, MessageError) and error.__cause__) or error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    span.set_status(StatusCode.ERROR)
    span.set_attribute(ERROR_TYPE, f"{module}{kind.__qualname__}")


def unsampled() -> Context:
    """Return a context in which parent-based samplers leave out every span."""
    ids = random.getrandbits(128) or 1, random.getrandbits(64) or 1
    return child_of(SpanContext(*ids, is_remote=True))


def child_of(parent: SpanContext | None) -> Context:
    """Return a context whose current span is this one; None for no span."""
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def tracing_of(provider: TracerProvider) -> Tracing | None:
    """Return what makes spans with a tracer provider; None if they would not be recorded.

    That is the provider of a program that has OpenTelemetry's API and has not configured its SDK,
    or has disabled it.
    """
    tracer = provider.get_tracer("reservation")
    return None if isinstance(tracer, NoOpTracer | ProxyTracer) else Tracing(tracer)
