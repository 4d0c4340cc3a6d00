"""Reading which messages were handled with other data, and the digests of what they said."""

from typing import Any

from psycopg import Connection, sql

from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.given_data import GivenData
from spark_jobs.snapshot.meaning import Corrected
from spark_jobs.source.columns import expressions

_QUERIES = load_queries("spark_jobs.snapshot", "corrections.sql")


def corrections(
    connection: Connection[Any], declaration: Declaration, consumer: str, category: str
) -> dict[Corrected, str]:
    """Return the messages of a category that were corrected, with the data that was given."""
    made = expressions(["content", "kept"], sql.Literal(category), declaration)
    query = sql.SQL(_QUERIES["corrections"].decode()).format(
        **made, consumer=sql.Literal(consumer), category=sql.Literal(category)
    )
    with translated():
        rows = connection.execute(query).fetchall()
    return {Corrected(*row): given for *row, given in rows}


def given_data(
    connection: Connection[Any], consumer: str, category: str, first: int, last: int
) -> list[GivenData]:
    """Return the data that letters of a part of a category were given."""
    values = {"consumer": consumer, "category": category, "first": first, "last": last}
    with translated():
        rows = connection.execute(_QUERIES["letters"], values).fetchall()
    return [GivenData(*row) for row in rows]
