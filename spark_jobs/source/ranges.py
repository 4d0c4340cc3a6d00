"""The bounds of a read of a category, and its division into ranges."""

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Connection

from reservation.messages.message import MAX_POSITION
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("spark_jobs.source")

# How many pages of the log are sampled to find where a category's messages are.
_SAMPLED_PAGES = 2_000
# With fewer messages in the sample, the category is small enough to read all its positions.
_ENOUGH = 200

# One worker reads fewer messages faster than two workers that must be started.
_ENOUGH_FOR_ONE = 20_000


def head(connection: Connection[tuple[Any, ...]], category: str) -> int:
    """Return the global position of a category's last message, 0 if it has none.

    A writer locks its category until the commit, so no message can still become visible before this
    one, however long a writer of another category takes.
    """
    return _bounds(connection, category, 0, MAX_POSITION)[1]


def pages(connection: Connection[tuple[Any, ...]]) -> int:
    """Return the size of the log in pages of the server."""
    return int(connection.execute(_QUERIES["pages"]).fetchall()[0][0])


def divided(
    connection: Connection[tuple[Any, ...]],
    categories: Sequence[str],
    first: int,
    last: int,
    number: int,
    *,
    most: int | None = None,
) -> list[tuple[int, int]]:
    """Divide a part of the log into ranges that hold about equal numbers of some messages."""
    with translated():
        bounds = [_bounds(connection, category, first, last) for category in categories]
        if not any(end for _, end in bounds):
            return []
        first = min(begin for begin, end in bounds if end)
        last = max(end for _, end in bounds)
        if (number <= 1 and most is None) or last == first:
            return [(first, last)]
        values = {"categories": list(categories), "first": first, "last": last}
        found, messages = _where(connection, values)
    number = min(number, max(1, messages // _ENOUGH_FOR_ONE))
    if most is not None:
        number = max(number, messages // most)
    ends = sorted({found[len(found) * n // number] for n in range(1, number)} - {last})
    starts = [first, *(end + 1 for end in ends)]
    return list(zip(starts, [*ends, last], strict=True))


def limited(
    connection: Connection[tuple[Any, ...]],
    start: Mapping[str, int],
    end: Mapping[str, int],
    rows: int,
) -> int:
    """Return the global position up to which parts of categories together hold so many messages."""
    values = {
        "categories": list(start),
        "first": [position + 1 for position in start.values()],
        "last": [end[category] for category in start],
        "rows": rows,
    }
    with translated():
        (found,) = connection.execute(_QUERIES["limited"], values).fetchall()[0]
    return int(found or 0)


def _bounds(
    connection: Connection[tuple[Any, ...]], category: str, first: int, last: int
) -> tuple[int, int]:
    values = {"category": category, "first": first, "last": last}
    with translated():
        found = connection.execute(_QUERIES["bounds"], values).fetchall()[0]
    return found[0] or 0, found[1] or 0


def _where(
    connection: Connection[tuple[Any, ...]], values: dict[str, Any]
) -> tuple[list[int], int]:
    """Return global positions of a category, in order, and about how many messages there are.

    They are all, or those on some of the log's pages.
    """
    log_pages = pages(connection)
    if log_pages > _SAMPLED_PAGES:
        percent = 100 * _SAMPLED_PAGES / log_pages
        rows = connection.execute(_QUERIES["sample"], {**values, "percent": percent}).fetchall()
        if len(rows) >= _ENOUGH:
            return [row[0] for row in rows], len(rows) * log_pages // _SAMPLED_PAGES
    found = [row[0] for row in connection.execute(_QUERIES["every_position"], values)]
    return found, len(found)
