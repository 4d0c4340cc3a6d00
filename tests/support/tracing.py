"""OpenTelemetry's SDK in a test: spans in memory, and a receiver of OTLP for those of processes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler

from reservation.tracing import current
from tests.support.started import PATIENCE

KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}


@dataclass(frozen=True)
class Span:
    """A span, as the receiver of a trace sees it; ids are hexadecimal digits."""

    process: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    is_error: bool
    events: int

    @property
    def context(self) -> tuple[str, str]:
        """The ids of the trace and of the span."""
        return self.trace, self.id


class Recorded:
    """Spans of this process."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)

    def add_to(self, provider: TracerProvider) -> None:
        """Record what a provider makes."""
        self.provider = provider
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def tracer(self) -> trace.Tracer:
        """A tracer of the program that is tested."""
        return self.provider.get_tracer("test")

    def all(self) -> list[Span]:
        """Return what has ended, in that order."""
        return [_of_sdk(span) for span in self._exporter.get_finished_spans()]

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name, in the order in which they ended."""
        return [span for span in self.all() if span.name == name]

    def clear(self) -> None:
        """Forget them."""
        self._exporter.clear()


@contextmanager
def provided(provider: trace.TracerProvider | None) -> Iterator[None]:
    """Set the tracer provider of this process for a block, which the API lets nobody set twice."""
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    try:
        yield
    finally:
        trace._TRACER_PROVIDER = before
        current._known = (None, None)


@contextmanager
def recording(sampler: Sampler = DEFAULT_ON) -> Iterator[Recorded]:
    """Record the spans of this process while the block lasts."""
    recorded = Recorded()
    recorded.add_to(TracerProvider(sampler=sampler, shutdown_on_exit=False))
    with provided(recorded.provider):
        yield recorded


def _of_sdk(span: ReadableSpan) -> Span:
    context = span.get_span_context()
    assert context is not None
    return Span(
        "",
        span.name,
        span.kind.name,
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        f"{span.parent.span_id:016x}" if span.parent else "",
        tuple(
            (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links
        ),
        dict(span.attributes or {}),
        span.status.status_code is trace.StatusCode.ERROR,
        len(span.events),
    )


class Receiver:
    """A receiver of OTLP over HTTP.

    Attributes:
        answers: whether it answers; if not, who exports waits.
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._changed = threading.Condition()
        self._open = threading.Event()
        self._open.set()
        self.requests = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests += 1
                receiver._open.wait()
                request = ExportTraceServiceRequest.FromString(body)
                receiver._take(request)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)

    @property
    def environment(self) -> dict[str, str]:
        """What a process is given to send its spans here soon after they end."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def stall(self) -> None:
        """Take requests from now on, and answer none."""
        self._open.clear()

    def wait(self, what: Any, patience: float = PATIENCE) -> list[Span]:
        """Wait until a condition on the spans that came is met, and return them."""
        with self._changed:
            met = self._changed.wait_for(lambda: what(self._spans), patience)
            assert met, self._spans
            return list(self._spans)

    def _take(self, request: ExportTraceServiceRequest) -> None:
        taken = []
        for of_resource in request.resource_spans:
            resource = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                taken += [_of_otlp(span, resource) for span in of_scope.spans]
        with self._changed:
            self._spans += taken
            self._changed.notify_all()


def _of_otlp(span: Any, resource: dict[str, str]) -> Span:
    def value(of: Any) -> Any:
        return getattr(of, of.WhichOneof("value"))

    return Span(
        resource.get("service.instance.id", ""),
        span.name,
        KINDS[span.kind],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        {attribute.key: value(attribute.value) for attribute in span.attributes},
        span.status.code == 2,
        len(span.events),
    )
