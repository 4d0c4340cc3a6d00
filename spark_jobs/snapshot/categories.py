"""The categories of a store as DataFrames, all of one snapshot.

A read is divided here, over the snapshot's own connection; workers then read the parts. The source
(`spark_jobs.source.source`) does the same for anyone, but Spark starts two more Python processes at
each read to plan it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.common.declaration import Declaration
from spark_jobs.session.session import parallelism
from spark_jobs.snapshot.snapshot import Snapshot
from spark_jobs.source import columns as made
from spark_jobs.source import reading
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
    """

    spark: SparkSession
    snapshot: Snapshot
    declaration: Declaration
    after: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, categories: Sequence[str], columns: Sequence[str]) -> DataFrame:
        """Return columns of categories, in one DataFrame."""
        queries = [made.CategoryQuery(name, columns, self.declaration) for name in categories]
        number = _RANGES * parallelism(self.spark)
        texts = self.snapshot.parts(queries, number, after=self.after, until=self.until)
        types = made.types_of(columns)
        read = partial(reading.parts, texts, self.snapshot.id, arrow_schema(types))
        # A row for each part, in a partition of its own; one without parts.
        numbers = self.spark.range(0, len(texts), 1, max(1, len(texts)))
        return numbers.mapInArrow(read, made.schema(types))

    def at(
        self,
        positions: DataFrame,
        categories: Sequence[str],
        columns: Sequence[str],
        *,
        required: bool = False,
    ) -> DataFrame:
        """Return columns of the messages of categories at some positions, looked up one by one.

        The positions are in the column ``global_position``. It can be required that none is
        missing.
        """
        query = made.positions_query(categories, columns, self.declaration)
        types = made.types_of(columns)
        read = partial(reading.chosen, [query], self.snapshot.id, arrow_schema(types))
        if required:
            read = partial(reading.require_all, read)
        return positions.select("global_position").mapInArrow(read, made.schema(types))
