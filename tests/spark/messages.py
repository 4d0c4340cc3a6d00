"""Messages made by hand, read as the source would give them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.judging import Read

START = datetime(2026, 1, 1, tzinfo=UTC)

SCHEMA = (
    "category string, global_position bigint, position bigint, stream_name string, type string, "
    "id string, time timestamp, causation bigint, sender string, key_category string, "
    "key_stream string, is_copy boolean, content string"
)
COLUMNS = [field.split()[0] for field in SCHEMA.split(", ")]


def message(global_position: int, stream_name: str, type_: str, **columns: Any) -> dict[str, Any]:
    """Return a message's row; what is not given follows from its global position, or is null."""
    return {
        **dict.fromkeys(COLUMNS),
        "category": stream_name.partition("-")[0],
        "global_position": global_position,
        "position": 0,
        "stream_name": stream_name,
        "type": type_,
        "id": f"id{global_position}",
        "time": START + timedelta(seconds=global_position),
        "is_copy": False,
        **columns,
    }


def reading(spark: SparkSession, messages: Sequence[dict[str, Any]]) -> Read:
    """Return what reads these messages as a job reads a store."""
    rows = [tuple(one[name] for name in COLUMNS) for one in messages]
    frame = spark.createDataFrame(rows, SCHEMA)

    def read(
        categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        wanted = F.col("category").isin(*categories)
        if firsts_of:
            wanted &= ~F.col("category").isin(*firsts_of) | (F.col("position") == 0)
        return frame.where(wanted).select(*columns)

    return read
