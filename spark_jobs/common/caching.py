"""DataFrames are cached on disk, and unpersisted at the end, also after an error."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel


def kept_on_disk(frame: DataFrame) -> DataFrame:
    """Have a DataFrame cached once it is computed, in bounded memory."""
    return frame.persist(StorageLevel.DISK_ONLY)


@contextmanager
def unpersisted(kept: list[DataFrame]) -> Iterator[None]:
    """Unpersist cached DataFrames on exit, including those added to the list meanwhile."""
    try:
        yield
    finally:
        with suppress(Exception):  # a session that is gone caches nothing
            for frame in kept:
                frame.unpersist()
