"""What every process of a consumer needs: its connection, signals, logs, back-off and telemetry."""
