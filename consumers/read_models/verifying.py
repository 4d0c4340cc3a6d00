"""Proving the rows of a read model: they are compared with those of a rebuild, both ways."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import Connection, sql

from consumers.archived import Archives
from consumers.read_models.archives import archived_parts, check_whole
from consumers.read_models.rebuilding import Rebuilt, rebuild
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import ArchiveError, StoreError
from reservation.messages.message import printable
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.read_models.made_versions import MadeVersion, made_version
from reservation.read_models.schemas import Table, tables

_QUERIES = load_queries("consumers.read_models")

# Differing rows that are named of each table.
MOST_NAMED = 20

# Rows that are fetched at once.
_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class DifferingRow:
    """A row that is not as a rebuild makes it.

    Attributes:
        key: the values of its primary key.
        kind: ``missing`` (only the rebuild has it), ``unexpected`` (only the live table has it) or
            ``differing``.
        fields: the columns that differ.
    """

    key: Mapping[str, Any]
    kind: str
    fields: Sequence[str] = ()


@dataclass(slots=True)
class TableComparison:
    """A table, compared row by row.

    Attributes:
        table: its name.
        rows: how many rows the live table has.
        counts: how many rows are missing, unexpected or differing.
        named: some of these.
    """

    table: str
    rows: int
    counts: dict[str, int] = field(
        default_factory=lambda: {"missing": 0, "unexpected": 0, "differing": 0}
    )
    named: list[DifferingRow] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether any row is not as it should be."""
        return any(self.counts.values())


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a comparison.

    Attributes:
        schema: that of the live tables.
        rebuilt: what the rebuild was made from.
        tables: the tables of both.
        missing_tables: the tables that only the rebuild has.
        unexpected_tables: those that only the live schema has.
    """

    schema: str
    rebuilt: Rebuilt
    tables: Sequence[TableComparison]
    missing_tables: Sequence[str] = ()
    unexpected_tables: Sequence[str] = ()

    @property
    def is_proved(self) -> bool:
        """Whether the live rows are those of the rebuild."""
        return not (
            self.missing_tables or self.unexpected_tables or any(one.differs for one in self.tables)
        )


def verify(
    connection: Connection[Any], component: Component[Any], archives: Archives | None = None
) -> Verification:
    """Rebuild the declared version in a scratch schema, and compare it with the live one.

    Messages that were removed from the store are read from archives.
    """
    model = declarations(component).model
    if model is None:
        raise StoreError(
            f"{component.name} is a component, which has no tables to verify; compare its messages "
            f"with `reservation reconcile`"
        )
    verification = None
    with translated(), connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        made_before = made_version(connection, model)
        if made_before is None:
            raise StoreError(
                f"Version {model.version} of the read model {model.name} was never run; start it "
                f"first"
            )
        _check_archives(connection, component, made_before, archives)
        rebuilt = rebuild(connection, component, model, archives)
        live = {table.name: table for table in tables(connection, model.schema)}
        made = {table.name: table for table in tables(connection, rebuilt.schema)}
        verification = Verification(
            model.schema,
            rebuilt,
            [
                _compare(connection, model.schema, rebuilt.schema, live[name], made[name])
                for name in sorted(live.keys() & made)
            ],
            sorted(made.keys() - live),
            sorted(live.keys() - made),
        )
        raise psycopg.Rollback
    assert verification is not None  # noqa: S101  the transaction ends without an error
    return verification


def _check_archives(
    connection: Connection[Any],
    component: Component[Any],
    made: MadeVersion,
    archives: Archives | None,
) -> None:
    """Refuse archives that a version was not built from, or that lack messages."""
    parts = [] if archives is None else archived_parts(connection, component, archives)
    reach = {part.category: part.last for part in parts}
    for part in made.archived:
        if reach.get(part.category, 0) < part.last:
            raise ArchiveError(
                f"Version {made.version} of the read model {made.model} was built from an archive "
                f"of {printable(part.category)} up to global position {part.last}; name that "
                f"archive with --archive"
            )
    if archives is not None:
        check_whole(connection, component, archives)


def _compare(
    connection: Connection[Any], live: str, made: str, before: Table, table: Table
) -> TableComparison:
    columns = [name for name in table.columns if name in before.columns]
    names: dict[str, sql.Composable] = {
        "live": sql.Identifier(live, table.name),
        "rebuilt": sql.Identifier(made, table.name),
        "same_key": sql.SQL(" AND ").join(map(_same, table.key)),
        "key": sql.SQL(", ").join(map(_either, table.key)),
        "live_nulls": _nulls("live", columns),
        "rebuilt_nulls": _nulls("rebuilt", columns),
    }
    count = sql.SQL(_QUERIES["count"].decode()).format(table=names["live"])
    ((rows,),) = connection.execute(count).fetchall()
    found = TableComparison(table.name, rows)
    for one in _differences(connection, names, table, columns):
        found.counts[one.kind] += 1
        if len(found.named) < MOST_NAMED:
            found.named.append(one)
    return found


def _differences(
    connection: Connection[Any],
    names: Mapping[str, sql.Composable],
    table: Table,
    columns: Sequence[str],
) -> Iterator[DifferingRow]:
    query = sql.SQL(_QUERIES["differences"].decode()).format(**names)
    with connection.cursor("differences") as cursor:
        cursor.itersize = _AT_ONCE
        cursor.execute(query)
        for *texts, live_nulls, made_nulls in cursor:
            live, made = (None if text is None else _row(text) for text in texts)
            if live is None or made is None:
                row, kind = (made, "missing") if live is None else (live, "unexpected")
                yield DifferingRow(_key(table, row or {}), kind)
                continue
            fields = {name for name in {*live, *made} if live.get(name) != made.get(name)}
            nulls = zip(columns, live_nulls, made_nulls, strict=True)
            fields.update(name for name, before, after in nulls if before != after)
            yield DifferingRow(_key(table, live), "differing", sorted(fields))


def _same(column: str) -> sql.Composable:
    live, made = sql.Identifier("live", column), sql.Identifier("rebuilt", column)
    return sql.SQL("to_jsonb({}) = to_jsonb({})").format(live, made)


def _either(column: str) -> sql.Composable:
    live, made = sql.Identifier("live", column), sql.Identifier("rebuilt", column)
    return sql.SQL("coalesce(to_jsonb({}), to_jsonb({}))").format(live, made)


def _nulls(table: str, columns: Sequence[str]) -> sql.Composable:
    """Return an array that says which columns have no value, also where that is a composite one."""
    each = (sql.SQL("num_nulls({})").format(sql.Identifier(table, name)) for name in columns)
    return sql.SQL("ARRAY[{}]::integer[]").format(sql.SQL(", ").join(each))


def _row(text: str) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return row


def _key(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row's key, as JSON can have them."""
    values = {column: row[column] for column in table.key}
    return {name: str(one) if isinstance(one, Decimal) else one for name, one in values.items()}
