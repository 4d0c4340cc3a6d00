"""Messages that became visible behind the messages that were read.

A writer that does not lock its category, such as a bare ``INSERT``, may commit after messages with
higher global positions. Such a late message changes the number of messages up to a position, and
the sum of their global positions.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.analysis.verdicts.judging import Read


def messages(
    read: Read, known: DataFrame, until: Mapping[str, int], columns: Sequence[str]
) -> DataFrame:
    """Return the messages of parts of categories that are not known.

    Args:
        read: reads the store; whole messages only of the unknown ones, if it has ``at``.
        known: with the column ``global_position``.
        until: the categories, each with the global position to search up to.
        columns: the columns of the messages to return.
    """
    if hasattr(read, "at"):
        chosen: Read = read.at(positions(read, known, until))
        return chosen(list(until), columns)
    needed = list(dict.fromkeys([*columns, *_PLACES]))
    return _unknown(read(list(until), needed), known, until).select(*columns)


def positions(read: Read, known: DataFrame, until: Mapping[str, int]) -> DataFrame:
    """Return where these messages are, in the column ``global_position``; see `messages`."""
    return _unknown(read(list(until), _PLACES), known, until).select("global_position")


_PLACES = ("category", "global_position")


def _unknown(rows: DataFrame, known: DataFrame, until: Mapping[str, int]) -> DataFrame:
    is_here = F.lit(False)
    for category, last in until.items():
        is_here |= (F.col("category") == category) & (F.col("global_position") <= last)
    return rows.where(is_here).join(known.select("global_position"), "global_position", "left_anti")
