"""Cached DataFrames are unpersisted at the end, also after an error."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame


@contextmanager
def unpersisted(kept: list[DataFrame]) -> Iterator[None]:
    """Unpersist cached DataFrames on exit, including those added to the list meanwhile."""
    try:
        yield
    finally:
        with suppress(Exception):  # a session that is gone caches nothing
            for frame in kept:
                frame.unpersist()
