"""The categories of a store as DataFrames, all of one snapshot."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.declaration import Declaration
from spark_jobs.session import parallelism
from spark_jobs.source import NAME

# Ranges for each core, so that one that takes longer does not let the others wait.
_RANGES = 2


@dataclass(frozen=True, slots=True)
class Categories:
    """Reads columns of categories.

    Attributes:
        spark: the session.
        snapshot: the id of the snapshot.
        declaration: how keys are made.
        after: from where to read on, of each category.
    """

    spark: SparkSession
    snapshot: str
    declaration: Declaration
    after: Mapping[str, int] = field(default_factory=dict)

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return columns of categories, in one DataFrame."""
        return (
            self.spark.read.format(NAME)
            .option("categories", json.dumps(list(categories)))
            .option("firsts", json.dumps(list(firsts_of)))
            .option("filters", "false")
            .option("columns", ",".join(columns))
            .option("snapshot", self.snapshot)
            .option("declaration", self.declaration.to_json())
            .option("after", json.dumps(dict(self.after)))
            .option("partitions", _RANGES * parallelism(self.spark))
            .load()
        )
