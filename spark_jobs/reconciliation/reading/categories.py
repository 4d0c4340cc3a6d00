"""The categories of a store as DataFrames, all of one snapshot.

A read is divided here, over the snapshot's own connection; workers then read the parts. The source
(`spark_jobs.source.source`) does the same for anyone, but Spark starts two more Python processes at
each read to plan it. What is small is read by this process, which takes less time than a worker
takes to start.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.common.declaration import Declaration, passes_in
from spark_jobs.session.session import parallelism
from spark_jobs.snapshot.snapshot import Snapshot
from spark_jobs.source import columns as made
from spark_jobs.source import passes, reading
from spark_jobs.source.columns import CategoryQuery
from spark_jobs.source.options import arrow_schema

# Ranges for each core, so that the others need not wait for a slow one.
_RANGES = 2


@dataclass(frozen=True, slots=True)
class Categories:
    """Reads columns of categories.

    Attributes:
        spark: the session.
        snapshot: what is read.
        declaration: how keys are made.
        after: the global position behind which each category is read.
        until: the global position to read up to; categories without one are read to their end.
        is_here: whether this process reads, and not Spark's workers.
    """

    spark: SparkSession
    snapshot: Snapshot
    declaration: Declaration
    after: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    is_here: bool = False

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return columns of categories, in one DataFrame."""
        names = self.snapshot.readable(categories)
        queries = passes.queries(names, columns, self.declaration, firsts_of)
        return self._read(queries, made.types_of(columns))

    def parts(self, queries: Sequence[CategoryQuery], number: int | None = None) -> list[str]:
        """Return queries that read categories in parts (`Snapshot.parts`)."""
        if number is None:
            number = 1 if self.is_here else _RANGES * parallelism(self.spark)
        return self.snapshot.parts(queries, number, after=self.after, until=self.until)

    def rows_of_parts(self, texts: Sequence[str]) -> DataFrame:
        """Return a row for each part, in a partition of its own; one empty one without parts."""
        return self.spark.range(0, len(texts), 1, max(1, len(texts)))

    def _read(self, queries: Sequence[CategoryQuery], types: Mapping[str, str]) -> DataFrame:
        texts = self.parts(queries)
        if self.is_here:
            return self.read_here(texts, types)
        read = partial(reading.parts, texts, self.snapshot.id, arrow_schema(types))
        return self.rows_of_parts(texts).mapInArrow(read, made.schema(types))

    def read_here(self, queries: Iterable[str], types: Mapping[str, str]) -> DataFrame:
        """Return what queries give, read by this process."""
        schema = arrow_schema(types)
        read = self.batches(queries, schema)
        return self.spark.createDataFrame(pa.Table.from_batches(read, schema))

    def batches(self, queries: Iterable[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return what queries give, read by this process, in batches."""
        return reading.batches(queries, self.snapshot.id, schema, self.snapshot.database_url)

    def at(self, positions: DataFrame) -> "CategoryLookup":
        """Return what reads the messages at some positions only."""
        return CategoryLookup(self, positions)


@dataclass(frozen=True, slots=True)
class CategoryLookup:
    """Reads columns of some of the messages; each is looked up by its global position.

    Attributes:
        categories: the categories of a snapshot.
        positions: their positions, in the column ``global_position``.
    """

    categories: Categories
    positions: DataFrame

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return columns of those that are in some categories, in one DataFrame."""
        of = self.categories
        names = of.snapshot.readable(categories)
        own = [name for name in names if passes_in(name) is None]
        query = made.PositionsQuery(own, columns, of.declaration, firsts_of).composed()
        passed = [name for name in names if passes_in(name) is not None]
        of_passes = passes.queries(passed, columns, of.declaration, ())
        composed = [query, *(one.composed() for one in of_passes)]
        types = made.types_of(columns)
        if of.is_here:
            rows = self.positions.select("global_position").collect()
            positions = [row["global_position"] for row in rows]
            return of.read_here([one.at(positions) for one in composed if positions], types)
        read = partial(reading.chosen, composed, of.snapshot.id, arrow_schema(types))
        return self.positions.select("global_position").mapInArrow(read, made.schema(types))
