"""Reading messages on a worker, over a connection of its own that sees one snapshot.

The rows come as Arrow batches, through ADBC. The database's address is taken from the environment
of the process that connects, so that none of Spark's properties, plans or pages holds it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import adbc_driver_postgresql
import psycopg
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement, Error
from psycopg import Connection, IsolationLevel, conninfo, sql
from pyspark.sql.datasource import InputPartition

from reservation.postgres.connection import check_address, connect
from reservation.postgres.queries import load_queries
from spark_jobs.common.address import DATABASE_VARIABLE
from spark_jobs.common.errors import ReadError
from spark_jobs.source.columns import ComposedQuery, of_foreign_store

_QUERIES = load_queries("spark_jobs.source")


@dataclass
class QueryRange(InputPartition):
    """A part of a read: the query that gives its rows."""

    query: str
    snapshot: str | None

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read it; see `batches`."""
        return batches([self.query], self.snapshot, schema)


def database_url() -> str:
    """Return the address of the database from this process's environment."""
    return os.environ.get(DATABASE_VARIABLE, "")


def planning(snapshot: str | None) -> Connection[tuple[Any, ...]]:
    """Open a transaction to plan a read, under a snapshot or a new one."""
    connection = connect(database_url(), application_name="reservation spark")
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    try:
        if snapshot is not None:
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        connection.execute(_QUERIES["settings"])
    except psycopg.Error:
        connection.close()
        raise
    return connection


def parts(
    queries: Sequence[str],
    snapshot: str | None,
    schema: pa.Schema,
    numbers: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read those of several queries whose numbers are given in the one column of the rows."""
    wanted = (queries[number] for batch in numbers for number in batch.column(0).to_pylist())
    return batches(wanted, snapshot, schema)


def chosen(
    queries: Sequence[ComposedQuery],
    snapshot: str,
    schema: pa.Schema,
    positions: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read what is at the positions in the one column of the rows, of one query or several."""
    numbers = (batch.column(0).to_pylist() for batch in positions)
    wanted = (query.at(chosen) for chosen in numbers for query in queries)
    return batches(wanted, snapshot, schema)


def nothing(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read nothing."""
    yield from (batch.slice(0, 0) for batch in rows)


def require_all(
    read: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    positions: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read what is at positions that are each given once, and refuse if there is nothing at one."""
    asked = found = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal asked
        for batch in positions:
            asked += batch.num_rows
            yield batch

    for batch in read(counted()):
        found += batch.num_rows
        yield batch
    if found < asked:
        raise ReadError(
            f"The store lacks at least {asked - found:,} of the messages that have to be judged "
            f"again; read their archive too, or name another folder for the state"
        )


def of_streams(
    queries: Sequence[ComposedQuery],
    first: int,
    last: int,
    snapshot: str,
    schema: pa.Schema,
    names: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Read what is in a range of the streams in the one column of the rows."""
    streams = (batch.column(0).to_pylist() for batch in names)
    wanted = (query.in_streams(some, first, last) for some in streams for query in queries)
    return batches(wanted, snapshot, schema)


def batches(
    queries: Iterable[str], snapshot: str | None, schema: pa.Schema, address: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Run queries one after the other, and yield their rows in batches of a few megabytes."""
    remaining = iter(queries)
    first = next(remaining, None)
    if first is None:
        return
    address = database_url() if address is None else address
    check_address(address)
    named = conninfo.make_conninfo(
        address, client_encoding="UTF8", fallback_application_name="reservation spark"
    )
    try:
        with (
            adbc_driver_postgresql.connect(named) as database,
            AdbcConnection(database) as connection,
            AdbcStatement(connection) as statement,
        ):
            _run(statement, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if snapshot is not None:
                literal = sql.Literal(snapshot).as_string(None)
                _run(statement, f"SET TRANSACTION SNAPSHOT {literal}")
            _run(statement, _QUERIES["settings"].decode())
            with _run(statement, _QUERIES["is_foreign_store"].decode()) as found:
                is_foreign = found.read_all().column(0)[0].as_py()
            for query in chain([first], remaining):
                text = of_foreign_store(query) if is_foreign else query
                with _run(statement, text) as found:
                    yield from (_cast(batch, schema) for batch in found)
    except (Error, OSError, pa.ArrowException) as error:  # the latter two while batches are fetched
        raise ReadError(f"The database could not be read: {_first_line(error)}") from None


def _run(statement: AdbcStatement, query: str) -> pa.RecordBatchReader:
    """Run a query; the cursors of ADBC would do the same, and import pandas for it."""
    statement.set_sql_query(query)
    rows, _ = statement.execute_query()
    return pa.RecordBatchReader.from_stream(rows)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the types of a schema."""
    columns = zip(batch.columns, schema, strict=True)
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in columns], schema=schema
    )


def _first_line(error: Exception) -> str:
    """Return the first line of an error; the others repeat the query."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
