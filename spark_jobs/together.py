"""An archive and the store, read as one.

The archive has each category up to one message, whether or not the store still has what is before
it; the store is read on from there. So every message is read once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.archived import Archive
from spark_jobs.categories import Categories
from spark_jobs.columns import schema, types_of
from spark_jobs.declaration import Declaration
from spark_jobs.jdbc import Jdbc
from spark_jobs.judging import Read, Rows
from spark_jobs.sums import COLUMNS

_FILES = schema(types_of(COLUMNS))

# What the names of the folders say. Told, lest a category that is a number be taken for one.
_FOLDERS = "category string, day date"


@dataclass(frozen=True, slots=True)
class Together:
    """Reads columns of categories, out of an archive and then out of the store.

    Attributes:
        spark: the session.
        archive: the archive.
        declaration: how keys are made, there as here.
        store: reads the store, from behind what is archived.
        after: from where to read on, of each category.
    """

    spark: SparkSession
    archive: Archive
    declaration: Declaration
    store: Categories | Jdbc
    after: Mapping[str, int] = field(default_factory=dict)

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return columns of categories, in one DataFrame."""
        archived = self.of(self.archived(), categories, columns, firsts_of)
        return archived.unionByName(self.store(categories, columns, firsts_of=firsts_of))

    def at(self, positions: DataFrame) -> "Chosen":
        """Return what reads the messages at some positions only.

        Args:
            positions: with the column ``global_position``.
        """
        assert isinstance(self.store, Categories)  # noqa: S101  the other can not
        return Chosen(self, self.store.at(positions), positions)

    def archived(self) -> DataFrame:
        """Return what is archived."""
        return (
            self.spark.read.schema(f"{_FILES}, run int, {_FOLDERS}")
            .option("basePath", str(self.archive.folder))
            .parquet(*self.archive.folders)
            .where(_behind(self.after))
        )

    def of(
        self,
        archived: DataFrame,
        categories: Sequence[str],
        columns: Sequence[str],
        firsts_of: Sequence[str],
    ) -> DataFrame:
        """Return columns of what is archived of some categories."""
        of_function = F.col("type").isin(self.declaration.by_function)
        messages = archived.withColumn("function_data", F.when(of_function, F.col("data")))
        return Rows(messages)(categories, columns, firsts_of=firsts_of)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Reads columns of some of the messages, wherever they are.

    Attributes:
        together: what they are of.
        store: reads them, if the store has them.
        positions: theirs, in the column ``global_position``.
    """

    together: Together
    store: Read
    positions: DataFrame

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return columns of those that are in some categories, in one DataFrame."""
        together, positions = self.together, self.positions.select("global_position")
        archived = together.archived().join(positions, "global_position", "left_semi")
        # The store may still have what is archived.
        needed = dict.fromkeys([*columns, "category", "global_position"])
        stored = self.store(categories, list(needed), firsts_of=firsts_of)
        return together.of(archived, categories, columns, firsts_of).unionByName(
            stored.where(_behind(together.archive.after)).select(*columns)
        )


def _behind(positions: Mapping[str, int]) -> Column:
    """Return whether a message is behind the position of its category."""
    is_behind = F.lit(True)
    for category, position in positions.items():
        is_behind &= (F.col("category") != category) | (F.col("global_position") > position)
    return is_behind


def of_one_run(spark: SparkSession, folder: str) -> DataFrame:
    """Return what lies in the folder of one run; files that can not be read are left out."""
    return (
        spark.read.schema(f"{_FILES}, {_FOLDERS}")
        .option("ignoreCorruptFiles", "true")
        .option("ignoreMissingFiles", "true")
        .parquet(folder)
    )
