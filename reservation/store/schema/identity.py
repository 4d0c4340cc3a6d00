"""The identity of a store: the id that distinguishes it from every other."""

import uuid
from typing import Any

from psycopg import Connection, Cursor
from psycopg.rows import tuple_row

from reservation.errors import SchemaError
from reservation.postgres.error_translation import translated
from reservation.store.schema.install import is_attached


def store_id(connection: Connection[Any]) -> uuid.UUID | None:
    """Return the random id that a store was given when the schema ``reservation`` was installed.

    A dump, a physical copy and a replica keep it, so two databases may have the same. ``store
    detach`` removes it with the schema; ``store attach`` makes another.
    """
    if not is_attached(connection):
        return None
    with translated():
        cursor = Cursor(connection, row_factory=tuple_row)
        ((found,),) = cursor.execute("SELECT reservation.store_id()").fetchall()
    if not isinstance(found, uuid.UUID):
        raise SchemaError(
            f"The schema reservation in database {connection.info.dbname!r} has lost its identity: "
            f"the table reservation.store_identity is empty; restore that from a backup"
        )
    return found
