"""Values as PostgreSQL's binary arrays, packed at once.

psycopg dumps a list element by element, which takes longer than everything else that a sender does
for a batch. Each of these arrays holds one kind of value.
"""

import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor, adapters, sql
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format
from psycopg.rows import tuple_row

from reservation.postgres.error_translation import translated

_HEADER = struct.Struct("!iiiii")  # dimensions, whether there are NULLs, type, length, lower bound
_LENGTH = struct.Struct("!i")
_NULL = _LENGTH.pack(-1)


class Array:
    """Values that go to the server as one array."""

    element_oid: int

    def __init__(self, values: Sequence[Any]) -> None:  # Any: the subclasses say of which type
        self.values = values

    def pack(self) -> Iterable[bytes]:
        """Yield each value with its length before it."""
        raise NotImplementedError


class TextArray(Array):
    """A ``text[]``."""

    element_oid = adapters.types["text"].oid

    def pack(self) -> Iterable[bytes]:
        """Yield each text with its length before it."""
        for value in self.values:
            encoded = value.encode()
            yield _LENGTH.pack(len(encoded)) + encoded


class JsonArray(Array):
    """A ``jsonb[]`` of JSON texts; None is NULL."""

    element_oid = adapters.types["jsonb"].oid
    _version = b"\x01"

    def pack(self) -> Iterable[bytes]:
        """Yield each text with its length and the format's version before it."""
        for value in self.values:
            if value is None:
                yield _NULL
            else:
                encoded = value.encode()
                yield _LENGTH.pack(len(encoded) + 1) + self._version + encoded


class UuidArray(Array):
    """A ``uuid[]``."""

    element_oid = adapters.types["uuid"].oid
    values: Sequence[uuid.UUID]

    def pack(self) -> Iterable[bytes]:
        """Yield each id with its length before it."""
        length = _LENGTH.pack(16)
        for value in self.values:
            yield length + value.bytes


class IntArray(Array):
    """A ``bigint[]``; None is NULL."""

    element_oid = adapters.types["int8"].oid
    _item = struct.Struct("!iq")

    def pack(self) -> Iterable[bytes]:
        """Yield each number with its length before it."""
        for value in self.values:
            yield _NULL if value is None else self._item.pack(8, value)


class Int4Array(Array):
    """An ``integer[]``."""

    element_oid = adapters.types["int4"].oid
    _item = struct.Struct("!ii")

    def pack(self) -> Iterable[bytes]:
        """Yield each number with its length before it."""
        for value in self.values:
            yield self._item.pack(4, value)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> Buffer:
        packed = [_HEADER.pack(1, 1, obj.element_oid, len(obj.values), 1), *obj.pack()]
        return b"".join(packed)


_DUMPERS = {
    kind: type(
        f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": adapters.types[element].array_oid}
    )
    for kind, element in (
        (TextArray, "text"),
        (JsonArray, "jsonb"),
        (UuidArray, "uuid"),
        (IntArray, "int8"),
        (Int4Array, "int4"),
    )
}


def register_arrays(adapters_map: AdaptersMap) -> None:
    """Let a connection, or the cursors of one, take arrays as parameters."""
    for kind, dumper in _DUMPERS.items():
        adapters_map.register_dumper(kind, dumper)


# Those of psycopg, whatever a program or its framework registers.
_ADAPTERS = AdaptersMap(adapters)
register_arrays(_ADAPTERS)


class ArrayCursor(Cursor[tuple[Any, ...]]):
    """A cursor that takes these arrays and returns tuples, however the connection is set."""

    def __init__(self, connection: Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """The adapters."""
        return _ADAPTERS


class AsyncArrayCursor(AsyncCursor[tuple[Any, ...]]):
    """The same in an event loop; see `ArrayCursor`."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """The adapters."""
        return _ADAPTERS


def fetch_all(
    connection: Connection[Any], query: bytes | sql.Composed, parameters: Any = None
) -> list[tuple[Any, ...]]:
    """Execute a query that is not prepared, with such arrays as parameters, and return its rows."""
    with translated():
        return ArrayCursor(connection).execute(query, parameters, prepare=False).fetchall()
