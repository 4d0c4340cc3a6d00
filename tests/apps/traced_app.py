"""The till as a user's module whose processes export their spans.

``TILL_DIES`` names a file: the handler of a sale ends its process, unless there is that file.
"""

import os
import signal
from pathlib import Path
from typing import Any

import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.apps import selling

if "TILL_TRACES" in os.environ:
    provider = TracerProvider(resource=Resource.create({"service.instance.id": str(os.getpid())}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def sell(command: selling.Sell, till: selling.Till, context: Any) -> selling.Sold:
    died = os.environ.get("TILL_DIES")
    if died is not None and not Path(died).exists():
        Path(died).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    structlog.get_logger().info("sold")
    return selling.sell(command, till, context)


till = selling.till(sell)
