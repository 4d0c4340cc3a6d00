"""The context of a span in the metadata of a message, in the form of W3C Trace Context.

It is in the properties, because these are passed on to what follows a message: to the copy of a
reserved command, and to what a handler writes where no span of its own is recorded. (Local
properties are not.)
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from reservation.messages.metadata import Metadata

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

_propagator = TraceContextTextMapPropagator()


class _Properties(msgspec.Struct):
    traceparent: Any = None  # any JSON value
    tracestate: Any = None


class _Metadata(msgspec.Struct):
    properties: _Properties = msgspec.field(default_factory=_Properties)


_decoder = msgspec.json.Decoder(_Metadata)


def properties_of(metadata: str | None) -> dict[str, Any]:
    """Return the properties that hold the context in which a message was sent."""
    if metadata is None or TRACEPARENT not in metadata:
        return {}
    try:
        found = _decoder.decode(metadata).properties
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return {TRACEPARENT: found.traceparent, TRACESTATE: found.tracestate}


def is_left_out(metadata: str | None) -> bool:
    """Return whether a message is of a trace that is not sampled, which takes a microsecond."""
    parent = properties_of(metadata).get(TRACEPARENT)
    return isinstance(parent, str) and not is_sampled(parent)


def is_sampled(parent: str | None) -> bool:
    """Return whether a ``traceparent`` is of a trace that is sampled, or may be.

    Whether it is valid is seen when the context is read.
    """
    # Version 00 has 55 characters, and the last is of the flags.
    return parent is not None and not (len(parent) == 55 and parent[54] in "02468ace")


def context_of(properties: object) -> SpanContext | None:
    """Return the context that is in properties; None if there is none that is valid."""
    if not isinstance(properties, Mapping):
        return None
    carrier = {
        name: value
        for name in (TRACEPARENT, TRACESTATE)
        if isinstance(value := properties.get(name), str)
    }
    context = get_current_span(_propagator.extract(carrier, Context())).get_span_context()
    return context if context.is_valid else None


def distinct(contexts: Iterable[SpanContext]) -> list[SpanContext]:
    """Return contexts of different spans, in their order."""
    return list({(one.trace_id, one.span_id): one for one in contexts}.values())


def with_context(metadata: Metadata | None, span: Span) -> Metadata | None:
    """Return metadata with the context of a span, in the place of any that it had.

    Metadata that cannot be stored is returned as it is, for the store to refuse it.
    """
    if metadata is None:
        return Metadata(properties=_carrier(span))
    if not isinstance(metadata, Metadata) or not isinstance(metadata.properties, dict):
        return metadata
    kept = {name: value for name, value in metadata.properties.items() if name != TRACESTATE}
    return dataclasses.replace(metadata, properties={**kept, **_carrier(span)})


def _carrier(span: Span) -> dict[str, str]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, set_span_in_context(span, Context()))
    return carrier
