"""Comparing a table with that of a rebuild, row by row, by its primary key."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from psycopg import Connection, sql

from reservation.postgres.queries import load_queries
from reservation.read_models.comparison import ComparedTable, RowPlace, TableDifferences

_QUERIES = load_queries("consumers.read_models")

# Differing rows that are named of each table.
MOST_NAMED = 20

# Rows that are fetched at once.
_AT_ONCE = 1000

# The JSON of a row, and which of its columns have no value.
_Row = tuple[str | None, Sequence[int]]


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


def compare(connection: Connection[Any], table: ComparedTable) -> TableComparison:
    """Compare a table in the server, in one statement."""
    found = TableComparison(table.name, _count(connection, table))
    query = sql.SQL(_QUERIES["differences"].decode()).format(
        live=sql.Identifier(table.live, table.name),
        rebuilt=sql.Identifier(table.rebuilt, table.name),
        same_key=sql.SQL(" AND ").join(map(_same, table.key)),
        key=sql.SQL(", ").join(map(_either, table.key)),
        live_nulls=_nulls("live", table.columns),
        rebuilt_nulls=_nulls("rebuilt", table.columns),
    )
    with connection.cursor("differences") as cursor:
        cursor.itersize = _AT_ONCE
        cursor.execute(query)
        for live, rebuilt, live_nulls, rebuilt_nulls in cursor:
            one = _differing(table, (live, live_nulls), (rebuilt, rebuilt_nulls))
            found.counts[one.kind] += 1
            if len(found.named) < MOST_NAMED:
                found.named.append(one)
    return found


def name_rows(
    live: Connection[Any],
    rebuilt: Connection[Any],
    table: ComparedTable,
    differences: TableDifferences,
) -> TableComparison:
    """Name the rows whose places are known, in the order of their keys.

    Each connection sees one of the two sides.
    """
    found = TableComparison(table.name, _count(live, table), dict(differences.counts))
    sides = [
        _rows_at(connection, schema, table, [places[n] for places in differences.named])
        for n, (connection, schema) in enumerate([(live, table.live), (rebuilt, table.rebuilt)])
    ]
    pairs = [(sides[0].get(live), sides[1].get(made)) for live, made in differences.named]
    texts = [(row or other or ("{}",))[0] for row, other in pairs]
    key = [sql.SQL("r.of->{}").format(sql.Literal(column)) for column in table.key]
    query = sql.SQL(_QUERIES["in_order"].decode()).format(
        rows=sql.Literal(texts), key=sql.SQL(", ").join(key)
    )
    for (n,) in live.execute(query).fetchall():
        found.named.append(_differing(table, *pairs[n - 1]))
    return found


def _count(connection: Connection[Any], table: ComparedTable) -> int:
    place = sql.Identifier(table.live, table.name)
    count = sql.SQL(_QUERIES["count"].decode()).format(table=place)
    ((rows,),) = connection.execute(count).fetchall()
    return int(rows)


def _rows_at(
    connection: Connection[Any],
    schema: str,
    table: ComparedTable,
    places: Sequence[RowPlace | None],
) -> dict[RowPlace | None, _Row]:
    # Without parameters, because a column's name may have a percent sign.
    query = sql.SQL(_QUERIES["rows_at"].decode()).format(
        table=sql.Identifier(schema, table.name),
        nulls=_nulls("t", table.columns),
        places=sql.Literal([place.row for place in places if place is not None]),
    )
    rows = connection.execute(query).fetchall()
    return {RowPlace(relation, at): (text, nulls) for relation, at, text, nulls in rows}


def _differing(table: ComparedTable, live: _Row | None, rebuilt: _Row | None) -> DifferingRow:
    """Return how two rows differ, each as JSON with what says which columns have no value."""
    before, after = (_row(of[0]) if of and of[0] else None for of in (live, rebuilt))
    if before is None or after is None or live is None or rebuilt is None:
        kind = "missing" if before is None else "unexpected"
        return DifferingRow(_key(table, before or after or {}), kind)
    fields = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    nulls = zip(table.columns, live[1], rebuilt[1], strict=True)
    fields.update(name for name, one, other in nulls if one != other)
    return DifferingRow(_key(table, before), "differing", sorted(fields))


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


def _key(table: ComparedTable, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a row's key, as JSON can have them."""
    values = {column: row[column] for column in table.key}
    return {name: str(one) if isinstance(one, Decimal) else one for name, one in values.items()}
