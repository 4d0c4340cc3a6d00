"""Kinds of runs that cannot be done everywhere."""


class Skipped(Exception):
    """A kind of run that cannot be done here, and why."""
