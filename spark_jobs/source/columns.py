"""The columns that the source has, and the query that takes those that are asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection, sql

from reservation.postgres.queries import load_queries
from spark_jobs.common.declaration import Declaration, DeclaredKey

# Under each column's name its type in Spark: what a message is, and what is made of it.
MESSAGE = {
    "category": "string",
    "global_position": "bigint",
    "position": "bigint",
    "stream_name": "string",
    "type": "string",
    "id": "string",
    "time": "timestamp",
    "data": "string",
    "metadata": "string",
}
MADE = {
    "causation": "bigint",
    "sender": "string",
    "entity_id": "string",
    "key_category": "string",
    "key_stream": "string",
    "is_copy": "boolean",
    "content": "string",
    "function_data": "string",
}
TYPES = MESSAGE | MADE

_COLUMNS = {
    name: text.decode() for name, text in load_queries("spark_jobs.source", "columns.sql").items()
}
_QUERIES = {name: text.decode() for name, text in load_queries("spark_jobs.source").items()}

# The condition that leaves no more of a stream than its first message.
FIRST = sql.SQL("m.position = 0")


def _sql(text: str) -> sql.SQL:
    return sql.SQL(text)  # from files of ours only


def types_of(names: Sequence[str]) -> dict[str, str]:
    """Return some columns with their types."""
    return {name: TYPES[name] for name in names}


def looked_at(declaration: Declaration) -> list[str]:
    """Return the columns that the jobs ask for, all of them together."""
    unasked = {"data", "metadata", *([] if declaration.by_function else ["function_data"])}
    return [name for name in TYPES if name not in unasked]


def schema(types: Mapping[str, str]) -> str:
    """Return columns with their types, in Spark's words."""
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())


def expression(name: str, category: sql.Composable, declaration: Declaration) -> sql.Composable:
    """Return what makes a column of a row, whose category is told as SQL."""
    keys = declaration.keys
    values = {
        "category": category,
        "key_categories": by_type(
            {type_: sql.Literal(key.category) for type_, key in keys.items()}
        ),
        "key_streams": by_type({type_: _key_stream(key) for type_, key in keys.items()}),
        "copied_to": by_type(
            {type_: _is_copied_to(key) for type_, key in keys.items() if key.within}
        ),
        "within": _texts([type_ for type_, key in keys.items() if key.within]),
        "by_function": _texts(declaration.by_function),
        "id": sql.Literal(declaration.id),
        "volatile": by_type({type_: _texts(key.volatile) for type_, key in keys.items()}),
    }
    return _sql(_COLUMNS[name]).format(**values)


@dataclass(frozen=True, slots=True)
class CategoryQuery:
    """What is read of a category.

    Attributes:
        category: its name.
        columns: the names of the columns, in their order.
        declaration: how keys are made.
        filters: what the rows have to fulfil.
    """

    category: str
    columns: Sequence[str]
    declaration: Declaration
    filters: Sequence[sql.Composable] = ()

    def expressions(self, category: sql.Composable) -> Mapping[str, sql.Composable]:
        """Return what makes each of the columns of a row, whose category is told as SQL."""
        return _expressions(self.columns, category, self.declaration)

    def text(self, first: int, last: int, connection: Connection[tuple[object, ...]]) -> str:
        """Return the query that reads a range of global positions, both ends included."""
        category = sql.Literal(self.category)
        of_range = _sql(_QUERIES["of_range"]).format(
            category=category, first=sql.Literal(first), last=sql.Literal(last)
        )
        where = sql.SQL(" AND ").join([of_range, *self.filters])
        kept = expression("kept", category, self.declaration)
        return _messages(self.expressions(category), kept, where).as_string(connection)


def queries(
    categories: Sequence[str],
    columns: Sequence[str],
    declaration: Declaration,
    firsts_of: Sequence[str],
) -> list[CategoryQuery]:
    """Return what is read of each category; see `spark_jobs.analysis.judging.Read`."""
    return [
        CategoryQuery(name, columns, declaration, [FIRST] if name in firsts_of else [])
        for name in categories
    ]


@dataclass(frozen=True, slots=True)
class PositionsQuery:
    """What is read of messages that are known by their global positions.

    Attributes:
        categories: those in which they are; others are left out.
        columns: the names of the columns, in their order.
        declaration: how keys are made.
        firsts_of: those of the categories of which only the first message of a stream is read.
    """

    categories: Sequence[str]
    columns: Sequence[str]
    declaration: Declaration
    firsts_of: Sequence[str]

    def text(self, positions: Sequence[int]) -> str:
        """Return the query that reads the messages at some global positions."""
        where = _sql(_QUERIES["of_positions"]).format(
            positions=sql.Literal(list(positions)),
            categories=_texts(self.categories),
            firsts_of=_texts(self.firsts_of),
        )
        category = _sql(_QUERIES["category_of"])
        kept = expression("kept", category, self.declaration)
        expressions = _expressions(self.columns, category, self.declaration)
        return _messages(expressions, kept, where).as_string(None)


def _expressions(
    columns: Sequence[str], category: sql.Composable, declaration: Declaration
) -> dict[str, sql.Composable]:
    return {name: expression(name, category, declaration) for name in columns}


def _messages(
    columns: Mapping[str, sql.Composable], kept: sql.Composable, where: sql.Composable
) -> sql.Composed:
    """Return the query that reads columns of the messages that fulfil a condition."""
    named = [
        sql.SQL("{} AS {}").format(value, sql.Identifier(name)) for name, value in columns.items()
    ]
    return _sql(_QUERIES["messages"]).format(
        columns=sql.SQL(", ").join(named), kept=kept, where=where
    )


def _key_stream(key: DeclaredKey, sent_to: str = "sent_to") -> sql.Composable:
    """Return what makes the stream that a key names, NULL where one of its parts is unusable.

    Args:
        key: how it is made.
        sent_to: the query that gives the stream of the command, beneath which a copy may be.
    """
    parts = [
        _sql(_COLUMNS[f"part_{kind}"]).format(
            field=sql.Literal(field),
            # The last part may hold what separates the others.
            plus_allowed=sql.Literal(n == len(key.fields) and not key.within),
        )
        for n, (field, kind) in enumerate(zip(key.fields, key.kinds, strict=True), start=1)
    ]
    if not parts:
        return sql.SQL("NULL::text")
    prefix = _beneath(sent_to) if key.within else sql.Literal(f"{key.category}-")
    return sql.SQL("{} || {}").format(prefix, sql.SQL(" || '+' || ").join(parts))


def _beneath(sent_to: str) -> sql.Composable:
    return _sql(_COLUMNS["beneath"]).format(sent_to=_sql(_COLUMNS[sent_to]))


def _is_copied_to(key: DeclaredKey) -> sql.Composable:
    """Return what tells whether a message is where its reservation would be."""
    if key.by_function:
        return _sql(_COLUMNS["is_beneath"]).format(beneath=_beneath("source"))
    return _sql(_COLUMNS["is_named"]).format(key_stream=_key_stream(key, "source"))


def by_type(values: dict[str, sql.Composable]) -> sql.Composable:
    """Return the branches of a CASE by type; there is always one, or it would be no CASE."""
    branches: list[sql.Composable] = [
        sql.SQL("WHEN {} THEN {}").format(sql.Literal(type_), value)
        for type_, value in values.items()
    ]
    return sql.SQL(" ").join(branches or [sql.SQL("WHEN NULL THEN NULL")])


def _texts(values: Sequence[str]) -> sql.Composable:
    return sql.SQL("{}::text[]").format(sql.Literal(list(values)))
