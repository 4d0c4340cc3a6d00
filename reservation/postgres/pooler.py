"""Detecting a pooler between us and the server, and whether its clients share sessions.

A pooler such as pgbouncer either gives each client a session of its own (``pool_mode=session``) or
uses any session for each transaction (``pool_mode=transaction``). In the second case other clients
meet the settings of a session, and its locks and notifications have no owner.
"""

from typing import Any

from psycopg import AsyncConnection, Connection

from reservation.errors import SessionError
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.postgres", "connection.sql")

# How often the session of each of two connections is looked at.
_TIMES = 4


def is_pooled(connection: Connection[Any]) -> bool:
    """Return whether something between us and the server answers for it.

    A pooler gives its clients process numbers of its own.
    """
    return _backend(connection) != connection.info.backend_pid


async def is_pooled_async(connection: AsyncConnection[Any]) -> bool:
    """Return whether something between us and the server answers for it; see `is_pooled`."""
    rows = await (await connection.execute(_QUERIES["backend"])).fetchall()
    return int(rows[0][0]) != connection.info.backend_pid


def check_session(connection: Connection[Any], other: Connection[Any]) -> None:
    """Refuse a pooler that gives transactions of one connection to any session.

    Between two transactions of a connection its session is free for other connections. So two
    connections that each run several transactions share a session, or change theirs.
    """
    with translated():
        ours = {_backend(connection) for _ in range(_TIMES)}
        theirs = {_backend(other) for _ in range(_TIMES)}
        ours.add(_backend(connection))
    if len(ours) > 1 or len(theirs) > 1 or ours & theirs:
        raise SessionError(
            "A consumer needs a session of its own, and the pooler in front of the database gives "
            "each transaction any session, as pgbouncer does with pool_mode=transaction; give the "
            "consumers the server's own address, or one with pool_mode=session"
        )


def _backend(connection: Connection[Any]) -> int:
    return int(connection.execute(_QUERIES["backend"]).fetchall()[0][0])
