"""The number of messages in a category, and a sample of them where these are many.

The work is bounded, however large the category is: a limited number of messages is counted, and a
limited number is read. Beyond that the number is estimated from how close together the messages
are at places that are spread over the log.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from psycopg.rows import args_row

from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.inspection")

# So many messages of a category are counted one by one.
MOST_COUNTED = 100_000

# At so many places of the log, the next messages of a category are looked up: to see how close
# together they are, and to choose some of them.
PLACES = 1_000
AT_EACH = 10

# Among the streams of so many of the newest messages, the longest is looked for.
NEWEST = 2_000


@dataclass(frozen=True, slots=True)
class CategoryCount:
    """The message count of a category.

    Attributes:
        messages: how many.
        exact: whether that was counted; if not, it is estimated.
        counted: by type, how many were counted.
    """

    messages: int
    exact: bool
    counted: Mapping[str, int]

    def of_type(self, name: str, sampled: Counter[str]) -> int:
        """Return how many messages of a type there are, or about how many."""
        counted = self.counted.get(name, 0)
        if self.exact:
            return counted
        share = sampled[name] / max(1, sampled.total())
        return max(counted, sampled[name], round(self.messages * share))


@dataclass(frozen=True, slots=True)
class CategorySample:
    """A sample of a category.

    Attributes:
        count: how many messages it holds.
        positions: the global positions of those in the sample, in order: the oldest, the newest,
            and some at places between them.
    """

    count: CategoryCount
    positions: Sequence[int]


def use_indexes(connection: Connection[Any]) -> None:
    """Let the planner choose the right index until the end of the transaction."""
    with translated():
        connection.execute(_QUERIES["settings"])


def sample(connection: Connection[Any], category: str, size: int) -> CategorySample:
    """Count a category, and choose which of its messages to look at."""
    of = {"category": category}
    with translated():
        rows = connection.execute(_QUERIES["counted"], of | {"limit": MOST_COUNTED + 1}).fetchall()
        counted: dict[str, int] = dict(rows)
        exact = sum(counted.values()) <= MOST_COUNTED
        # All of a small category; of another a third each of the oldest, the newest and others.
        is_small = exact and sum(counted.values()) <= size
        limits = {"limit": size if is_small else max(1, size // 3)}
        ends = [
            [at for (at,) in connection.execute(_QUERIES[end], of | limits)]
            for end in ("oldest", "newest")
        ]
        chosen = {*ends[0], *ends[1]}
        found: list[tuple[int, list[int]]] = []
        last = max(chosen, default=0)
        if not is_small and chosen:
            first = min(chosen)
            places = sorted({first + (last - first) * n // PLACES for n in range(PLACES)})
            values = of | {"places": places, "last": last, "at_each": AT_EACH}
            found = connection.execute(_QUERIES["spread"], values).fetchall()
            others = sorted({at for _, positions in found for at in positions} - chosen)
            chosen.update(_evenly(others, size - len(chosen)))
    messages = sum(counted.values()) if exact else max(MOST_COUNTED, estimate(found, last))
    return CategorySample(CategoryCount(messages, exact, counted), sorted(chosen))


def longest_stream(connection: Connection[Any], category: str) -> str | None:
    """Return the longest of the streams of a category's newest messages; None if it has none."""
    values = {"category": category, "limit": NEWEST}
    with translated():
        rows = connection.execute(_QUERIES["longest"], values).fetchall()
    return str(rows[0][0]) if rows else None


def _evenly(values: Sequence[int], number: int) -> Sequence[int]:
    """Return so many of some values at most, at equal distances."""
    if number <= 0 or len(values) <= number:
        return values if number > 0 else ()
    return [values[len(values) * n // number] for n in range(number)]


def estimate(found: Sequence[tuple[int, Sequence[int]]], last: int) -> int:
    """Return about how many messages a category holds."""
    total = 0.0
    for n, (place, positions) in enumerate(found):
        end = found[n + 1][0] if n + 1 < len(found) else last + 1
        here = [at for at in positions if at < end]
        if here and len(here) == len(positions):  # as close together up to the next place
            total += len(here) * (end - place) / (here[-1] - place + 1)
        else:
            total += len(here)
    return round(total)


def messages_at(connection: Connection[Any], positions: Sequence[int]) -> Iterator[StoredMessage]:
    """Give the messages at some global positions, one at a time, as they come from the server."""
    with translated(), connection.cursor(row_factory=args_row(StoredMessage)) as cursor:
        yield from cursor.stream(_QUERIES["at_positions"], {"positions": list(positions)})
