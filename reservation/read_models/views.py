"""The views of a read model, which show the tables of one version under names that stay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection, sql

from reservation.declaration.model_version import schema_of
from reservation.errors import StoreError
from reservation.read_models.catalog import QUERIES, ensure_schema, execute


@dataclass(frozen=True, slots=True)
class _Relation:
    """A table or a view, its columns in their order, and the types of these."""

    kind: str
    columns: Sequence[str]
    types: Sequence[str]

    @property
    def by_name(self) -> Mapping[str, str]:
        return dict(zip(self.columns, self.types, strict=True))

    def as_view_of(self, table: "_Relation") -> Sequence[str] | None:
        """Return a table's columns so that they can replace this view's; None if they cannot."""
        new = table.by_name
        if any(new.get(name) != type_ for name, type_ in self.by_name.items()):
            return None
        return [*self.columns, *(name for name in table.columns if name not in self.columns)]


def views_comment(model: str, version: int) -> str:
    """Return the comment of the schema of views that show a version."""
    return f"Read model {model}: views of version {version}"


def turn_views(connection: Connection[Any], model: str, version: int) -> None:
    """Let the views show a version, in the current transaction; rights on them stay.

    Views without a table in either version are not those of the read model, and stay too.
    """
    before = _shown(connection, model)
    ensure_schema(connection, model, views_comment(model, version))
    views, tables = _relations(connection, model), _relations(connection, schema_of(model, version))
    for name, table in tables.items():
        if name in views and (name not in before or views[name].kind != "v"):
            raise StoreError(
                f"{model}.{name} is not a view of the read model; rename it, or the table of that "
                f"name"
            )
        _turn(connection, (model, name), (schema_of(model, version), name), views.get(name), table)
    for name in sorted(before - tables.keys()):
        if name in views and views[name].kind == "v":
            _drop(connection, (model, name))


def _shown(connection: Connection[Any], model: str) -> set[str]:
    """Return the names in the version that the views show; none if it is gone with its views."""
    rows = connection.execute(QUERIES["versions"], {"model": model}).fetchall()
    return {
        name
        for _, version, is_shown, _ in rows
        if is_shown
        for name in _relations(connection, schema_of(model, version))
    }


def _turn(
    connection: Connection[Any],
    view: tuple[str, str],
    table: tuple[str, str],
    before: _Relation | None,
    after: _Relation,
) -> None:
    if before is None:
        _create(connection, view, table, after.columns, [])
        return
    names = {"schema": view[0], "view": view[1]}
    ((owner, comment, options),) = connection.execute(QUERIES["view"], names).fetchall()
    columns = before.as_view_of(after)
    if columns is not None:
        _create(connection, view, table, columns, options)
        return
    rights = connection.execute(QUERIES["rights"], names).fetchall()
    _drop(connection, view)
    _create(connection, view, table, after.columns, options)
    named = sql.Identifier(*view)
    execute(connection, "own_view", view=named, owner=sql.Identifier(owner))
    execute(connection, "comment_view", view=named, text=sql.Literal(comment))
    for role, right, may_grant, column in rights:
        if column is not None and column not in after.columns:
            continue  # nobody can read it any more
        of = sql.SQL("") if column is None else sql.SQL(" ({})").format(sql.Identifier(column))
        execute(
            connection,
            "grant_view",
            right=sql.SQL(right) + of,
            view=named,
            role=sql.Identifier(role) if role else sql.SQL("PUBLIC"),
            option=sql.SQL("WITH GRANT OPTION" if may_grant else ""),
        )


def _create(
    connection: Connection[Any],
    view: tuple[str, str],
    table: tuple[str, str],
    columns: Sequence[str],
    options: Sequence[str],
) -> None:
    given = [
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value))
        for name, _, value in (option.partition("=") for option in options)
    ]
    with_options = sql.SQL("WITH ({})").format(sql.SQL(", ").join(given))
    execute(
        connection,
        "create_view",
        view=sql.Identifier(*view),
        options=with_options if given else sql.SQL(""),
        columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
        table=sql.Identifier(*table),
    )


def _drop(connection: Connection[Any], view: tuple[str, str]) -> None:
    try:
        execute(connection, "drop_view", view=sql.Identifier(*view))
    except psycopg.errors.DependentObjectsStillExist as error:
        raise StoreError(
            f"The view {'.'.join(view)} has other columns in the new version, or is not in it, and "
            f"other objects depend on it ({error.diag.message_detail}); drop these first"
        ) from error


def _relations(connection: Connection[Any], schema: str) -> dict[str, _Relation]:
    rows = connection.execute(QUERIES["relations"], {"schema": schema}).fetchall()
    return {name: _Relation(*rest) for name, *rest in rows}
