"""Reading some messages of what is read, by their global positions."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_jobs.analysis.verdicts.judging import Read
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.union import Union


def at(read: Read, positions: DataFrame) -> Read:
    """Return what reads the messages at some positions only, from wherever they are.

    Args:
        read: reads all of them.
        positions: with the column ``global_position``.
    """
    if isinstance(read, Categories):
        return read.at(positions)
    if isinstance(read, Union) and isinstance(read.store, Categories):
        return read.at(positions)
    return _Chosen(read, positions)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Reads all messages, and keeps some; for what cannot look up single ones, such as JDBC.

    Attributes:
        read: reads all of them.
        positions: the positions to keep, in the column ``global_position``.
    """

    read: Read
    positions: DataFrame

    def __call__(
        self, categories: Sequence[str], columns: Sequence[str], *, firsts_of: Sequence[str] = ()
    ) -> DataFrame:
        """Return columns of those that are in some categories, in one DataFrame."""
        needed = list(dict.fromkeys([*columns, "global_position"]))
        rows = self.read(categories, needed, firsts_of=firsts_of)
        kept = rows.join(self.positions.select("global_position"), "global_position", "left_semi")
        return kept.select(*columns)
