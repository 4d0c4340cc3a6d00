"""Reading which messages of a component were corrected, and the digests of their contents."""

from typing import Any

from psycopg import Connection, sql

from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from spark_jobs.common.declaration import Declaration
from spark_jobs.snapshot.meaning import Corrected
from spark_jobs.source.columns import expressions

_QUERY = load_queries("spark_jobs.snapshot", "corrections.sql")["corrections"].decode()


def corrections(
    connection: Connection[Any], declaration: Declaration, consumer: str, category: str
) -> list[Corrected]:
    """Return the messages of a category that were corrected, each as it was corrected last.

    Args:
        connection: in the transaction of the snapshot.
        declaration: says in which fields a reissue may differ.
        consumer: the component's name.
        category: the category.
    """
    made = expressions(["content", "kept"], sql.Literal(category), declaration)
    query = sql.SQL(_QUERY).format(
        **made, consumer=sql.Literal(consumer), category=sql.Literal(category)
    )
    with translated():
        rows = connection.execute(query).fetchall()
    return [Corrected(*row) for row in rows]
