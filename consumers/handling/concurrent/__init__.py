"""Deciding on a batch with async handlers, whose calls run at the same time, and may outlast it."""
