"""What Spark keeps of rows between two steps is let go of in the end, whatever happens."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame


@contextmanager
def unpersisted(kept: list[DataFrame]) -> Iterator[None]:
    """Let Spark forget in the end what it keeps, also of what is added meanwhile."""
    try:
        yield
    finally:
        with suppress(Exception):  # a session that is gone keeps nothing
            for frame in kept:
                frame.unpersist()
