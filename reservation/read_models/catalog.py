"""What the catalogs of PostgreSQL say of a schema, and the statements that change schemas."""

from typing import Any, NamedTuple

from psycopg import Connection, sql

from reservation.errors import MissingRightError
from reservation.postgres.queries import load_queries

QUERIES = load_queries("reservation.read_models")


class SchemaState(NamedTuple):
    """A schema as it was found.

    Attributes:
        comment: its comment; None without one.
        is_used: whether there is anything in it.
        is_own: whether the role has the rights of its owner.
    """

    comment: str | None
    is_used: bool
    is_own: bool


def schema_state(connection: Connection[Any], name: str) -> SchemaState | None:
    """Return a schema as it is; None if there is none."""
    row = connection.execute(QUERIES["schema"], {"schema": name}).fetchone()
    return None if row is None else SchemaState(*row)


def ensure_schema(connection: Connection[Any], name: str, comment: str) -> None:
    """Create a schema if there is none, and say in its comment what it is.

    An owner of the database may have created it for a role that may not.
    """
    if schema_state(connection, name) is None:
        ((may, database, role),) = connection.execute(QUERIES["may_create"]).fetchall()
        if not may:
            raise MissingRightError(
                f"The role {role} may not create the schema {name} in the database {database}; let "
                f"its owner run: CREATE SCHEMA {name} AUTHORIZATION {role}"
            )
        execute(connection, "create_schema", schema=sql.Identifier(name))
    execute(connection, "comment_schema", schema=sql.Identifier(name), text=sql.Literal(comment))


def execute(connection: Connection[Any], name: str, **values: sql.Composable) -> None:
    """Execute a query whose names are composed."""
    connection.execute(sql.SQL(QUERIES[name].decode()).format(**values))
