"""Message DB in tests: calling its functions, and a store that is not made by us."""

import uuid
from importlib.resources import files
from pathlib import Path
from typing import Any

from psycopg import Connection

from tests.support.controls import COMMANDS


def imitate(connection: Connection[Any]) -> None:
    """Create a schema message_store with functions as Message DB's, instead of ours."""
    ours = files("reservation.store.schema.sql") / "message_store"
    with connection.transaction():
        connection.execute((ours / "tables.sql").read_bytes())
        connection.execute(Path(__file__).with_suffix(".sql").read_bytes())
        for script in ("indexes", "views", "privileges"):
            connection.execute((ours / f"{script}.sql").read_bytes())


def write(
    connection: Connection[Any],
    stream_name: str = COMMANDS,
    *,
    message_id: str | None = None,
    expected_version: int | None = None,
) -> int:
    """Write a message of type T, under a new id unless one is given, and return its position."""
    row = connection.execute(
        "SELECT message_store.write_message(%s, %s, 'T', '{}', NULL, %s)",
        [message_id or str(uuid.uuid4()), stream_name, expected_version],
    ).fetchone()
    assert row is not None
    return int(row[0])
