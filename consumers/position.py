"""Where a consumer is in its category, kept so that only one process at a time can move it.

The position is the global position of the last message dealt with. It moves in the transaction
that commits what the messages brought about, by compare-and-set on the holder's epoch, so that a
process that was taken over (it was paused, or the same consumer was started twice) commits
nothing.
"""

from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation.errors import PositionLostError
from reservation.queries import load_queries
from reservation.store.errors import translated

_QUERIES = load_queries("consumers")


@dataclass(slots=True)
class Position:
    """The position of one consumer in one category, and this process's claim on it.

    Attributes:
        consumer: the component's name.
        category: the category that is read.
        position: the global position of the last message dealt with, 0 before the first.
        epoch: the number of this claim.
    """

    consumer: str
    category: str
    position: int
    epoch: int

    @classmethod
    def claim(cls, connection: Connection[Any], consumer: str, category: str) -> "Position":
        """Take the position over from whichever process held it, and commit that."""
        with translated(), connection.transaction():
            rows = connection.execute(
                _QUERIES["claim"], {"consumer": consumer, "category": category}
            ).fetchall()
        return cls(consumer, category, *rows[0])

    def advance(self, connection: Connection[Any], to: int) -> None:
        """Move the stored position, in the transaction that the connection is in.

        Call `moved` once that transaction is committed.

        Raises:
            PositionLostError: another process has taken the position over.
        """
        with translated():
            cursor = connection.execute(
                _QUERIES["advance"],
                {
                    "consumer": self.consumer,
                    "category": self.category,
                    "epoch": self.epoch,
                    "before": self.position,
                    "position": to,
                },
            )
        if cursor.rowcount != 1:
            raise self._lost()

    def check(self, connection: Connection[Any]) -> None:
        """Make sure that no other process has taken the position over.

        Raises:
            PositionLostError: one has.
        """
        with translated():
            rows = connection.execute(
                _QUERIES["epoch"], {"consumer": self.consumer, "category": self.category}
            ).fetchall()
        if rows != [(self.epoch,)]:
            raise self._lost()

    def renew(self, connection: Connection[Any]) -> None:
        """Read the position again on a new connection, without claiming it again.

        Whether the last batch was committed is known then, and a process that took over while there
        was no connection keeps what it took.

        Raises:
            PositionLostError: another process has taken the position over.
            LockTimeoutError: a transaction is moving it; try again.
        """
        with translated(), connection.transaction():
            rows = connection.execute(
                _QUERIES["renew"], {"consumer": self.consumer, "category": self.category}
            ).fetchall()
        if [epoch for _, epoch in rows] != [self.epoch]:
            raise self._lost()
        self.position = rows[0][0]

    def _lost(self) -> PositionLostError:
        return PositionLostError(
            f"Another process has taken over the consumer {self.consumer} of {self.category}, so "
            f"this one stopped and committed nothing more; run each consumer once"
        )

    def moved(self, to: int) -> None:
        """Note that the transaction that moved the position is committed."""
        self.position = to
