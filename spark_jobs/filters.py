"""Conditions that Spark leaves to the source, in the server's words.

A condition is taken only where the server surely judges as Spark would: texts are compared for
being equal or for how they begin, because what comes before what depends on the database's
collation.
"""

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from psycopg import sql
from pyspark.sql import datasource as ds

_INTEGERS = {"global_position", "position"}
_TEXTS = {"stream_name", "type"}
_NEVER_NULL = {*_INTEGERS, *_TEXTS, "category", "id", "time"}
_RANGES: dict[type[ds.Filter], str] = {
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}


def taken(filters: Sequence[ds.Filter]) -> Iterator[tuple[ds.Filter, sql.Composable | None]]:
    """Give each condition with what the server makes of it; None leaves it to Spark."""
    for one in filters:
        yield one, _condition(one)


def _condition(one: ds.Filter) -> sql.Composable | None:
    if isinstance(one, ds.In):
        values = [_equal(one.attribute, value) for value in one.value]
        if any(value is None for value in values):
            return None
        return sql.SQL("({})").format(
            sql.SQL(" OR ").join(value for value in values if value is not None)
        )
    if isinstance(one, (ds.EqualTo, ds.EqualNullSafe)):
        return _equal(one.attribute, one.value)
    if (
        isinstance(one, ds.StringStartsWith)
        and one.attribute[0] in _TEXTS
        and "\0" not in one.value
    ):
        return sql.SQL("starts_with(m.{}, {})").format(
            sql.Identifier(one.attribute[0]), sql.Literal(one.value)
        )
    if isinstance(one, (ds.GreaterThan, ds.GreaterThanOrEqual, ds.LessThan, ds.LessThanOrEqual)):
        return _compared(one.attribute, _RANGES[type(one)], one.value)
    if isinstance(one, ds.IsNotNull) and one.attribute[0] in _NEVER_NULL:
        return sql.SQL("true")
    return None


def _equal(attribute: Sequence[str], value: object) -> sql.Composable | None:
    (name,) = attribute if len(attribute) == 1 else ("",)
    if isinstance(value, str) and "\0" in value:
        return sql.SQL("false")  # no text in the server holds one
    if name in _TEXTS and isinstance(value, str):
        return sql.SQL("m.{} = {}").format(sql.Identifier(name), sql.Literal(value))
    if name == "id" and isinstance(value, str):
        try:
            wanted = uuid.UUID(value)
        except ValueError:
            return sql.SQL("false")
        if str(wanted) != value:  # the column is in one form only
            return sql.SQL("false")
        return sql.SQL("m.id = {}::uuid").format(sql.Literal(value))
    return _compared(attribute, "=", value)


def _compared(attribute: Sequence[str], operator: str, value: object) -> sql.Composable | None:
    (name,) = attribute if len(attribute) == 1 else ("",)
    if name in _INTEGERS and isinstance(value, int):
        literal: object = value
    elif name == "time" and isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        # The column is without a zone, in UTC.
        literal = value.astimezone(UTC).replace(tzinfo=None)
    else:
        return None
    return sql.SQL("m.{} {} {}").format(
        sql.Identifier(name),
        sql.SQL(operator),
        sql.Literal(literal),
    )
