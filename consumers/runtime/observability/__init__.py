"""A consumer's reports of itself: logs, spans, the errors of messages, and telemetry."""
