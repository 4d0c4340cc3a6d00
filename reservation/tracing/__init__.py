"""Traces: spans of OpenTelemetry, and their context in the metadata of messages.

Nothing here imports OpenTelemetry before the program does: `current_tracing` is what all else
begins with.
"""

from reservation.tracing.current import current_tracing, end_tracing

__all__ = ["current_tracing", "end_tracing"]
