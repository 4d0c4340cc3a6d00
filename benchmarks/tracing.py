"""What traces cost consumers: the way of a command from its category to its event, in four ways."""

import statistics
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark
from reservation import MessageStore, Metadata, Write
from reservation.declaration.table import declarations
from reservation.postgres.connection import connect

COUNT, TURNS = 10_000, 5
# Each with the flags of the traces that the commands are from.
WAYS = {"off": "01", "api": "01", "not sampled": "00", "on": "01"}
BARS = {"api": 0.98, "not sampled": 0.9, "on": 0.9}


@benchmark
def tracing(bench: Bench) -> Iterator[Result]:
    """Reserve and handle 10,000 commands, each of a trace of its own, in turns.

    ``off`` has not imported OpenTelemetry, ``api`` has no tracer provider, and ``on`` exports what
    it samples by OTLP to another process, as the SDK does by default.
    """
    context = get_context("spawn")
    port = context.Queue()
    receiver = context.Process(target=_receive, args=(port,), daemon=True)
    receiver.start()
    address = f"http://127.0.0.1:{port.get()}/v1/traces"
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(TURNS):
        for way in WAYS:
            with bench.database() as url, context.Pool(1) as pool:
                rates[way].append(pool.apply(_consume, (way, url, address)))
    receiver.terminate()
    median = {way: statistics.median(each) for way, each in rates.items()}
    for way, bar in BARS.items():
        name = f"tracing_{way.replace(' ', '_')}"
        yield Result.rate(name, median[way], "without OpenTelemetry", median["off"], bar)


def _consume(way: str, url: str, address: str) -> float:
    """Reserve and handle commands; return how many a second."""
    with connect(url, autocommit=True) as connection:
        declared = workload.component("account")
        sent = workload.deposits(COUNT, declarations(declared).command_category)
        workload.write_batches(MessageStore(connection), [_of_a_trace(w, WAYS[way]) for w in sent])
        workload.settle(connection)
        if way != "off":
            _set_up(way, address)
        assert (way == "off") == ("opentelemetry.trace" not in sys.modules)
        reserved = workload.consume(
            connection, declared, declarations(declared).command_category, COUNT
        )
        handled = workload.consume(connection, declared, "accountTransaction", COUNT)
    return 1 / (1 / reserved + 1 / handled)


def _of_a_trace(write: Write, flags: str) -> Write:
    """Return a message with the context of a span."""
    trace_id, span_id = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    context = {"traceparent": f"00-{trace_id}-{span_id}-{flags}"}
    return replace(write, metadata=Metadata(properties=context))


def _set_up(way: str, address: str) -> None:
    from opentelemetry import trace

    if way == "api":
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
    trace.set_tracer_provider(provider)


class _Receiver(BaseHTTPRequestHandler):
    """Takes what is sent to it, and keeps nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing."""


# Any: a queue of multiprocessing has no type to subscribe at run time.
def _receive(port: "object") -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        port.put(server.server_port)  # type: ignore[attr-defined]
        server.serve_forever()
