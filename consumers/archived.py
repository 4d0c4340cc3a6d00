"""Reading a category of which an archive has what was removed from the store.

The archive has the category up to a message, whether or not the store still has what is before it.
The store may have messages before it that the archive lacks, because they became visible later. So
up to there both are read, and a message that is in both counts once; behind it, only the store is.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from psycopg import Connection

from reservation.errors import ArchiveError
from reservation.messages.message import StoredMessage
from reservation.postgres.arrays import IntArray, TextArray, fetch_all
from reservation.postgres.queries import load_queries
from reservation.store.category_part import CategoryPart
from reservation.store.statements import read_part, run

_QUERIES = load_queries("consumers", "archived.sql")


class ArchivedMessages(Protocol):
    """Those of a category; `spark_jobs.archive.category_reader` implements it."""

    @property
    def first(self) -> int:
        """The global position of the first message."""

    @property
    def last(self) -> int:
        """The global position up to which all messages are archived."""

    @property
    def count(self) -> int:
        """How many messages there are, in the archive that has the most."""

    @property
    def ends(self) -> Sequence[tuple[int, str]]:
        """The global position and the id of the last message in each of the archives."""

    def read(self, after: int, limit: int, max_bytes: int) -> Sequence[StoredMessage]:
        """Return the next messages behind a global position; none at the end."""

    def at(self, positions: Collection[int]) -> Mapping[int, StoredMessage]:
        """Return the messages at some global positions, as far as they are archived."""

    def lacking(self, wanted: Collection[tuple[str, int]]) -> set[tuple[str, int]]:
        """Return those that are not archived of some messages, by stream and position there."""


class Archives(Protocol):
    """Archives of one store, which are read as one; as text, their names."""

    @property
    def categories(self) -> Sequence[str]:
        """The archived categories."""

    def category(self, name: str) -> ArchivedMessages | None:
        """Return a new reader of a category; None if nothing of it is archived."""

    def require_whole(self) -> None:
        """Make sure that the files are those that were archived."""

    def require_store(self, store: str | None) -> None:
        """Make sure that none is of a store with another id."""


# Any: connections differ in what their rows are.
def read_both(
    connection: Connection[Any],
    archived: ArchivedMessages,
    category: str,
    part: CategoryPart,
    limit: int,
    max_bytes: int,
) -> tuple[CategoryPart, list[StoredMessage]]:
    """Return the next messages of a part that begins before the end of the archive.

    The part that is returned ends with what was read, also if that is no message.
    """
    number = limit if part.partitions is None else limit * part.size // len(part.partitions)
    messages = archived.read(part.after, number, max_bytes)
    part = part.up_to(messages[-1].global_position if messages else archived.last)
    stored = run(connection, read_part(category, part, limit, max_bytes))
    if _may_be_cut(stored, limit, max_bytes):
        part = part.up_to(stored[-1].global_position)
    within = [one for one in messages if one.global_position <= (part.until or 0)]
    found = {one.global_position: one for one in _in_part(connection, within, part)}
    for one in stored:
        same = found.setdefault(one.global_position, one)
        if same.id != one.id:
            raise ArchiveError(
                f"The archive of {category} and the store have other messages at global position "
                f"{one.global_position}; name the archive of this store"
            )
        found[one.global_position] = one
    both = sorted(found.values(), key=lambda one: one.global_position)[:limit]
    return (part.up_to(both[-1].global_position) if len(both) == limit else part), both


def _may_be_cut(messages: Sequence[StoredMessage], limit: int, max_bytes: int) -> bool:
    """Return whether a batch may have ended before the end of what was asked for."""
    return len(messages) >= limit or takes(messages) >= max_bytes


def takes(messages: Sequence[StoredMessage]) -> int:
    """Return how many bytes messages take at most: four a character, in any encoding."""
    return 4 * sum(
        len(message.data or "") + len(message.metadata_json or "") for message in messages
    )


def _in_part(
    connection: Connection[Any], messages: Sequence[StoredMessage], part: CategoryPart
) -> Sequence[StoredMessage]:
    """Return those messages that the store would give of a part."""
    if part.partitions is None or not messages:
        return messages
    former = part.former_positions
    values = {
        "streams": TextArray([one.stream_name for one in messages]),
        "positions": IntArray([one.global_position for one in messages]),
        "partitions": list(part.partitions),
        "size": part.size,
        "former_positions": None if former is None else list(former),
    }
    rows = fetch_all(connection, _QUERIES["in_part"], values)
    return [messages[n - 1] for (n,) in rows]
