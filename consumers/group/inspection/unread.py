"""Command categories that nobody reads: often a misspelled name, which a sender wrote to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.messages.message import printable
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.group.inspection", "unread.sql")

# Categories of the store that are gone through, and those that are returned.
MOST_CATEGORIES = 2_000
MOST_SHOWN = 20

# Messages that are counted in one of them.
MOST_COUNTED = 1_000


@dataclass(frozen=True, slots=True)
class UnreadCategory:
    """A command category that no consumer was ever run on.

    Attributes:
        category: the category.
        messages: how many messages it holds, as far as they were counted.
        at_least: whether there may be more that were not counted.
    """

    category: str
    messages: int
    at_least: bool

    def __str__(self) -> str:
        """Say it in a sentence."""
        many = f"{self.messages:,}{'+' if self.at_least else ''}"
        what = "message" if self.messages == 1 else "messages"
        return (
            f"{printable(self.category)} holds {many} {what}, and no consumer has a position in it"
        )


def unread_categories(
    connection: Connection[Any], declared: Iterable[str] = ()
) -> Sequence[UnreadCategory]:
    """Return the command categories in which no consumer has a position, at most 20.

    Of the store's categories the first 2,000 are looked at, in the order of their names.
    """
    found = connection.execute(
        _QUERIES["unread"],
        {
            "most": MOST_CATEGORIES,
            "shown": MOST_SHOWN,
            "counted": MOST_COUNTED,
            "declared": list(declared),
        },
    )
    return [UnreadCategory(name, count, count == MOST_COUNTED) for name, count in found]
