"""Categories of the store as a stream of Spark's.

    spark.readStream.format("message_store").option("category", "account:command").load()

An offset is the global position up to which each category was read. It never passes a message that
may still become visible: a writer locks its category until the commit, so up to the last visible
message of a category all its messages are visible.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_jobs.source import ranges, reading
from spark_jobs.source.options import ReadOptions

Offset = dict[str, int]


class MessageStoreStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads categories as messages are added."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._ceiling: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's own
        """Return where a new query begins: after the positions in the option `after`."""
        asked = ReadOptions(self._options)
        return {category: asked.after.get(category, 0) for category in asked.categories}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's own
        """Return the size limit of a batch, from the option `rows`."""
        rows = ReadOptions(self._options).rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's own
        """Read no further than the last messages of now."""
        self._ceiling = self._heads()

    def latestOffset(  # noqa: N802  Spark's own
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the offset at which the next batch ends.

        A limit applies to all categories together. They are cut at one global position, so that a
        batch holds no message whose cause comes in a later one.
        """
        heads = self._heads() if self._ceiling is None else self._ceiling
        end = {category: max(heads.get(category, 0), done) for category, done in start.items()}
        if not isinstance(limit, ReadMaxRows):
            return end
        with reading.planning(None) as connection:
            cut = ranges.limited(connection, start, end, limit.max_rows)
        return {category: max(start[category], min(last, cut)) for category, last in end.items()}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's own
        """Return the offset of the last messages."""
        return self._heads()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        """Divide a batch into ranges."""
        asked = ReadOptions(self._options)
        with reading.planning(None) as connection:
            queries = {name: asked.query(name).composed(connection) for name in asked.categories}
            return [
                reading.QueryRange(queries[category].in_range(first, last), None)
                for category in asked.categories
                for first, last in ranges.divided(
                    connection, [category], start[category] + 1, end[category], asked.partitions
                )
            ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in batches."""
        assert isinstance(partition, reading.QueryRange)  # noqa: S101  as it was given
        return partition.batches(ReadOptions(self._options).schema)

    def _heads(self) -> Offset:
        asked = ReadOptions(self._options)
        until = asked.until or {}
        if until.keys() >= set(asked.categories):
            return until
        with reading.planning(None) as connection:
            return {
                category: until[category]
                if category in until
                else ranges.head(connection, category)
                for category in asked.categories
            }
