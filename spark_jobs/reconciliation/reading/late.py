"""Messages that became visible behind the messages that were read.

A writer that does not lock its category, such as a bare ``INSERT``, may commit after messages with
higher global positions. Such a late message changes the number of messages up to a position, and
the sum of their global positions.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.reconciliation.reading.categories import Categories


def messages(
    read: Categories, known: DataFrame, until: Mapping[str, int], columns: Sequence[str]
) -> DataFrame:
    """Return the messages of parts of categories that are not known."""
    return read.at(positions(read, known, until))(list(until), columns)


def positions(read: Categories, known: DataFrame, until: Mapping[str, int]) -> DataFrame:
    """Return where these messages are, in the column ``global_position``; see `messages`."""
    rows = read(list(until), ("category", "global_position"))
    is_here = F.lit(False)
    for category, last in until.items():
        is_here |= (F.col("category") == category) & (F.col("global_position") <= last)
    unknown = rows.where(is_here).join(known, "global_position", "left_anti")
    return unknown.select("global_position")
