"""Reading ranges of the log, each over a connection of its own that sees one snapshot.

Where a range begins and ends is decided by whoever plans the read, through psycopg; the rows come
as Arrow batches, through ADBC. The database's address is taken from the environment of the process
that connects, so that none of Spark's properties, plans or pages holds it.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import Connection, IsolationLevel, conninfo, sql
from pyspark.sql.datasource import InputPartition

from reservation.queries import load_queries
from reservation.store.connection import check_address, connect
from reservation.store.errors import translated
from spark_jobs.address import DATABASE_VARIABLE
from spark_jobs.errors import ReadError

QUERIES = load_queries("spark_jobs")

# Of so many pages of the log it is told where a category's messages are.
_SAMPLED_PAGES = 2_000
# Fewer messages than these in the sample say that the category is small enough to look at all of
# it.
_ENOUGH = 200

# Fewer messages are read sooner by one worker than by two that have to be started.
_ENOUGH_FOR_ONE = 20_000

_LAST = 2**63 - 1


@dataclass
class Range(InputPartition):
    """A part of a read: the query that gives its rows."""

    query: str
    snapshot: str | None


def database_url() -> str:
    """Return the address of the database as this process was told it."""
    return os.environ.get(DATABASE_VARIABLE, "")


def planning(snapshot: str | None) -> Connection[tuple[Any, ...]]:
    """Open a transaction that sees a snapshot, or one of its own, for the one who plans."""
    connection = connect(database_url(), application_name="reservation spark")
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    try:
        if snapshot is not None:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except psycopg.Error:
        connection.close()
        raise
    return connection


def head(connection: Connection[tuple[Any, ...]], category: str) -> int:
    """Return the global position of a category's last message, 0 if it has none.

    Whoever writes to a category holds its lock until the commit, so nothing before what is seen can
    still become visible, however long another category's writer takes.
    """
    return _bounds(connection, category, 0, _LAST)[1]


def ranges(
    connection: Connection[tuple[Any, ...]], category: str, first: int, last: int, number: int
) -> list[tuple[int, int]]:
    """Divide a part of a category into ranges that hold about equal numbers of messages.

    Args:
        connection: in the transaction that plans.
        category: the category.
        first, last: the global positions that the part begins and ends with.
        number: into how many ranges, at most.

    Returns:
        The first and last global position of each range, in order; none if there is no message.
    """
    with translated():
        first, last = _bounds(connection, category, first, last)
        if not last:
            return []
        if number <= 1 or last == first:
            return [(first, last)]
        found, messages = _where(connection, {"category": category, "first": first, "last": last})
    number = min(number, max(1, messages // _ENOUGH_FOR_ONE))
    ends = sorted({found[len(found) * n // number] for n in range(1, number)} - {last})
    starts = [first, *(end + 1 for end in ends)]
    return list(zip(starts, [*ends, last], strict=True))


def limited(
    connection: Connection[tuple[Any, ...]],
    start: Mapping[str, int],
    end: Mapping[str, int],
    rows: int,
) -> int:
    """Return the global position up to which parts of categories hold so many messages together.

    Args:
        connection: in the transaction that plans.
        start: by category, the global position that the part begins behind.
        end: by category, the one that it ends with.
        rows: how many.
    """
    values = {
        "categories": list(start),
        "first": [position + 1 for position in start.values()],
        "last": [end[category] for category in start],
        "rows": rows,
    }
    with translated():
        (found,) = connection.execute(QUERIES["limited"], values).fetchall()[0]
    return int(found or 0)


def _bounds(
    connection: Connection[tuple[Any, ...]], category: str, first: int, last: int
) -> tuple[int, int]:
    values = {"category": category, "first": first, "last": last}
    with translated():
        found = connection.execute(QUERIES["bounds"], values).fetchall()[0]
    return found[0] or 0, found[1] or 0


def _where(
    connection: Connection[tuple[Any, ...]], values: dict[str, Any]
) -> tuple[list[int], int]:
    """Return global positions of a category, in order, and about how many messages there are.

    They are all, or those on some of the log's pages.
    """
    pages = int(connection.execute(QUERIES["pages"]).fetchall()[0][0])
    if pages > _SAMPLED_PAGES:
        percent = 100 * _SAMPLED_PAGES / pages
        rows = connection.execute(QUERIES["sample"], {**values, "percent": percent}).fetchall()
        if len(rows) >= _ENOUGH:
            return [row[0] for row in rows], len(rows) * pages // _SAMPLED_PAGES
    found = [row[0] for row in connection.execute(QUERIES["every_position"], values)]
    return found, len(found)


def batches(part: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read a range, in batches of a few megabytes.

    Args:
        part: the range.
        schema: of what is given, in the order of the query's columns.

    Raises:
        ReadError: the database can not be reached, or ended the connection.
    """
    from adbc_driver_manager import Error
    from adbc_driver_postgresql import dbapi

    address = database_url()
    check_address(address)
    named = conninfo.make_conninfo(
        address, client_encoding="UTF8", fallback_application_name="reservation spark"
    )
    try:
        with dbapi.connect(named, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if part.snapshot is not None:
                literal = sql.Literal(part.snapshot).as_string(None)
                cursor.execute(f"SET TRANSACTION SNAPSHOT {literal}")
            cursor.execute(QUERIES["settings"].decode())
            cursor.execute(part.query)
            for batch in cursor.fetch_record_batch():
                yield pa.RecordBatch.from_arrays(
                    [
                        column.cast(field.type)
                        for column, field in zip(batch.columns, schema, strict=True)
                    ],
                    schema=schema,
                )
    except Error as error:
        raise ReadError(f"The database could not be read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return what an error says first; what follows repeats the query."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
