"""All that a database holds after a run, in a form in which it is the same for equal runs.

Two things differ between equal runs and are replaced: global positions, in which rolled-back
transactions leave gaps, stand as the message that has them; and columns of the user's tables that
the database fills by a default, such as numbers and times of its own, are left out.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.testing.crashing", "contents.sql")
_RECORDS = (
    "positions",
    "processed",
    "revisions",
    "states",
    "passes",
    "scheduled",
    "dead_letters",
)
_POSITION = re.compile(r"(?<!\d)19\d{8}(?!\d)")


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A message.

    Attributes:
        stream_name: where it is.
        position: its place there.
        type: its type.
        fields: its id, data and metadata, each value as JSON by its path, such as ``data.amount``.
        causation: the stream and position of the message that it follows; None without one.
    """

    stream_name: str
    position: int
    type: str
    fields: Mapping[str, str]
    causation: tuple[str, int] | None

    def __str__(self) -> str:
        return f"{self.type} at {self.position} of {self.stream_name}"


@dataclass(frozen=True, slots=True)
class Contents:
    """A database's contents.

    Attributes:
        messages: in the order of their global positions.
        rows: of each table, how often each row is there, as JSON.
    """

    messages: Sequence[StoredRow]
    rows: Mapping[str, Counter[str]]


@dataclass(frozen=True, slots=True)
class ContentDifference:
    """A difference between two databases.

    Attributes:
        what: the object, in words.
        message: the message that it is about, where it is one.
        first: the value in the first; None if it is missing.
        second: the value in the second.
        field: the path of the field, or the table; the same for the same field of all messages.
        row: the row, where it is one.
    """

    what: str
    message: StoredRow | None
    first: str | None
    second: str | None
    field: str
    row: str = ""

    def __str__(self) -> str:
        if self.first is None or self.second is None:
            return f"{self.what} is there in one run and not in the other"
        return f"{self.what} differs: {shortened(self.first)} and {shortened(self.second)}"


def read(address: str) -> Contents:
    """Return what a database holds."""
    with connect(address) as connection, translated():
        rows = connection.execute(_QUERIES["messages"]).fetchall()
        names = {str(row[2]): f"<position of {row[0]}/{row[1]}>" for row in rows}

        def named(text: str) -> str:
            return _POSITION.sub(lambda found: names.get(found[0], found[0]), text)

        # A number in JSON is no text; the name of a position becomes one where it stands alone.
        def decoded(text: str) -> Any:
            return json.loads(_POSITION.sub(lambda found: _quoted(found, names, text), text))

        messages = [
            _stored(stream, position, type_, id_, decoded(data), decoded(metadata))
            for stream, position, _, id_, type_, data, metadata in rows
        ]
        found = {
            name: Counter(named(row[0]) for row in connection.execute(_QUERIES[name]))
            for name in _RECORDS
        }
        for schema, table, left_out in connection.execute(_QUERIES["tables"]).fetchall():
            query = sql.SQL("SELECT (to_jsonb(t) - %s::text[])::text FROM {} t").format(
                sql.Identifier(schema, table)
            )
            name = table if schema == "public" else f"{schema}.{table}"
            found[f"the table {name}"] = Counter(
                named(row[0]) for row in connection.execute(query, [left_out])
            )
    return Contents(messages, found)


def differences(first: Contents, second: Contents) -> Iterator[ContentDifference]:
    """Give what two databases do not agree in: fields of messages first, then messages and rows."""
    known = {(stored.stream_name, stored.position): stored for stored in first.messages}
    others = {(stored.stream_name, stored.position): stored for stored in second.messages}
    for place, stored in known.items():
        other = others.get(place)
        if other is not None and other.type == stored.type:
            for path in stored.fields.keys() | other.fields.keys():
                values = stored.fields.get(path), other.fields.get(path)
                if values[0] != values[1]:
                    yield ContentDifference(
                        f"{path} of {stored}", stored, *values, f"{stored.type} {path}"
                    )
    for place in known.keys() | others.keys():
        a, b = known.get(place), others.get(place)
        if a is None or b is None or a.type != b.type:
            there = a or b
            types = a.type if a else None, b.type if b else None
            yield ContentDifference(str(there), there, *types, f"{types[0] or types[1]}")
    for table in first.rows.keys() | second.rows.keys():
        a_rows, b_rows = first.rows.get(table, Counter()), second.rows.get(table, Counter())
        yield from _rows(table, a_rows - b_rows, b_rows - a_rows)


def _rows(table: str, first: Counter[str], second: Counter[str]) -> Iterator[ContentDifference]:
    """Give the rows that only one of two tables has; a pair of them as its fields."""
    for a, b in zip(sorted(first.elements()), sorted(second.elements()), strict=False):
        if not a.startswith("{"):
            continue
        one, other = _object(a), _object(b)
        for field in one.keys() | other.keys():
            values = one.get(field), other.get(field)
            if values[0] != values[1]:
                yield ContentDifference(
                    f"{field} of a row of {table}", None, *values, f"{table} {field}", a
                )
    fewer = min(first.total(), second.total())
    for row in sorted(first.elements())[fewer:]:
        yield ContentDifference(f"the row {shortened(row)} of {table}", None, row, None, table, row)
    for row in sorted(second.elements())[fewer:]:
        yield ContentDifference(f"the row {shortened(row)} of {table}", None, None, row, table, row)


def _object(row: str) -> dict[str, str]:
    bare = re.sub(r'(?<!")(<position of [^>]*>)(?!")', r'"\1"', row)
    try:
        return {name: json.dumps(value) for name, value in json.loads(bare).items()}
    except ValueError:
        return {"content": row}


def _quoted(found: re.Match[str], names: Mapping[str, str], text: str) -> str:
    name = names.get(found[0])
    if name is None:
        return found[0]
    stands_alone = text[found.start() - 1 : found.start()] in ("", " ", ":", "[", ",")
    # Within a string a digit and a blank cannot be told apart from a number in an array.
    in_string = text.count('"', 0, found.start()) - text.count('\\"', 0, found.start())
    return f'"{name}"' if stands_alone and in_string % 2 == 0 else name


def _stored(
    stream: str, position: int, type_: str, id_: str, data: object, metadata: object
) -> StoredRow:
    fields = {"id": json.dumps(id_)}
    fields.update(_flat("data", data))
    fields.update(_flat("metadata", metadata))
    causation = None
    if isinstance(metadata, dict) and "causationMessageStreamName" in metadata:
        causation = (
            str(metadata["causationMessageStreamName"]),
            int(metadata.get("causationMessagePosition", 0)),
        )
    return StoredRow(stream, position, type_, fields, causation)


def _flat(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Give the parts of a value of JSON that are no objects, by their paths."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _flat(f"{path}.{name}", part)
    else:
        yield path, json.dumps(value)


def shortened(text: str) -> str:
    """Return a text that fits into a line."""
    return text if len(text) <= 80 else f"{text[:77]}..."
