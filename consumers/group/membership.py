"""Membership in a group of processes that share a category.

A group has a fixed number of partitions. A process is a member of the groups of all categories that
it reads. A free partition goes to the process that holds the fewest in all of them, and a process
gives partitions back while another that may take them has at least two fewer. One function of the
server does all of that (`reservation.rebalance`); a member calls it at intervals, between two
batches. During a long batch, a thread renews the lease of the member.

A member is gone when it has left, when its session has ended, or when its lease has expired. It may
still be alive then, and only paused: its batch cannot commit, because the member that took its
partitions over has raised their epochs.
"""

import time
import uuid
from typing import Any

from psycopg import Connection

from consumers.group.compatibility import join_beside, store_declaration
from consumers.group.heartbeat import Heartbeat, Lease
from consumers.group.positions import HeldPartition, HeldPartitions
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session, process_name
from reservation.declaration.model_version import ModelVersion
from reservation.errors import GroupError, StoreReplacedError
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.read_models.made_versions import refuse_without_archive
from reservation.read_models.schemas import check_made

# Seconds after which a member that did not renew its lease counts as gone.
LEASE = 3.0

# Seconds between two calls, in which an idle consumer also looks for messages.
REBALANCE_INTERVAL = 1.2

# The same while a partition is free that another member is to take first.
REBALANCE_SOON = 0.3

_QUERIES = load_queries("consumers.group")


def new_worker() -> str:
    """Return an id that only the members of one process share."""
    return str(uuid.uuid4())


class Membership:
    """A process's membership of a group, from joining to leaving it.

    Attributes:
        positions: the partitions that it holds, as of the last `rebalance`.
        head: the global position of the category's last message then.
        abandoned: those that it took then, and that their holder had not given back.
        has_letters: whether the group had letters then that are due at some time.
        next_scheduled: seconds from then until a scheduled message of the store is to be written;
            None without one.
        overdue: for how many seconds the oldest of them was overdue then; None without one.
        pauses: what was paused of the component then; None if nothing was.
        asked_at: when it asked, by the monotonic clock.
    """

    def __init__(
        self,
        session: Session,
        consumer: str,
        category: str,
        partitions: int | None,
        worker: str,
        log: Log,
        declaration: ProcessDeclaration | None = None,
        heartbeat: Heartbeat | None = None,
        model: ModelVersion | None = None,
        *,
        has_archive: bool = False,
    ) -> None:
        self._consumer, self._has_archive = consumer, has_archive
        self._declaration, self._model = declaration, model
        self._category = category
        self._partitions = partitions
        self._worker = worker
        self._log = log
        self._member: int | None = None
        self._first: int | None = None  # the member that it was at first
        self._size = 1
        self._due = 0.0
        heartbeat = heartbeat or Heartbeat(session.address, session.application_name, LEASE)
        self._lease = heartbeat.lease()
        self._started = False
        self._standing_by = False
        self.positions = HeldPartitions(consumer, category)
        self.head = 0
        self.abandoned: tuple[int, ...] = ()
        self.has_letters = False
        self.next_scheduled: float | None = None
        self.overdue: float | None = None
        self.pauses: list[Any] | None = None
        self.asked_at = 0.0

    @property
    def wanted(self) -> int:
        """The group's intended number of partitions; 1 if that is left to the group."""
        return self._partitions or 1

    @property
    def size(self) -> int:
        """The number of partitions when the process joined; 1 before."""
        return self._size

    @property
    def busy(self) -> Lease:
        """The lease, which keeps the member alive while a batch takes long."""
        return self._lease

    @property
    def due(self) -> bool:
        """Whether it is time for a `rebalance`."""
        return time.monotonic() >= self._due

    @property
    def pause(self) -> float:
        """Seconds until then."""
        return max(self._due - time.monotonic(), 0.0)

    @property
    def behind(self) -> bool:
        """Whether the category had messages at the last `rebalance` that are not handled."""
        return bool(self.positions.partitions) and self.head > self.positions.lowest

    def join(self, connection: Connection[Any]) -> None:
        """Become a member, on a new connection; what the process held on another is kept."""
        stopped = []
        with translated(), connection.transaction():
            if self._model is not None:
                check_made(connection, self._model)
                if not self._has_archive:
                    refuse_without_archive(connection, self._model, [self._category])
            if self._declaration is not None:
                join_beside(connection, self._consumer, self._declaration, self._member)
            member, self._size = connection.execute(
                _QUERIES["join_group"],
                {
                    "consumer": self._consumer,
                    "category": self._category,
                    "partitions": self.wanted,
                    "process": process_name(),
                    "worker": self._worker,
                    "lease": LEASE,
                    "former": self._member,
                },
            ).fetchall()[0]
            wanted = self._partitions
            if wanted not in (None, self._size):
                raise GroupError(
                    f"The consumer {self._consumer} of {self._category} has {self._size} "
                    f"partitions, not {wanted}; stop it everywhere and change that with "
                    f"`reservation partitions`"
                )
            if self._declaration is not None:
                stopped = store_declaration(connection, member, self._first, self._declaration)
        for name in stopped:
            self._log.warning("series_stopped", series=name)
        self._member = member
        self._first = self._first or member
        self._due = 0.0

    def rebalance(self, connection: Connection[Any], *, may_release: bool = True) -> None:
        """Renew the lease, and take and give back partitions; not within a batch."""
        rows = self._rebalance(connection, may_release)
        if not rows:
            self._log.warning("taken_for_dead", lease=LEASE)
            self.join(connection)
            rows = self._rebalance(connection, may_release)
        if not rows:  # again: at the next call
            rows = [(self.head, None, [], [], [], [], False, None, False, None, None, self.pauses)]
        self.head, former_positions, partitions, positions, epochs, abandoned = rows[0][:6]
        self.has_letters, foreign, unsettled = rows[0][6:9]
        self.next_scheduled, self.overdue, self.pauses = rows[0][9:]
        if foreign is not None:
            raise StoreReplacedError(self._consumer, self._category, foreign)
        before = self.positions
        held = map(HeldPartition, partitions, positions, epochs)
        self.positions = HeldPartitions(
            self._consumer, self._category, self._size, held, former_positions
        )
        self.abandoned = tuple(abandoned)
        self._due = time.monotonic() + (REBALANCE_SOON if unsettled else REBALANCE_INTERVAL)
        self._log_changes(before)

    def leave(self, connection: Connection[Any]) -> None:
        """Leave the group, and give all partitions back."""
        self._lease.close()
        if self._member is not None:
            with translated():
                connection.execute(_QUERIES["leave_group"], {"member": self._member})
            self._member = None

    def abandon(self) -> None:
        """Leave the group like a killed process, which gives nothing back.

        The member is gone once its session ends, and what it held is taken as `abandoned`.
        """
        self._lease.close()

    def _rebalance(self, connection: Connection[Any], may_release: bool) -> list[tuple[Any, ...]]:
        self.asked_at = time.monotonic()
        self._lease.member, self._lease.renewed = self._member, self.asked_at
        with translated():
            return connection.execute(
                _QUERIES["rebalance"],
                {
                    "consumer": self._consumer,
                    "category": self._category,
                    "member": self._member,
                    "lease": LEASE,
                    "may_release": may_release,
                },
            ).fetchall()

    def _log_changes(self, before: HeldPartitions) -> None:
        """Log which partitions were taken and left."""
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
