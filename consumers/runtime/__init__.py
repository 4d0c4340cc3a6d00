"""The runtime of a consumer's process: its connection, signals, logs, back-off and telemetry."""
