"""Membership in a group of processes that share a category.

A group has a fixed number of partitions. Each member takes its fair share of them, gives some back
when another joins, and takes over those of a member that is gone. One function of the server does
all of that (`reservation.take_part`); a member calls it at intervals, between two batches. During a
long batch, a thread renews the lease of the member.

A member is gone when it has left, when its session has ended, or when its lease has expired. It may
still be alive then, and only paused: its batch cannot commit, because the member that took its
partitions over has raised their epochs.
"""

import time
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from consumers.group.compatibility import join_beside, store_declaration
from consumers.group.heartbeat import Heartbeat
from consumers.group.positions import HeldPartition, Positions
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session, process_name
from reservation.errors import ForeignPositionError, GroupError
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

# Seconds after which a member that did not renew its lease counts as gone.
LEASE = 3.0

# Seconds between two calls; with a look for messages in each, an idle consumer makes no others.
TURN = 1.2

_QUERIES = load_queries("consumers.group")


@dataclass(frozen=True, slots=True)
class GroupShare:
    """The part of its group that a process asks for.

    Attributes:
        partitions: how many the group is to have; None for as many as it has.
        member: the only partition that the process takes; None for its fair share of all.
        to_begin_with: how many a new group has, where ``partitions`` is None.
    """

    partitions: int | None = None
    member: int | None = None
    to_begin_with: int = 1


class Membership:
    """What one process holds of a group, from joining it to leaving it.

    Attributes:
        positions: the partitions that it holds, as of the last `turn`.
        head: the global position of the category's last message then.
        unclean: those taken in the last `turn` that their holder had not given back.
        retry: whether the group had dead letters to handle again then.
        next_scheduled: seconds from then until a scheduled message of the store is to be written;
            None without one.
        overdue: for how many seconds the oldest of them was overdue then; None without one.
    """

    def __init__(
        self,
        session: Session,
        consumer: str,
        category: str,
        share: GroupShare,
        log: Log,
        declaration: ProcessDeclaration | None = None,
    ) -> None:
        self._consumer = consumer
        self._declaration = declaration
        self._category = category
        self._share = share
        self._log = log
        self._member: int | None = None
        self._size = 1
        self._last = 0.0
        self._heartbeat = Heartbeat(session.address, session.application_name, LEASE)
        self._started = False
        self._standing_by = False
        self.positions = Positions(consumer, category)
        self.head = 0
        self.unclean: tuple[int, ...] = ()
        self.retry = False
        self.next_scheduled: float | None = None
        self.overdue: float | None = None

    @property
    def wanted(self) -> int:
        """How many partitions the group is to have; 1 where that is left to the group."""
        return self._share.partitions or 1

    @property
    def size(self) -> int:
        """How many partitions the group had when the process joined it; 1 before."""
        return self._size

    @property
    def busy(self) -> Heartbeat:
        """Around a batch: sees to it that the member lives on while that takes long."""
        return self._heartbeat

    @property
    def due(self) -> bool:
        """Whether it is time for a `turn`."""
        return time.monotonic() - self._last >= TURN

    @property
    def behind(self) -> bool:
        """Whether the category had messages at the last `turn` that are not handled."""
        return bool(self.positions.partitions) and self.head > self.positions.lowest

    def join(self, connection: Connection[Any]) -> None:
        """Become a member, on a new connection; what the process held on another is kept."""
        with translated(), connection.transaction():
            if self._declaration is not None:
                join_beside(connection, self._consumer, self._declaration, self._member)
            member, self._size = connection.execute(
                _QUERIES["join_group"],
                {
                    "consumer": self._consumer,
                    "category": self._category,
                    "partitions": self._share.partitions or self._share.to_begin_with,
                    "process": process_name(),
                    "partition": self._share.member,
                    "lease": LEASE,
                    "former": self._member,
                },
            ).fetchall()[0]
            wanted = self._share.partitions
            if wanted not in (None, self._size):
                raise GroupError(
                    f"The consumer {self._consumer} of {self._category} has {self._size} "
                    f"partitions, not {wanted}; stop it everywhere and change that with "
                    f"`reservation partitions`"
                )
            if self._declaration is not None:
                store_declaration(connection, member, self._declaration)
        self._member = member
        self._last = 0.0

    def turn(self, connection: Connection[Any]) -> None:
        """Renew the lease, and take and give back partitions; not within a batch."""
        rows = self._take_part(connection)
        if not rows:
            self._log.warning("taken_for_dead", lease=LEASE)
            self.join(connection)
            rows = self._take_part(connection)
        if not rows:  # again: at the next turn
            rows = [(self.head, None, [], [], [], [], False, None, None, None)]
        self.head, carried, partitions, positions, epochs, unclean, self.retry = rows[0][:7]
        foreign, self.next_scheduled, self.overdue = rows[0][7:]
        if foreign is not None:
            raise ForeignPositionError(self._consumer, self._category, foreign)
        before = self.positions
        held = map(HeldPartition, partitions, positions, epochs)
        self.positions = Positions(self._consumer, self._category, self._size, held, carried)
        self.unclean = tuple(unclean)
        self._last = time.monotonic()
        self._log_changes(before)

    def leave(self, connection: Connection[Any]) -> None:
        """Give everything back."""
        self._heartbeat.close()
        if self._member is not None:
            with translated():
                connection.execute(_QUERIES["leave_group"], {"member": self._member})
            self._member = None

    def abandon(self) -> None:
        """Give nothing back, like a killed process.

        The member is found gone once its session ends, and what it held is then taken as `unclean`.
        """
        self._heartbeat.close()

    def _take_part(self, connection: Connection[Any]) -> list[tuple[Any, ...]]:
        self._heartbeat.member = self._member
        with translated():
            return connection.execute(
                _QUERIES["take_part"],
                {
                    "consumer": self._consumer,
                    "category": self._category,
                    "member": self._member,
                    "lease": LEASE,
                },
            ).fetchall()

    def _log_changes(self, before: Positions) -> None:
        """Log what has changed."""
        if self._size > 1:
            self._log.holds(self.positions.partitions)
        now, then = set(self.positions.partitions), set(before.partitions)
        taken, gone = sorted(now - then), sorted(then - now)
        if gone:
            self._log.info("partitions_left", left=gone)
        if now and not self._started:
            self._started = True
            self._log.info(
                "consumer_started",
                position=self.positions.lowest,
                epoch=self.positions.epoch,
            )
        elif taken:
            self._log.info("partitions_taken", taken=taken, position=self.positions.lowest)
        if not now and not self._standing_by:
            self._log.info("standing_by")
        self._standing_by = not now
