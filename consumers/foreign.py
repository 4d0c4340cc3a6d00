"""Positions that were taken in another log, before a store was cleared, restored or replaced."""

from collections.abc import Iterator
from contextlib import contextmanager

from reservation.errors import ForeignPositionError


@contextmanager
def naming(app: str) -> Iterator[None]:
    """Give the command that an error names the app path of the component.

    Raises:
        ForeignPositionError: what was raised within, with the app path.
    """
    try:
        yield
    except ForeignPositionError as error:
        raise ForeignPositionError(error.consumer, error.category, error.position, app) from error
