"""Kinds of runs that cannot be done everywhere."""


class Skipped(Exception):
    """A kind of run that this machine cannot do, and why."""
