"""Categories of the store as a stream of Spark's.

    spark.readStream.format("message_store").option("category", "account:command").load()

An offset says for each category up to which global position it was read. It never passes what may
still become visible: whoever writes to a category holds its lock until the commit, so that of one
category whatever is seen is all there is up to there, and each category has a position of its own.
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
    """Reads categories as they grow."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._ceiling: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's own
        """Return where a new query begins: behind what the option `after` names."""
        asked = ReadOptions(self._options)
        return {category: asked.after.get(category, 0) for category in asked.categories}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's own
        """Return how much one batch may hold, by the option `rows`."""
        rows = ReadOptions(self._options).rows
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's own
        """Read no further than to what is there now."""
        self._ceiling = self._heads()

    def latestOffset(  # noqa: N802  Spark's own
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return up to where the next batch reads.

        A limit is of all categories together: they are cut at one global position, so that a batch
        does not hold what follows messages that it does not hold yet.
        """
        heads = self._heads() if self._ceiling is None else self._ceiling
        end = {category: max(heads.get(category, 0), done) for category, done in start.items()}
        if not isinstance(limit, ReadMaxRows):
            return end
        with reading.planning(None) as connection:
            cut = ranges.limited(connection, start, end, limit.max_rows)
        return {category: max(start[category], min(last, cut)) for category, last in end.items()}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's own
        """Return up to where there is something to read."""
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
