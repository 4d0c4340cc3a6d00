"""The trigger on the log with which writers give notice of new messages: there, or not."""

from typing import Any

from psycopg import Connection, sql

from reservation.errors import LockTimeoutError
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.store.schema", "notice_trigger.sql")

# How long turning notices on or off waits for writers of the log, and holds up new ones.
LOCK_TIMEOUT = "10s"


def notices_given(connection: Connection[Any]) -> bool:
    """Return whether writers give notice of new messages."""
    with translated():
        return bool(connection.execute(_QUERIES["given"]).fetchall()[0][0])


def may_switch(connection: Connection[Any]) -> bool:
    """Return whether the role may put a trigger on the log."""
    return bool(connection.execute(_QUERIES["may_switch"]).fetchall()[0][0])


def switch_notices(connection: Connection[Any], on: bool) -> None:
    """Add the trigger, or remove it."""
    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(LOCK_TIMEOUT))
    try:
        with translated():
            connection.execute(_QUERIES["on" if on else "off"])
    except LockTimeoutError as error:
        raise LockTimeoutError(
            "The table message_store.messages is in use by a transaction that does not "
            "end; pg_stat_activity shows whose it is; end it, and try again"
        ) from error
