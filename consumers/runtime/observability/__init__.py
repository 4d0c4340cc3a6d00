"""What a consumer reports of itself: logs, spans, the errors of messages, and telemetry."""
