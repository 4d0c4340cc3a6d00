"""The position of a consumer in its category, which only one process at a time can move.

Each partition of the category has a position of its own: the global position of the last message
that was handled. It moves in the transaction that commits the effects of the messages, under
the lock of the partition's lease, if that still has the epoch of the process. A process whose
partition was taken over, because it was paused or lost the network, therefore commits nothing.

The id of the message at the position is stored with it. The position moves only while that message
is in the log, so no message is skipped in a log that was cleared, restored or replaced.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import Connection

from reservation.errors import PositionLostError, StoreReplacedError
from reservation.messages.message import MAX_POSITION, StoredMessage
from reservation.postgres.arrays import Int4Array, IntArray
from reservation.postgres.error_translation import environmental, translated
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries
from reservation.postgres.sqlstates import NOT_MOVED, is_condition
from reservation.store.category_part import CategoryPart

_QUERIES = load_queries("consumers.group")

# The longest idle time in a transaction that has moved a position: while its process is paused,
# nobody else can write to the categories that it has locked.
LONGEST_PAUSE = "3s"


@dataclass(slots=True)
class HeldPartition:
    """A partition that this process holds.

    Attributes:
        partition: its number, from 0.
        position: the global position of the last message handled, 0 before the first.
        epoch: how many times it was taken; only the last holder may move it.
    """

    partition: int
    position: int
    epoch: int


class HeldPartitions:
    """The partitions of one category that this process holds.

    They are read together: first those that are furthest behind. Partitions at the same position
    are read in one statement.

    Attributes:
        consumer: the component's name.
        category: the category that is read.
        size: how many partitions the category has.
        claims: the partitions that are held, with their epochs, to compare with later ones.
    """

    def __init__(
        self,
        consumer: str,
        category: str,
        size: int = 1,
        held: Iterable[HeldPartition] = (),
        former_positions: Iterable[int] | None = None,
    ) -> None:
        self.consumer = consumer
        self.category = category
        self.size = size
        self._held = {partition.partition: partition for partition in held}
        self._former_positions = None if former_positions is None else tuple(former_positions)
        self.claims = frozenset((held.partition, held.epoch) for held in self._held.values())

    @property
    def partitions(self) -> list[int]:
        """The numbers of the partitions that are held, in order."""
        return sorted(self._held)

    @property
    def reached(self) -> dict[int, int]:
        """The position of each partition that is held."""
        return {held.partition: held.position for held in self._held.values()}

    @property
    def lowest(self) -> int:
        """The lowest position of the partitions that are held; 0 if none is held."""
        return min((held.position for held in self._held.values()), default=0)

    @property
    def epoch(self) -> int:
        """The newest epoch of what is held."""
        return max((held.epoch for held in self._held.values()), default=0)

    @property
    def are_shared(self) -> bool:
        """Whether some partitions of the category are not held by this process."""
        return len(self._held) < self.size

    @property
    def unordered_until(self) -> int:
        """The position up to which an entity's messages may come out of order; 0 if none may.

        They may if there are several partitions, or were before their number was changed. What is
        handled already does not matter: effects must not depend on when a message is read.
        """
        if self.size > 1:
            return MAX_POSITION
        return max(self._former_positions or (), default=0)

    def next(self) -> CategoryPart | None:
        """Return what to read next; None if nothing is held."""
        if not self._held:
            return None
        after = self.lowest
        behind = [number for number, held in self._held.items() if held.position == after]
        ahead = [held.position for held in self._held.values() if held.position > after]
        former_positions = self._former_positions
        if former_positions is not None and after >= max(former_positions):
            former_positions = None
        if len(behind) == self.size and former_positions is None:
            return CategoryPart(after)
        return CategoryPart(
            after, min(ahead, default=None), tuple(behind), self.size, former_positions
        )

    def advance(
        self,
        part: CategoryPart,
        to: int,
        message_id: str | None = None,
    ) -> Request:
        """Return the request that moves the stored positions of a part, in its transaction.

        It may fail with `NotMovedError`. After it the server ends the transaction if it is idle
        for too long, so take locks that others need only then. Call `committed` after the commit.
        """
        partitions, epochs = self.claims_of(part)
        values = {
            "consumer": self.consumer,
            "category": self.category,
            "partitions": partitions,
            "epochs": epochs,
            "before": part.after,
            "position": to,
            "message_id": message_id,
            "has_former_positions": part.former_positions is not None,
            "longest_pause": LONGEST_PAUSE,
        }
        return Request(_QUERIES["advance"], values, failed=_not_moved)

    def claims_of(self, part: CategoryPart) -> tuple[Int4Array, IntArray]:
        """Return the partitions of a part, and their epochs, as arrays for the server."""
        held = self._held_in(part)
        epochs = IntArray([partition.epoch for partition in held])
        return Int4Array([partition.partition for partition in held]), epochs

    def committed(self, part: CategoryPart, to: int) -> None:
        """Note that the transaction that moved the positions is committed."""
        for held in self._held_in(part):
            held.position = to

    def attempt(self, connection: Connection[Any], message: StoredMessage) -> int:
        """Count an attempt to handle a message by itself, before it begins.

        A crash of this process does not undo that; one of the server may.
        """
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            rows = connection.execute(
                _QUERIES["attempt"],
                {
                    "consumer": self.consumer,
                    "category": self.category,
                    "stream_name": message.stream_name,
                    "size": self.size,
                    "global_position": message.global_position,
                },
            ).fetchall()
            if not rows or not self._is_held(*rows[0][:2]):
                raise self.lost(connection)
        return int(rows[0][2])

    def uncount_attempt(self, connection: Connection[Any], message: StoredMessage) -> None:
        """Uncount the last attempt at a message, which did not end because of the message."""
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            connection.execute(
                _QUERIES["uncount_attempt"],
                {
                    "consumer": self.consumer,
                    "category": self.category,
                    "partitions": list(self._held),
                    "epochs": [held.epoch for held in self._held.values()],
                    "stream_name": message.stream_name,
                    "size": self.size,
                    "global_position": message.global_position,
                },
            )

    def lock(self, connection: Connection[Any], partitions: Iterable[int]) -> None:
        """Keep partitions from being taken over until the end of the transaction."""
        wanted = sorted(partitions)
        with translated():
            rows = connection.execute(
                _QUERIES["lock_positions"],
                {
                    "consumer": self.consumer,
                    "category": self.category,
                    "partitions": wanted,
                    "longest_pause": LONGEST_PAUSE,
                },
            ).fetchall()
        if len(rows) != len(wanted) or not all(self._is_held(*row) for row in rows):
            raise self.lost(connection)

    def lost(self, connection: Connection[Any]) -> StoreReplacedError | PositionLostError:
        """Return why a position could not be moved or held."""
        with translated():
            names = {"consumer": self.consumer, "category": self.category}
            ((foreign_at,),) = connection.execute(_QUERIES["foreign_at"], names).fetchall()
        if foreign_at is not None:
            return StoreReplacedError(self.consumer, self.category, foreign_at)
        return PositionLostError(
            f"Another process has taken over partitions of the consumer {self.consumer} of "
            f"{self.category}; this process commits nothing more of them"
        )

    def _is_held(self, partition: int, epoch: int) -> bool:
        held = self._held.get(partition)
        return held is not None and held.epoch == epoch

    def _held_in(self, part: CategoryPart) -> list[HeldPartition]:
        if part.partitions is None:
            return list(self._held.values())
        return [self._held[n] for n in part.partitions]


class NotMovedError(Exception):
    """A position could not be moved; `HeldPartitions.lost` says why."""


def _not_moved(error: psycopg.Error) -> Exception:
    """Return the error for a position that could not be moved, which is no fault of messages."""
    return NotMovedError() if is_condition(error, NOT_MOVED) else environmental(error)
