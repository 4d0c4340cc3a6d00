"""DataFrames that are computed once, and whose plans end there."""

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel


def computed(frame: DataFrame) -> DataFrame:
    """Compute a DataFrame now, and return what reads its rows from disk.

    Planning what is made of it does not take up its own plan again, as it does where it is cached.
    The rows are removed once nothing refers to them.
    """
    return frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
