"""Messages that became visible behind what was read already.

A writer that takes no lock of its category, such as a bare ``INSERT``, may commit after messages
that have higher global positions. Such a message shows in the number of messages up to one that was
read before, and in the sum of their global positions.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.analysis.judging import Read


def messages(
    read: Read, known: DataFrame, until: Mapping[str, int], columns: Sequence[str]
) -> DataFrame:
    """Return the messages that are not known, of parts of categories.

    Args:
        read: reads the store; nothing of it is read twice if it can look messages up (``at``).
        known: with the column ``global_position``.
        until: the categories, and up to which global position of each to look.
        columns: of the messages.
    """
    known = known.select("global_position")

    def unknown(frame: DataFrame) -> DataFrame:
        is_here = F.lit(False)
        for category, last in until.items():
            is_here |= (F.col("category") == category) & (F.col("global_position") <= last)
        return frame.where(is_here).join(known, "global_position", "left_anti")

    places = ["category", "global_position"]
    if hasattr(read, "at"):
        chosen: Read = read.at(unknown(read(list(until), places)))
        return chosen(list(until), columns)
    needed = list(dict.fromkeys([*columns, *places]))
    return unknown(read(list(until), needed)).select(*columns)
