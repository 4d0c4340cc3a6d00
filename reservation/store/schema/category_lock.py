"""The check that Message DB's function acquire_lock locks the category, as its original does.

Message DB lets a user replace it, and a lock for each stream is a common choice. Our writers take
the lock of the category. Two kinds of writers that take two locks do not wait for each other, and a
consumer passes a message that was not committed yet. The function is judged by what it does:
another one that locks the category is as good.
"""

import uuid
from typing import Any

import psycopg
from psycopg import Connection

from reservation.errors import SchemaError
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.store.schema", "category_lock.sql")

REPLACED = (
    "was replaced by one that does not lock the category of a stream: its writers and those of "
    "this package do not wait for each other, so that consumers miss messages"
)
REMEDY = "stop the writers, restore Message DB's own function, and start them again"


def may_acquire(connection: Connection[Any]) -> bool:
    """Return whether the role of a connection may call the function."""
    ((may,),) = connection.execute(_QUERIES["may_acquire"]).fetchall()
    return bool(may)


def locks_category(connection: Connection[Any]) -> bool:
    """Return whether the function locks categories, of streams with names of each kind."""
    # Of categories that nobody else uses, each with a lock of its own.
    names = [f"{uuid.uuid4().hex}{rest}" for rest in ("-1", ":command-1+2-3", "")]
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(_QUERIES["set_path"])
            connection.execute(_QUERIES["acquire"], [names])
            ((locks,),) = connection.execute(_QUERIES["are_locked"], [names]).fetchall()
            return bool(locks)
    except psycopg.OperationalError:
        raise
    except psycopg.Error:  # such as one that needs a table, which the original does not
        return False


def refuse_replaced_lock(connection: Connection[Any]) -> None:
    """Make sure that all writers take the same lock."""
    if not locks_category(connection):
        raise SchemaError(
            f"The function message_store.acquire_lock in database {connection.info.dbname!r} "
            f"{REPLACED}; {REMEDY}"
        )
