"""Checksums of messages, which the server and Spark compute independently.

A message is hashed with SHA-256 over the text of its columns, each preceded by its length. Two
parts of the hashes, of 60 bits each, are summed up over the messages of a day, so that their order
does not matter. The server sums up its own rows, and Spark what is in files, so that an error on
the way from one to the other cannot be in both.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from psycopg import Connection, sql
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.postgres.queries import load_queries
from spark_jobs.source.columns import MADE, MESSAGE, CategoryQuery

_QUERIES = {
    name: text.decode()
    for name, text in load_queries("spark_jobs.snapshot", "checksums.sql").items()
}
_SETTINGS = load_queries("spark_jobs.source")["settings"]

# The columns that are archived beside the category; the others follow from data and metadata.
_FOLLOWING = (
    "function_data",
    "entity_id",
    "entity_data",
    "version",
    "starts",
    "is_first",
    "is_subscribed",
)
COLUMNS = [name for name in MESSAGE | MADE if name not in ("category", *_FOLLOWING)]

# Where the two parts of a hash begin, and how many hexadecimal digits each has.
_PARTS = (1, 16)
_DIGITS = 15


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksums of some messages.

    Attributes:
        count: how many there are.
        first, last: the lowest and highest global position.
        high, low: the sums of the two parts of their hashes.
        unreadable: as the server says, the global positions of some that cannot be read.
    """

    count: int
    first: int
    last: int
    high: int
    low: int
    unreadable: tuple[int, ...] = field(default=(), compare=False)

    def __add__(self, other: "Checksums") -> "Checksums":
        """Return the checksums of these and other messages together."""
        return Checksums(
            self.count + other.count,
            min(self.first, other.first),
            max(self.last, other.last),
            self.high + other.high,
            self.low + other.low,
            (*self.unreadable, *other.unreadable),
        )

    @property
    def hash(self) -> str:
        """The two sums as one text."""
        return f"{self.high:x}.{self.low:x}"


def _sql(text: str) -> sql.SQL:
    return sql.SQL(text)  # from files of this package, or already composed


def total(sums: Iterable[Checksums]) -> Checksums:
    """Return the sum of several checksums; there is at least one."""
    return reduce(Checksums.__add__, sums)


def of_store(
    connection: Connection[Any], query: CategoryQuery, first: int, last: int
) -> dict[str, Checksums]:
    """Return the server's checksums of a part of a category, by day."""
    text = _sql(_QUERIES["sums"]).format(
        columns=sql.SQL(", ").join(_hashed(name) for name in COLUMNS),
        messages=_sql(query.text(first, last, connection)),
    )
    connection.execute(_SETTINGS)
    rows = connection.execute(text).fetchall()
    return {
        day: replace(_checksums(numbers), unreadable=tuple(unreadable))
        for day, *numbers, unreadable in rows
    }


def _checksums(numbers: Iterable[Any]) -> Checksums:
    count, first, last, high, low = map(int, numbers)
    return Checksums(count, first, last, high, low)


def _hashed(name: str) -> sql.Composable:
    form = _QUERIES["hashed_time" if name == "time" else "hashed_value"]
    return _sql(_QUERIES["hashed"]).format(value=_sql(form).format(column=sql.Identifier(name)))


def of_rows(rows: DataFrame) -> dict[tuple[str, str], Checksums]:
    """Return Spark's checksums of messages, by category and day."""

    def part(begin: int) -> Column:
        digits = F.substring("hash", begin, _DIGITS)
        return F.sum(F.conv(digits, 16, 10).cast("decimal(20,0)"))

    def text(name: str) -> Column:
        value = (F.unix_micros(name) if name == "time" else F.col(name)).cast("string")
        return F.coalesce(F.concat(F.length(value), F.lit(":"), value), F.lit("-"))

    found = (
        rows.select(
            "category",
            F.col("day").cast("string"),
            "global_position",
            F.sha2(F.concat(*(text(name) for name in COLUMNS)), 256).alias("hash"),
        )
        .groupBy("category", "day")
        .agg(
            F.count(F.lit(1)),
            F.min("global_position"),
            F.max("global_position"),
            *(part(begin) for begin in _PARTS),
        )
        .collect()
    )
    return {(category, day): _checksums(numbers) for category, day, *numbers in found}
