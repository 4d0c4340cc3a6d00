"""The host of consumers: their processes, what these had at hand, their health and metrics."""
