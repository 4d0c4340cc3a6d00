"""Deciding on a batch with async handlers, whose calls run at a time, and may outlast the batch."""
