"""The Spark data source ``message_store``: categories of the store as a DataFrame.

    spark.dataSource.register(MessageStoreSource)
    spark.read.format("message_store").option("category", "account:command").load()

A category is read in ranges of global position that hold about equal numbers of messages, in
parallel. Only the columns that are asked for are read. Conditions are not left to the server: Spark
4.3 keeps those that it has left to a Python source with the DataFrame, and applies them to whatever
else is done with it. What is read is limited by options, which do not change.

All parts of a read, and several reads, see one snapshot of the store if its id is given
(`spark_jobs.snapshot.snapshot`). Without one, a read ends at the last message that its planner saw:
of a category nothing before that can still become visible, and messages are never changed.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from spark_jobs.common.errors import OptionError
from spark_jobs.source import columns, ranges, reading
from spark_jobs.source.options import ReadOptions
from spark_jobs.source.stream import MessageStoreStreamReader

NAME = "message_store"


class MessageStoreSource(ds.DataSource):
    """Categories of the message store.

    Options:
        category: the category to read; or
        categories: several, as a JSON list.
        columns: the columns to read, separated by commas; those of a message without it. See
            `spark_jobs.source.columns` for what there is.
        after: from where to read on, as a JSON object of categories and global positions; from
            the beginning of those that it does not name.
        until: up to where to read, as such an object; to the end of those that it does not name.
        snapshot: the id of an exported snapshot.
        rows: how many messages one batch of a stream may hold; all that there are without it. Only
            a stream has batches.
        partitions: into how many ranges to divide the read, 4 without it.
        declaration: how keys are made, from `spark_jobs.common.declaration`, for the columns that
            are made of it.
    """

    def __init__(self, options: dict[str, str]) -> None:
        """Read the options, so that ``load()`` refuses a wrong one.

        Raises:
            OptionError: one is unknown, cannot be read, or contradicts another.
        """
        super().__init__(options)
        self._reading = ReadOptions(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the source in ``format()``."""
        return NAME

    def schema(self) -> str:
        """Return the columns as a schema of Spark."""
        return columns.schema(columns.types_of(self._reading.columns))

    def reader(self, schema: StructType) -> "MessageStoreReader":
        """Return the reader; the schema is always the source's own.

        Raises:
            OptionError: an option is one of streams.
        """
        del schema
        if self._reading.rows is not None:
            raise OptionError("The option rows is for a stream; limit this read with until")
        return MessageStoreReader(self.options)

    def streamReader(  # noqa: N802  Spark's own
        self, schema: StructType
    ) -> MessageStoreStreamReader:
        """Return the reader of a stream.

        Raises:
            OptionError: an option is one of other reads.
        """
        del schema
        if "snapshot" in self.options:
            raise OptionError("The option snapshot is not for a stream; leave it out")
        return MessageStoreStreamReader(self.options)


class MessageStoreReader(ds.DataSourceReader):
    """Reads categories in ranges; Spark sends a copy of it to every worker."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[ds.InputPartition]:
        """Divide the categories into ranges."""
        asked = ReadOptions(self._options)
        until = asked.until or {}
        snapshot = self._options.get("snapshot")
        with reading.planning(snapshot) as connection:
            found = [
                (name, first, last)
                for name in asked.categories
                for first, last in ranges.divided(
                    connection,
                    [name],
                    asked.after.get(name, 0) + 1,
                    until[name] if name in until else ranges.head(connection, name),
                    asked.partitions,
                )
            ]
            queries = {name: asked.query(name).composed(connection) for name in asked.categories}
            return [
                reading.QueryRange(queries[name].in_range(first, last), snapshot)
                # Spark requires at least one part.
                for name, first, last in found or [(asked.categories[0], 0, 0)]
            ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, in batches."""
        assert isinstance(partition, reading.QueryRange)  # noqa: S101  as it was given
        return partition.batches(ReadOptions(self._options).schema)
