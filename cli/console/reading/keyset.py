"""Paging by keys: a page starts behind the last row of the one before, however many there are.

A cursor in an address holds the key of a row, and the direction. A page reads one row more than it
shows, which says whether there are others.

    cursor = Cursor.of(request.query_params)
    rows = connection.execute(_QUERIES["before" if cursor.backward else "after"],
                              {"key": cursor.key, "limit": SIZE + 1}).fetchall()
    slice_ = slice_of(rows, cursor, SIZE, key=lambda row: [row.global_position])

The query of the backward direction has the opposite order; `slice_of` turns its rows round. The
template shows the links with ``{{ pager(slice) }}``.
"""

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

# Longer cursors are not ours: a key is a few names, and a stream's name has at most 2,600 bytes.
_LONGEST = 16_384


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page starts.

    Attributes:
        key: the key of the row next to it, its parts texts, numbers or None; None for the first
            page.
        backward: whether the page is the one before that row.
    """

    key: Sequence[str | int | float | None] | None = None
    backward: bool = False

    @classmethod
    def of(cls, parameters: Mapping[str, str], parts: int | None = None) -> Self:
        """Return the cursor in the parameters ``after`` or ``before`` of an address.

        Args:
            parameters: those of the query.
            parts: how many parts a key has; a cursor with another number is the first page.
        """
        for name, backward in (("after", False), ("before", True)):
            key = _decoded(parameters.get(name, ""))
            if key is not None and parts in (None, len(key)):
                return cls(key, backward)
        return cls()


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """The rows of one page.

    Attributes:
        rows: the rows, in the order of the list.
        before: the cursor of the page before; None if this is the first.
        after: the cursor of the page after; None if this is the last.
    """

    rows: Sequence[T]
    before: str | None
    after: str | None


def slice_of(
    rows: Sequence[T],
    cursor: Cursor,
    size: int,
    key: Callable[[T], Sequence[str | int | float | None]],
) -> Slice[T]:
    """Return a page of the rows that were read for it.

    Args:
        rows: as they were read: one more than `size` if there are more, the last first if the
            cursor leads backward.
        cursor: where the page starts.
        size: how many rows a page has.
        key: returns the key of a row.
    """
    more = len(rows) > size
    shown = list(rows[:size])
    if cursor.backward:
        shown.reverse()
    has_before = more if cursor.backward else cursor.key is not None
    has_after = cursor.backward or more
    return Slice(
        shown,
        before=_encoded(key(shown[0])) if shown and has_before else None,
        after=_encoded(key(shown[-1])) if shown and has_after else None,
    )


def _encoded(key: Sequence[Any]) -> str:
    text = json.dumps(list(key), separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decoded(text: str) -> list[Any] | None:
    """Return the key in a cursor; None if it is not one of ours."""
    if not text or len(text) > _LONGEST:
        return None
    try:
        key = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    if not isinstance(key, list) or not all(_is_part(part) for part in key):
        return None
    return key


def _is_part(part: object) -> bool:
    """Return whether a part of a key is one that a statement takes."""
    if isinstance(part, bool):
        return False
    if isinstance(part, int):
        return abs(part) < 2**63
    if isinstance(part, str):
        return ("\0" not in part and part.isascii()) or (_is_utf8(part) and "\0" not in part)
    return part is None or (isinstance(part, float) and math.isfinite(part))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
