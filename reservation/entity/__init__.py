"""Entities: their state from the events of a stream, and keeping it in memory and in snapshots."""
