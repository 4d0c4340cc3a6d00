"""Comparing tables of a read model that are too large for one query.

Workers read the pages of both tables in ranges, each page once. Of each row the server makes a
digest of the key and one of all columns, and Spark brings those of one key together.
"""

from collections.abc import Sequence
from functools import partial

from psycopg import Connection, sql
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.read_models.comparison import (
    ComparedTable,
    DifferingPlaces,
    RowPlace,
    TableDifferences,
)
from spark_jobs.common.caching import computed
from spark_jobs.session.session import parallelism
from spark_jobs.source import reading
from spark_jobs.source.columns import same_of_equal, schema
from spark_jobs.source.options import arrow_schema

_QUERIES = {
    name: text.decode() for name, text in load_queries("spark_jobs.jobs", "compare.sql").items()
}

_ROW = {"key": "string", "digest": "string", "relation": "bigint", "place": "string"}

# Pages of 8 KiB: what one worker reads at most, and what is divided at all.
_MOST, _FEWEST = 8_192, 128


def compare(
    session: SparkSession, database_url: str, table: ComparedTable, snapshot: str, most: int
) -> TableDifferences:
    """Return how a table differs, with the places of some rows; see `Compare`."""
    with connect(database_url, application_name="reservation spark") as connection:
        number = 2 * parallelism(session)
        live, made = (
            _parts(connection, table, name, number) for name in (table.live, table.rebuilt)
        )
    rows = _rows(session, live, snapshot, "live").unionByName(_rows(session, made, None, "rebuilt"))
    pairs = rows.groupBy("key").agg(_of("live").alias("live"), _of("rebuilt").alias("rebuilt"))
    kind = (
        F.when(F.col("live").isNull(), "missing")
        .when(F.col("rebuilt").isNull(), "unexpected")
        .when(F.col("live.digest") != F.col("rebuilt.digest"), "differing")
    )
    found = computed(pairs.withColumn("kind", kind).where("kind IS NOT NULL"))
    counts = {"missing": 0, "unexpected": 0, "differing": 0}
    counts |= {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    named = found.orderBy("key").limit(most).collect() if sum(counts.values()) else []
    return TableDifferences(
        counts, [DifferingPlaces(*(_place(row[side]) for side in _SIDES)) for row in named]
    )


_SIDES = ("live", "rebuilt")


def _of(side: str) -> Column:
    """Return the row of a key on one side; null without one."""
    return F.max(F.when(F.col("side") == side, F.struct("digest", "relation", "place")))


def _place(row: Row | None) -> RowPlace | None:
    return None if row is None else RowPlace(row["relation"], row["place"])


def _rows(
    session: SparkSession, queries: Sequence[str], snapshot: str | None, side: str
) -> DataFrame:
    read = partial(reading.parts, queries, snapshot, arrow_schema(_ROW))
    numbers = session.range(0, len(queries), 1, max(1, len(queries)))
    return numbers.mapInArrow(read, schema(_ROW)).withColumn("side", F.lit(side))


def _parts(
    connection: Connection[tuple[object, ...]], table: ComparedTable, schema_name: str, number: int
) -> list[str]:
    """Return queries that read all rows of a table, each in a range of its pages."""
    values = {"schema": schema_name, "table": table.name}
    with translated():
        files = connection.execute(_QUERIES["files"].encode(), values).fetchall()
    queries = []
    for namespace, name, pages in files:
        place = sql.Identifier(str(namespace), str(name))
        queries += [
            _query(table, place, first, end, connection)
            for first, end in _ranges(int(str(pages)), number)
        ]
    return queries


def _ranges(pages: int, number: int) -> list[tuple[int, int | None]]:
    """Divide pages into ranges; the last one has no end."""
    parts = min(max(1, pages // _FEWEST), max(number, pages // _MOST))
    starts = [pages * n // parts for n in range(parts)]
    return list(zip(starts, [*starts[1:], None], strict=True))


def _query(
    table: ComparedTable,
    place: sql.Identifier,
    first: int,
    end: int | None,
    connection: Connection[tuple[object, ...]],
) -> str:
    def columns(form: str, names: Sequence[str]) -> sql.Composed:
        return sql.SQL(", ").join(sql.SQL(form).format(sql.Identifier("t", name)) for name in names)

    pages = sql.SQL(_QUERIES["pages_to_the_end" if end is None else "pages"]).format(
        first=sql.Literal(f"({first},0)"), end=sql.Literal(f"({end},0)")
    )
    query = sql.SQL(_QUERIES["rows"]).format(
        key_text=same_of_equal("r.key"),
        row_text=same_of_equal('r."row"'),
        key=columns("to_jsonb({})", table.key),
        nulls=sql.SQL("ARRAY[{}]::integer[]").format(columns("num_nulls({})", table.columns)),
        table=place,
        pages=pages,
    )
    return query.as_string(connection)
