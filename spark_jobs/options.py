"""What the options of a read of the source say."""

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
from psycopg import sql

from spark_jobs import columns
from spark_jobs.declaration import Declaration
from spark_jobs.errors import OptionError

_ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_PARTITIONS = 4


class Reading:
    """What the options of a read say."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.categories = categories(options)
        self.columns = asked_for(options)
        self.after: dict[str, int] = json.loads(options.get("after", "{}"))
        self.until: dict[str, int] | None = json.loads(options.get("until", "null"))
        self.partitions = number(options, "partitions", _PARTITIONS)
        self.declaration = Declaration.from_json(options.get("declaration", '{"keys":{}}'))

    @property
    def schema(self) -> pa.Schema:
        """The columns, in Arrow's words."""
        return arrow_schema(columns.types_of(self.columns))

    def query(self, category: str, conditions: Sequence[sql.Composable] = ()) -> columns.Query:
        """Return what is read of a category."""
        return columns.Query(category, self.columns, self.declaration, conditions)


def arrow_schema(types: Mapping[str, str]) -> pa.Schema:
    """Return columns with their types, in Arrow's words."""
    return pa.schema([(name, _ARROW[type_]) for name, type_ in types.items()])


def categories(options: Mapping[str, str]) -> list[str]:
    """Return the categories that are to be read.

    Raises:
        OptionError: none is named.
    """
    if options.get("category"):
        return [options["category"]]
    try:
        named = json.loads(options.get("categories", "[]"))
    except ValueError:
        named = None
    if not isinstance(named, list) or not named or not all(isinstance(one, str) for one in named):
        raise OptionError(
            "The source message_store needs the option category, or categories as a JSON list: "
            '["account:command", "accountTransaction"]'
        )
    return named


def asked_for(options: Mapping[str, str]) -> list[str]:
    """Return the columns that are to be read.

    Raises:
        OptionError: there is no such column.
    """
    text = options.get("columns")
    names = [name.strip() for name in text.split(",")] if text else list(columns.MESSAGE)
    for name in names:
        if name not in columns.TYPES:
            raise OptionError(
                f"The source message_store has no column {name!r}; there are "
                f"{', '.join(columns.TYPES)}"
            )
    return names


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a number of at least 1.

    Raises:
        OptionError: it is none.
    """
    text = options.get(name, str(default))
    if not text.isdecimal() or not int(text):
        raise OptionError(f"The option {name} is a number of at least 1, not {text!r}")
    return int(text)
