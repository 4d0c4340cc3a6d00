"""Removing versions of states whose messages are not expected again.

A version is removed if it is older than the window, it is not the newest of its stream, and no
version that stays builds on it. Versions are always removed from the
beginning of a stream, so its positions then begin later. The highest position of the messages that
made the removed versions is kept, so that a repeated message is refused, and not taken for a new
one.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from psycopg import Connection, Cursor
from psycopg.rows import tuple_row

from reservation.idempotence.state_based.states import QUERIES
from reservation.messages import stream_name
from reservation.postgres.error_translation import translated

# How many versions to remove, and streams to look at, in one transaction.
AT_ONCE = 1000

# No name of a stream holds such a character, so nothing lies between a name and the name with it.
_JUST_AFTER = "\x01"
_LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class CleanUp:
    """One step's result.

    Attributes:
        removed: how many versions.
        resume: where the next step begins; None once every stream was looked at.
    """

    removed: int
    resume: str | None


def clean_up_states(
    connection: Connection[Any],
    window: timedelta,
    *,
    category: str | None = None,
    start: str = "",
    at_once: int = AT_ONCE,
) -> CleanUp:
    """Remove a bounded number of versions, in a transaction of its own.

    Call it again with the position that it returns until that is None. If another process cleans up
    at the same time, nothing is removed.
    """
    values = _parameters(window, category, start) | {"streams": at_once, "versions": at_once}
    with translated(), connection.transaction():
        cursor = Cursor(connection, row_factory=tuple_row)
        if cursor.execute(QUERIES["lock_clean_up"], ["reservation state clean-up"]).fetchall() != [
            (True,)
        ]:
            return CleanUp(0, None)
        rows = cursor.execute(QUERIES["clean_up"], values, prepare=False).fetchall()
    removed, reached, looked_at, last = rows[0]
    if removed == at_once:
        return CleanUp(removed, reached)
    return CleanUp(removed, last + _JUST_AFTER if looked_at == at_once else None)


def count_removable(
    connection: Connection[Any], window: timedelta, *, category: str | None = None
) -> int:
    """Return how many versions `clean_up_states` would remove; see there."""
    values = _parameters(window, category, "") | {"streams": 2**62}
    with translated():
        cursor = Cursor(connection, row_factory=tuple_row)
        rows = cursor.execute(QUERIES["count_removable"], values, prepare=False).fetchall()
    return int(rows[0][0])


def _parameters(window: timedelta, category: str | None, start: str) -> dict[str, Any]:
    """Return the parameters of a query: which streams, and how old."""
    first, bound = "", _LAST
    if category is not None:
        first = category + stream_name.ID_SEPARATOR
        bound = category + chr(ord(stream_name.ID_SEPARATOR) + 1)
    return {"first": max(first, start), "bound": bound, "seconds": window.total_seconds()}
