"""The schemas of a read model: one of tables for each version, and one of views for readers.

What they are is said in their comments (`reservation.read_models.made_versions`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import Connection, sql
from psycopg.pq import TransactionStatus

from reservation.declaration.model_version import ModelVersion
from reservation.declaration.table import Declared, declarations
from reservation.errors import DeclarationError, MessageError, SchemaError, StoreError
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.request import Request
from reservation.raised import describe
from reservation.read_models.catalog import QUERIES, ensure_schema, execute, schema_state
from reservation.read_models.made_versions import (
    ArchivedPart,
    made_version,
    refuse_without_archive,
    tables_comment,
)
from reservation.read_models.views import turn_views, views_comment


class Table(NamedTuple):
    """A table of a version.

    Attributes:
        name: its name.
        key: the columns of its primary key.
        columns: all columns.
    """

    name: str
    key: list[str]
    columns: list[str]


def lock_model(connection: Connection[Any], model: str) -> None:
    """Keep others from making tables or turning views until the end of the transaction."""
    connection.execute(QUERIES["lock"], {"model": model})


def enter(connection: Connection[Any], schema: str, *, locally: bool = False) -> None:
    """Set the search path to a version's schema, for the session or the transaction."""
    with translated():
        connection.execute(QUERIES["enter"], {"schema": schema, "locally": locally})


def still_entered(schema: str) -> Request:
    """Return the request that fails where a handler left another search path behind.

    It belongs before the commit, because the next handler would find other tables.
    """

    def failed(error: psycopg.Error) -> Exception:
        if not isinstance(error, psycopg.errors.DivisionByZero):
            return error
        return MessageError(
            f"A handler of {schema} left another search_path behind; qualify the names of what is "
            f"elsewhere, and leave the search_path as it is"
        )

    return Request(QUERIES["still_entered"], {"schema": schema}, failed=failed)


def prepare(
    connection: Connection[Any], component: Declared, archived: Sequence[ArchivedPart] = ()
) -> None:
    """Make the schema and the tables of a read model's version, once; nothing for a component.

    The views show it if they did before, or there is no other version. A version can be built from
    parts of an archive only from its beginning.
    """
    model, categories = declarations(component).model, declarations(component).subscribed_categories
    if model is None:
        return
    with translated(), connection.transaction():
        lock_model(connection, model.name)
        found = schema_state(connection, model.schema)
        if (made := made_version(connection, model)) is not None:
            if archived and not made.archived:
                _refuse_begun(connection, model)
            refuse_without_archive(connection, model, categories, archived)
            comment = tables_comment(model, categories, _longest(made.archived, archived))
            if found is not None and found.comment != comment:
                ensure_schema(connection, model.schema, comment)
            return
        if found is not None and (found.comment or found.is_used or not found.is_own):
            raise StoreError(
                f"The schema {model.schema} is in use for something else than version "
                f"{model.version} of the read model {model.name}; rename one of them"
            )
        _refuse_position(connection, model)
        shown = schema_state(connection, model.name)
        make(connection, model, model.schema, tables_comment(model, categories, archived))
        if (
            shown is None
            or (shown.is_own and not (shown.comment or shown.is_used))
            # Then they went with its tables.
            or shown.comment == views_comment(model.name, model.version)
        ):
            turn_views(connection, model.name, model.version)
        elif not (shown.comment or "").startswith(f"Read model {model.name}: views of version "):
            raise StoreError(
                f"The schema {model.name} is in use for something else than the views of the read "
                f"model {model.name}; rename one of them"
            )


def check_made(connection: Connection[Any], model: ModelVersion) -> None:
    """Refuse to fill a version whose tables were removed while its consumers were away.

    They are not removed either until the end of the transaction.
    """
    lock_model(connection, model.name)
    if not _is_made(connection, model):
        raise SchemaError(
            f"The schema {model.schema} of version {model.version} of the read model {model.name} "
            f"was removed meanwhile; start the version again to make it anew, or leave it out"
        )


def make(connection: Connection[Any], model: ModelVersion, schema: str, comment: str) -> None:
    """Make a schema and the tables of a version in it, in the current transaction."""
    ensure_schema(connection, schema, comment)
    ((path,),) = connection.execute(QUERIES["path"]).fetchall()
    enter(connection, schema, locally=True)
    what = f"{model.name}: the function that makes the tables of version {model.version}"
    try:
        if model.tables is not None:
            model.tables(connection)
    except Exception as error:
        if connection.broken:
            raise
        raise DeclarationError(f"{what} raised {describe(error)}") from error
    if connection.info.transaction_status is not TransactionStatus.INTRANS:
        raise DeclarationError(
            f"{what} ended the transaction, or left a statement that failed; leave COMMIT and "
            f"ROLLBACK out"
        )
    connection.execute(QUERIES["set_path"], {"path": path})
    made = tables(connection, schema)
    if not made:
        raise DeclarationError(
            f"{what} made none in the schema {schema}; leave the schema out of their names"
        )
    for table in made:
        if not table.key:
            raise DeclarationError(
                f"{what} made {table.name} without a primary key, by which its rows are compared; "
                f"give it one"
            )


def tables(connection: Connection[Any], schema: str) -> list[Table]:
    """Return the tables of a version by their names."""
    with translated():
        rows = connection.execute(QUERIES["tables"], {"schema": schema}).fetchall()
    return [Table(*row) for row in rows]


def drop(connection: Connection[Any], schema: str) -> None:
    """Drop the schema of a version with its tables."""
    with translated():
        execute(connection, "drop_schema", schema=sql.Identifier(schema))


def _refuse_begun(connection: Connection[Any], model: ModelVersion) -> None:
    """Refuse an archive for a version whose consumers did not begin with it."""
    rows = connection.execute(QUERIES["is_untouched"], {"consumer": model.schema}).fetchall()
    if not rows[0][0]:
        raise StoreError(
            f"Version {model.version} of the read model {model.name} was begun without an archive; "
            f"leave --archive out, or build it anew after `reservation models drop {model.name} "
            f"{model.version}`"
        )


def _longest(before: Sequence[ArchivedPart], now: Sequence[ArchivedPart]) -> Sequence[ArchivedPart]:
    """Return of each category the part that reaches further."""
    found = {part.category: part for part in before}
    for part in now:
        if part.category not in found or found[part.category].last < part.last:
            found[part.category] = part
    return sorted(found.values())


def _is_made(connection: Connection[Any], model: ModelVersion) -> bool:
    return made_version(connection, model) is not None


def _refuse_position(connection: Connection[Any], model: ModelVersion) -> None:
    """Refuse to make the tables anew while the consumers would not begin with the first message."""
    rows = connection.execute(QUERIES["has_position"], {"consumer": model.schema}).fetchall()
    if rows[0][0]:
        raise StoreError(
            f"The tables of {model.schema} are gone, and its consumers have a position; remove "
            f"that with `reservation models drop {model.name} {model.version}`"
        )
