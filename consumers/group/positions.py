"""Where a consumer is in its category, kept so that only one process at a time can move it.

Each partition of the category has a position of its own: the global position of the last message
that was dealt with. It moves in the transaction that commits what the messages brought about, by
compare-and-set on the holder's epoch, so that a process that was taken over (it was paused, or lost
the network) commits nothing.

With the position goes the id of the message there, and it moves only while that message is in the
log: of a log that was cleared, restored or replaced nothing is passed over.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.errors import ForeignPositionError, PositionLostError
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.store.partition import Partition

_QUERIES = load_queries("consumers.group")

# Between two statements of a transaction that has moved a position: a process that is paused then
# would keep the locks of its categories from everybody who writes there.
LONGEST_PAUSE = "3s"


# No global position is higher.
LAST = 2**63 - 1


@dataclass(slots=True)
class HeldPartition:
    """A partition that this process holds.

    Attributes:
        partition: its number, from 0.
        position: the global position of the last message dealt with, 0 before the first.
        epoch: how many times it was taken; only the last holder may move it.
    """

    partition: int
    position: int
    epoch: int


class Positions:
    """The partitions of one category that this process holds.

    They are read together, those furthest behind first, and those that have come to the same
    position as one from then on.

    Attributes:
        consumer: the component's name.
        category: the category that is read.
        size: how many partitions the category has.
    """

    def __init__(
        self,
        consumer: str,
        category: str,
        size: int = 1,
        held: Iterable[HeldPartition] = (),
        carried: Iterable[int] | None = None,
    ) -> None:
        """Take note of what is held.

        Args:
            consumer: the component's name.
            category: the category that is read.
            size: how many partitions the category has.
            held: those that this process holds.
            carried: how far each partition was dealt with before there were ``size``.
        """
        self.consumer = consumer
        self.category = category
        self.size = size
        self._held = {one.partition: one for one in held}
        self._carried = None if carried is None else tuple(carried)

    @property
    def partitions(self) -> list[int]:
        """Those that are held, in order."""
        return sorted(self._held)

    @property
    def reached(self) -> dict[int, int]:
        """The position of each partition that is held."""
        return {one.partition: one.position for one in self._held.values()}

    @property
    def lowest(self) -> int:
        """The position that everything held was dealt with up to; 0 if nothing is held."""
        return min((one.position for one in self._held.values()), default=0)

    @property
    def epoch(self) -> int:
        """The newest epoch of what is held."""
        return max((one.epoch for one in self._held.values()), default=0)

    @property
    def unordered_until(self) -> int:
        """The position up to which an entity's messages may come out of their order; 0 if none do.

        They do where they are in several partitions, or were before the number was changed. Also
        what is read beyond that belongs to this, however far everything was dealt with: what a
        message brings about must not depend on when it is read.
        """
        if self.size > 1:
            return LAST
        return max(self._carried or (), default=0)

    def next(self) -> Partition | None:
        """Return what to read next; None if nothing is held."""
        if not self._held:
            return None
        after = self.lowest
        behind = [n for n, one in self._held.items() if one.position == after]
        ahead = [one.position for one in self._held.values() if one.position > after]
        carried = self._carried
        if carried is not None and after >= max(carried):
            carried = None
        if len(behind) == self.size and carried is None:
            return Partition(after)
        return Partition(after, min(ahead, default=None), tuple(behind), self.size, carried)

    def advance(
        self, connection: Connection[Any], part: Partition, to: int, message_id: str | None = None
    ) -> None:
        """Move the stored positions of a part, in the transaction that the connection is in.

        The server ends that transaction if it has to wait for too long then. Locks that others
        need are best taken after that.

        Call `moved` once that transaction is committed.

        Args:
            connection: in the transaction that has read the part.
            part: what was read.
            to: the global position up to which it is dealt with.
            message_id: the id of the message there; None to look it up.

        Raises:
            PositionLostError: another process has taken one over.
            ForeignPositionError: one was taken in another log.
        """
        moving = self._of(part)
        with translated():
            cursor = connection.execute(
                _QUERIES["advance"],
                {
                    "consumer": self.consumer,
                    "category": self.category,
                    "partitions": [one.partition for one in moving],
                    "epochs": [one.epoch for one in moving],
                    "before": part.after,
                    "position": to,
                    "message_id": message_id,
                    "carried": part.carried is not None,
                    "longest_pause": LONGEST_PAUSE,
                },
            )
        if cursor.rowcount != len(moving):
            raise self._lost(connection)

    def moved(self, part: Partition, to: int) -> None:
        """Note that the transaction that moved the positions is committed."""
        for one in self._of(part):
            one.position = to

    def attempt(self, connection: Connection[Any], message: StoredMessage) -> int:
        """Note, before it begins, that a message is handled on its own.

        A crash of this process does not undo that; one of the server may.

        Args:
            connection: not in a transaction.
            message: the next one of its partition.

        Returns:
            How often that was noted of this message in a row.

        Raises:
            PositionLostError: another process has taken the partition over.
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
                raise self._lost(connection)
        return int(rows[0][2])

    def take_back(self, connection: Connection[Any], message: StoredMessage) -> None:
        """Note that the last attempt at a message came to no end, for no fault of the message.

        Args:
            connection: not in a transaction.
            message: the one of the last call of `attempt`.
        """
        with translated(), connection.transaction():
            connection.execute("SET LOCAL synchronous_commit = off")
            connection.execute(
                _QUERIES["take_back"],
                {
                    "consumer": self.consumer,
                    "category": self.category,
                    "partitions": list(self._held),
                    "epochs": [one.epoch for one in self._held.values()],
                    "global_position": message.global_position,
                },
            )

    def hold(self, connection: Connection[Any], partitions: Iterable[int]) -> None:
        """Keep partitions from being taken over until the end of the transaction.

        Raises:
            PositionLostError: another process has taken one over.
            ForeignPositionError: one was taken in another log.
        """
        wanted = sorted(partitions)
        with translated():
            rows = connection.execute(
                _QUERIES["hold"],
                {
                    "consumer": self.consumer,
                    "category": self.category,
                    "partitions": wanted,
                    "longest_pause": LONGEST_PAUSE,
                },
            ).fetchall()
        if len(rows) != len(wanted) or not all(self._is_held(*row) for row in rows):
            raise self._lost(connection)

    @property
    def claims(self) -> frozenset[tuple[int, int]]:
        """What is held, by partition and epoch; another one once anything else is."""
        return frozenset((one.partition, one.epoch) for one in self._held.values())

    def _is_held(self, partition: int, epoch: int) -> bool:
        held = self._held.get(partition)
        return held is not None and held.epoch == epoch

    def _lost(self, connection: Connection[Any]) -> ForeignPositionError | PositionLostError:
        """Return why a position could not be moved or held."""
        with translated():
            of = {"consumer": self.consumer, "category": self.category}
            ((foreign_at,),) = connection.execute(_QUERIES["foreign_at"], of).fetchall()
        if foreign_at is not None:
            return ForeignPositionError(self.consumer, self.category, foreign_at)
        return PositionLostError(
            f"Another process has taken over the consumer {self.consumer} of {self.category}, or "
            f"a part of it; this one committed nothing more of that"
        )

    def _of(self, part: Partition) -> list[HeldPartition]:
        if part.partitions is None:
            return list(self._held.values())
        return [self._held[n] for n in part.partitions]
