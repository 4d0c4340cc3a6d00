"""The options of a read of the source."""

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from reservation.errors import StreamNameError
from reservation.messages import stream_name
from reservation.messages.message import MAX_POSITION
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.errors import OptionError
from spark_jobs.source import columns

_ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_PARTITIONS = 4


# ``declaration`` is for the columns that are computed from keys.
_NAMES = (
    "category",
    "categories",
    "columns",
    "after",
    "until",
    "snapshot",
    "rows",
    "partitions",
    "declaration",
)


class ReadOptions:
    """The options of a read, parsed and checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        for name in options:
            if name.lower() not in _NAMES:
                raise OptionError(
                    f"The source message_store has no option {name!r}; there are "
                    f"{', '.join(_NAMES)}"
                )
        self.categories = categories(options)
        self.columns = asked_for(options)
        self.after = _positions(options, "after", self.categories) or {}
        self.until = _positions(options, "until", self.categories)
        for name, position in (self.until or {}).items():
            if position < self.after.get(name, 0):
                raise OptionError(
                    f"The options after and until exclude each other: {name} would be read after "
                    f"{self.after[name]} and until {position}"
                )
        self.rows = number(options, "rows", 1) if "rows" in options else None
        self.partitions = number(options, "partitions", _PARTITIONS)
        try:
            self.declaration = Declaration.from_json(options.get("declaration", '{"keys":{}}'))
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(
                "The option declaration is not what Declaration.to_json returns"
            ) from error

    @property
    def schema(self) -> pa.Schema:
        """The columns as a schema of Arrow."""
        return arrow_schema(columns.types_of(self.columns))

    def query(self, category: str) -> columns.CategoryQuery:
        """Return what is read of a category."""
        return columns.CategoryQuery(category, self.columns, self.declaration)


def arrow_schema(types: Mapping[str, str]) -> pa.Schema:
    """Return columns with their types as a schema of Arrow."""
    return pa.schema([(name, _ARROW[type_]) for name, type_ in types.items()])


def categories(options: Mapping[str, str]) -> list[str]:
    """Return the categories to read."""
    if options.get("category") and options.get("categories"):
        raise OptionError("The options category and categories exclude each other; give one")
    if options.get("category"):
        named: object = [options["category"]]
    else:
        try:
            named = json.loads(options.get("categories", "[]"))
        except ValueError:
            named = None
    if not isinstance(named, list) or not named or not all(isinstance(name, str) for name in named):
        raise OptionError(
            "The source message_store needs the option category, or categories as a JSON list: "
            '["account:command", "accountTransaction"]'
        )
    for name in named:
        if not stream_name.is_category(name):
            raise OptionError(
                f"{name!r} is the name of a stream; name its category, "
                f"{stream_name.category(name)!r}, and choose the stream with where()"
            )
        try:
            stream_name.check_category(name)
        except StreamNameError as error:
            raise OptionError(f"The option category names no category: {error}") from error
    _once("categories", named)
    return named


def _once(option: str, named: Sequence[str]) -> None:
    for name in named:
        if named.count(name) > 1:
            raise OptionError(f"The option {option} names {name!r} twice")


def _positions(
    options: Mapping[str, str], name: str, categories_: Sequence[str]
) -> dict[str, int] | None:
    """Return an option that is a JSON object of categories and global positions."""
    text = options.get(name)
    try:
        found = None if text is None else json.loads(text)
    except ValueError:
        found = text
    if found is None:
        return None
    if not isinstance(found, dict) or not all(
        type(position) is int and 0 <= position <= MAX_POSITION for position in found.values()
    ):
        raise OptionError(
            f"The option {name} is a JSON object of categories and global positions: "
            f'{{"account:command": 1000}}'
        )
    for category in found:
        if category not in categories_:
            raise OptionError(f"The option {name} names {category!r}, which is not read")
    return found


def asked_for(options: Mapping[str, str]) -> list[str]:
    """Return the columns to read."""
    text = options.get("columns")
    names = [name.strip() for name in text.split(",")] if text else list(columns.MESSAGE)
    for name in names:
        if name not in columns.TYPES:
            raise OptionError(
                f"The source message_store has no column {name!r}; there are "
                f"{', '.join(columns.TYPES)}"
            )
    _once("columns", names)
    return names


def number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a number of at least 1."""
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise OptionError(f"The option {name} is a number of at least 1, not {text!r}")
    return int(text)
