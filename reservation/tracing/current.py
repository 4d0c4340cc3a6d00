"""The process's tracing, found without importing OpenTelemetry.

Who wants traces configures OpenTelemetry's SDK, and so has imported ``opentelemetry.trace``. Where
nobody has, one look into the imported modules is all that tracing costs.
"""

import contextlib
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reservation.tracing.tracing import Tracing

# The provider that was found last, and what it gives; None for one that records nothing.
_known: "tuple[object, Tracing | None]" = (None, None)


def current_tracing() -> "Tracing | None":
    """Return what makes the spans of this process; None if it has no tracer provider."""
    trace = sys.modules.get("opentelemetry.trace")
    return None if trace is None else _of_provider(trace)


def end_tracing(seconds: float) -> None:
    """Export the spans that are left, and end the tracer provider; for the end of a process.

    An exporter whose receiver is away is not waited for any longer than that.
    """
    if current_tracing() is None:
        return
    shutdown = getattr(_known[0], "shutdown", None)
    if shutdown is not None:
        ending = threading.Thread(target=shutdown, name="end of traces", daemon=True)
        ending.start()
        ending.join(seconds)


def _of_provider(trace: ModuleType) -> "Tracing | None":
    global _known
    provider, tracing = _known
    with contextlib.suppress(AttributeError, NameError):  # another thread is importing the module
        if trace.get_tracer_provider() is not provider:
            from reservation.tracing.tracing import tracing_of

            provider = trace.get_tracer_provider()
            tracing = tracing_of(provider)
            _known = (provider, tracing)
        return tracing
    return None
