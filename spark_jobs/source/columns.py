"""The columns of the source, and the queries that read them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import Connection, sql

from reservation.messages import stream_name
from reservation.postgres.queries import load_queries
from spark_jobs.common.declaration import (
    Declaration,
    DeclaredKey,
    DeclaredSubscription,
    Subscriptions,
)

# The columns by name, with their types in Spark: those of a message, and those computed from it.
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
    "entity_data": "string",
    "key_category": "string",
    "key_stream": "string",
    "version": "string",
    "content": "string",
    "function_data": "string",
    "is_subscribed": "boolean",
    "starts": "boolean",
    "is_first": "boolean",
}
TYPES = MESSAGE | MADE

_COLUMNS = {
    name: text.decode() for name, text in load_queries("spark_jobs.source", "columns.sql").items()
}
_QUERIES = {name: text.decode() for name, text in load_queries("spark_jobs.source").items()}


def _sql(text: str) -> sql.SQL:
    return sql.SQL(text)  # from this package's files only


def of_foreign_store(query: str) -> str:
    """Return a query for a store without the schema reservation: texts are as they are."""
    return query.replace("reservation.readable_text(", "(").replace(
        "reservation.readable_type(", "("
    )


def types_of(names: Sequence[str]) -> dict[str, str]:
    """Return some columns with their types."""
    return {name: TYPES[name] for name in names}


def schema(types: Mapping[str, str]) -> str:
    """Return columns with their types as a schema of Spark."""
    return ", ".join(f"{name} {type_}" for name, type_ in types.items())


def expressions(
    names: Sequence[str], category: sql.Composable, declaration: Declaration
) -> dict[str, sql.Composable]:
    """Return the SQL of each of some columns, or of ``kept``, for a row of the log."""
    keys, of_kept = declaration.keys, same_of_equal("m.kept_text")
    values = {
        "category": category,
        "key_categories": by_type(
            {type_: sql.Literal(key.category) for type_, key in keys.items()}
        ),
        "key_streams": by_type({type_: _key_stream(key) for type_, key in keys.items()}),
        "by_function": _texts(declaration.by_function),
        "id": _entity_id(category, declaration),
        "decoded": _is_decoded(declaration),
        "taken": _by_category(declaration.subscriptions, _is_taken),
        "ignoring": by_type({type_: _texts(key.ignoring) for type_, key in keys.items()}),
        "canonical": _sql(_COLUMNS["canonical"]).format(of_kept=of_kept),
        "of_kept": of_kept,
    }
    return {name: _sql(_COLUMNS[name]).format(**values) for name in names}


def same_of_equal(text: str) -> sql.Composable:
    """Return the SQL of a text that is the same for equal values, of the text of a jsonb."""
    return _sql(_COLUMNS["same_of_equal"]).format(text=_sql(text))


@dataclass(frozen=True, slots=True)
class ComposedQuery:
    """The SQL of a query, complete but for the condition that chooses messages by their positions.

    Composing the columns takes long, and the parts of a read differ in that condition only.

    Attributes:
        before, after: the SQL around the condition.
    """

    before: str
    after: str

    def in_range(self, first: int, last: int) -> str:
        """Return the query of a range of global positions, both ends included."""
        return self._choosing("in_range", first=sql.Literal(first), last=sql.Literal(last))

    def at(self, positions: Sequence[int]) -> str:
        """Return the query of the messages at some global positions."""
        return self._choosing("at_positions", positions=sql.Literal(list(positions)))

    def in_streams(self, streams: Sequence[str], first: int, last: int) -> str:
        """Return the query of some streams' messages in a range of global positions."""
        return self._choosing(
            "in_streams",
            streams=sql.Literal(list(streams)),
            first=sql.Literal(first),
            last=sql.Literal(last),
        )

    def _choosing(self, condition: str, **values: sql.Composable) -> str:
        chosen = _sql(_QUERIES[condition]).format(**values)
        return f"{self.before}{chosen.as_string(None)}{self.after}"


@dataclass(frozen=True, slots=True)
class CategoryQuery:
    """A query of a category.

    Attributes:
        category: its name.
        columns: the names of the columns, in their order.
        declaration: how keys are made.
    """

    category: str
    columns: Sequence[str]
    declaration: Declaration

    def expressions(self, category: sql.Composable) -> Mapping[str, sql.Composable]:
        """Return the SQL of each of the columns; `category` is that of the row's category."""
        return expressions(self.columns, category, self.declaration)

    def composed(self, connection: Connection[tuple[object, ...]] | None = None) -> ComposedQuery:
        """Return the SQL, for reads of one range or several."""
        category = sql.Literal(self.category)
        where = _sql(_QUERIES["of_category"]).format(category=category)
        kept = expressions(["kept"], category, self.declaration)["kept"]
        return _composed(self.expressions(category), kept, where, connection)

    def text(self, first: int, last: int, connection: Connection[tuple[object, ...]]) -> str:
        """Return the query of one range of global positions, both ends included."""
        return self.composed(connection).in_range(first, last)


def positions_query(
    categories: Sequence[str], columns: Sequence[str], declaration: Declaration
) -> ComposedQuery:
    """Return a query of messages of some categories that are known by their global positions."""
    where = _sql(_QUERIES["of_categories"]).format(categories=_texts(categories))
    made = expressions([*columns, "kept"], _sql(_QUERIES["category_of"]), declaration)
    kept = made.pop("kept")
    return _composed(made, kept, where, None)


def _composed(
    columns: Mapping[str, sql.Composable],
    kept: sql.Composable,
    where: sql.Composable,
    connection: Connection[tuple[object, ...]] | None,
) -> ComposedQuery:
    """Return the query of columns of the messages that fulfil a condition."""
    values = {"columns": named(columns), "kept": kept, "where": where}
    return ComposedQuery(*around_choice(_QUERIES["messages"], values, connection))


def named(columns: Mapping[str, sql.Composable]) -> sql.Composable:
    """Return the SQL of columns under their names."""
    return sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(value, sql.Identifier(name)) for name, value in columns.items()
    )


def around_choice(
    query: str,
    values: Mapping[str, sql.Composable],
    connection: Connection[tuple[object, ...]] | None,
) -> tuple[str, str]:
    """Return the SQL of a query before and after the condition that it calls ``chosen``."""
    chosen = sql.SQL("")
    parts = list(_sql(query).format(**values, chosen=chosen))
    place = next(n for n, part in enumerate(parts) if part is chosen)
    before, after = sql.Composed(parts[:place]), sql.Composed(parts[place + 1 :])
    return before.as_string(connection), after.as_string(connection)


def _key_stream(key: DeclaredKey) -> sql.Composable:
    """Return the SQL of the stream that a key names, NULL if one of its parts is unusable."""
    parts = [
        _sql(_COLUMNS[f"part_{kind}"]).format(
            field=sql.Literal(field),
            # The last part may hold what separates the others.
            plus_allowed=sql.Literal(n == len(key.fields)),
        )
        for n, (field, kind) in enumerate(zip(key.fields, key.kinds, strict=True), start=1)
    ]
    if not parts:
        return sql.SQL("NULL::text")
    prefix = sql.Literal(f"{key.category}-")
    name = sql.SQL("{} || {}").format(prefix, sql.SQL(" || '+' || ").join(parts))
    return _sql(_COLUMNS["key_name"]).format(
        name=name,
        most=sql.Literal(stream_name.MAX_BYTES),
        control=sql.Literal(f"[{stream_name.CONTROL}]"),
    )


def _entity_id(category: sql.Composable, declaration: Declaration) -> sql.Composable:
    """Return the SQL of the name of the field that holds the id of a message's entity."""
    own = sql.Literal(declaration.id)
    if not declaration.subscriptions:
        return own
    ids = _by_category(declaration.subscriptions, lambda one: sql.Literal(one.id))
    return _sql(_COLUMNS["id_by_category"]).format(category=category, ids=ids, id=own)


def _is_decoded(declaration: Declaration) -> sql.Composable:
    """Return the branches of a CASE by category: whether only code tells a message's entity."""
    branches: list[sql.Composable] = [
        _sql(_COLUMNS["is_decoded"]).format(category=sql.Literal(category), types=_texts(types))
        for category, types in declaration.decoded_entities.items()
    ]
    return sql.SQL(" ").join(branches or [sql.SQL("WHEN NULL THEN false")])


def _is_taken(one: DeclaredSubscription) -> sql.Composable:
    """Return the SQL of whether a message of a subscribed type is handled."""
    is_from = _sql(_COLUMNS["is_from"]).format(from_position=sql.Literal(one.from_position))
    if one.correlated is None:
        return is_from
    is_correlated = _sql(_COLUMNS["is_correlated"]).format(correlated=sql.Literal(one.correlated))
    return sql.SQL("{} AND {}").format(is_from, is_correlated)


def _by_category(
    subscriptions: Subscriptions, value: Callable[[DeclaredSubscription], sql.Composable]
) -> sql.Composable:
    """Return the branches of a CASE by category, each a CASE by type; at least one."""
    branches: list[sql.Composable] = [
        sql.SQL("WHEN {} THEN (CASE m.type {} END)").format(
            sql.Literal(category), by_type({name: value(one) for name, one in types.items()})
        )
        for category, types in subscriptions.items()
    ]
    return sql.SQL(" ").join(branches or [sql.SQL("WHEN NULL THEN NULL")])


def by_type(values: Mapping[str, sql.Composable]) -> sql.Composable:
    """Return the branches of a CASE by type; at least one, as SQL requires."""
    branches: list[sql.Composable] = [
        sql.SQL("WHEN {} THEN {}").format(sql.Literal(type_), value)
        for type_, value in values.items()
    ]
    return sql.SQL(" ").join(branches or [sql.SQL("WHEN NULL THEN NULL")])


def _texts(values: Sequence[str]) -> sql.Composable:
    return sql.SQL("{}::text[]").format(sql.Literal(list(values)))
