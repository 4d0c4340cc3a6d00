"""Observation of a handler's call: shared state, database sessions and other effects."""
