"""Commits and sessions of others than the consumer's transaction during a call."""

from typing import Any

from psycopg import Connection, sql

from reservation.postgres.connection import connect
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.testing.crashing.inside.observing", "sessions.sql")

NAME = "reservation crash kit"

# A row of pg_locks that is an advisory lock, and of pg_stat_activity.
Lock = tuple[int, int, int]


class Sessions:
    """A look at the database from outside the transaction of a batch."""

    def __init__(self, address: str, consumer: Connection[Any]) -> None:
        self._connection = connect(address, application_name=NAME, autocommit=True)
        self._connection.execute(_QUERIES["settings"])
        self._consumer = consumer
        self._ours = [self._connection.info.backend_pid, consumer.info.backend_pid]

    def committed(self) -> dict[str, tuple[int, str]]:
        """Return of each table how many rows are committed, and a digest of them.

        A table that the batch has locked is left out.
        """
        found = {}
        for schema, table in self._connection.execute(_QUERIES["tables"]).fetchall():
            query = sql.SQL(
                "SELECT count(*), coalesce(md5(string_agg(t::text, ' ' ORDER BY t::text)), '') "
                "FROM {} t"
            ).format(sql.Identifier(schema, table))
            try:
                count, digest = self._connection.execute(query).fetchall()[0]
            except Exception:  # noqa: BLE001, S112  it is locked or was dropped
                continue
            found[table if schema == "public" else f"{schema}.{table}"] = (count, digest)
        return found

    def others(self) -> dict[int, str]:
        """Return the sessions of others in this database, and the state of each, by process id."""
        rows = self._connection.execute(_QUERIES["others"], [self._ours, "reservation %"])
        return dict(rows.fetchall())

    def locks(self) -> set[Lock]:
        """Return the advisory locks that the consumer's session holds."""
        rows = self._connection.execute(_QUERIES["locks"], [self._consumer.info.backend_pid])
        return set(rows.fetchall())
