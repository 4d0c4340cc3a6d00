"""The host of consumers: their processes, what these had in flight, their health and metrics."""
