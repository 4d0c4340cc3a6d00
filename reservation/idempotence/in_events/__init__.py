"""in_events."""
