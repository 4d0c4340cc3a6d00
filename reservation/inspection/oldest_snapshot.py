"""The session that has held a snapshot so long that the server cannot remove old versions of rows.

Consumers update the same few rows with each batch. While a snapshot is held, each update leaves
a version of the row behind that later ones have to pass.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg import Connection

from reservation.postgres.arrays import fetch_all
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.inspection", "oldest_snapshot.sql")

# Reads and batches take seconds; what takes longer is a backup, a report or a forgotten session.
OLD = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A holder of a snapshot, or of an open transaction that has written.

    Attributes:
        kind: ``session`` or ``prepared transaction``.
        name: the session's process id on the server, or the identifier of the transaction.
        role: whose it is.
        application: the ``application_name`` of the session; None for a prepared transaction.
        since: when its transaction began, or was prepared.
    """

    kind: str
    name: str
    role: str
    application: str | None
    since: datetime


# Any: connections differ in what their rows are.
def oldest_snapshot(connection: Connection[Any]) -> HeldSnapshot | None:
    """Return what holds the oldest snapshot of the database, if it is older than `OLD`.

    PostgreSQL shows a role its own sessions, and those of others to members of
    ``pg_read_all_stats``.
    """
    rows = fetch_all(connection, _QUERIES["oldest"], {"seconds": OLD.total_seconds()})
    return HeldSnapshot(*rows[0]) if rows else None
