"""Reading the passes of a component's consumers beside the messages.

A pass is a message of a subscribed category that was handled, and that no event followed from
(`reservation.idempotence.passes`). It is read as if it were a pseudo event that follows the
message, in a category of its own (`spark_jobs.common.declaration.passes_name`) and at the negative
of the message's global position, where no message is. So whatever looks for what follows from a
message finds it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import Connection, sql

from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.postgres.queries import load_queries
from spark_jobs.common.declaration import Declaration, passes_in, passes_name
from spark_jobs.source import columns as made
from spark_jobs.source.columns import TYPES, CategoryQuery, ComposedQuery

_QUERY = load_queries("spark_jobs.source")["passes"].decode()
_COLUMNS = {
    name: text.decode() for name, text in load_queries("spark_jobs.source", "passes.sql").items()
}

# What stands for nothing, by the type in Spark.
_NOTHING = {
    "string": "NULL::text",
    "bigint": "NULL::bigint",
    "int": "NULL::integer",
    "boolean": "false",
    "timestamp": "NULL::timestamptz",
}


class ComposedPassesQuery(ComposedQuery):
    """The SQL of a query of passes, complete but for the condition that chooses them."""

    __slots__ = ()

    def at(self, positions: Sequence[int]) -> str:
        """Return the query of the passes at some positions, which are negative."""
        return super().at([-position for position in positions if position < 0])


@dataclass(frozen=True, slots=True)
class PassesQuery(CategoryQuery):
    """A query of the passes of a category that a component subscribes to.

    Attributes:
        consumer: the component's name.
        types: the types of the columns, by their names.
        number: what stands for its category; None for the name.
    """

    consumer: str = field(kw_only=True)
    types: Mapping[str, str] = field(kw_only=True)
    number: int | None = field(kw_only=True, default=None)

    def expressions(self, category: sql.Composable) -> Mapping[str, sql.Composable]:
        """Return the SQL of each of the columns."""
        parts = {name: sql.SQL(text) for name, text in _COLUMNS.items()}
        known: dict[str, sql.Composable] = {**parts, "category": category}
        if self.types["type"] == "string":
            known["type"] = sql.Literal(PSEUDO_EVENT)
        return {
            name: known.get(name) or sql.SQL(_NOTHING[self.types[name]]) for name in self.columns
        }

    def composed(self, connection: Connection[tuple[object, ...]] | None = None) -> ComposedQuery:
        """Return the SQL, for reads of one range or several."""
        name = passes_name(self.consumer, self.category) if self.number is None else self.number
        values = {
            "columns": made.named(self.expressions(sql.Literal(name))),
            "consumer": sql.Literal(self.consumer),
            "category": sql.Literal(self.category),
        }
        return ComposedPassesQuery(*made.around_choice(_QUERY, values, connection))


def queries(
    names: Sequence[str],
    columns: Sequence[str],
    declaration: Declaration,
) -> list[CategoryQuery]:
    """Return what is read of categories, or passes, by their names."""
    found = []
    for name in names:
        passes = passes_in(name)
        if passes is None:
            found.append(CategoryQuery(name, columns, declaration))
        else:
            consumer, category = passes
            query = PassesQuery(category, columns, declaration, consumer=consumer, types=TYPES)
            found.append(query)
    return found
