"""Revisions on the sender's side: numbers that only rise, from the database or from a clock."""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from psycopg import Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from reservation.errors import DeclarationError, ReservationError, StoreError
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.idempotence", "revision.sql")

Scope = Literal["entity", "global"]

# Revisions in a millisecond of the clock. (The form is that of Uhrig, 2019.)
PER_MILLISECOND = 1_000_000

# How far ahead of the last revision the file is synced, so that not every draw waits for the disk.
_AHEAD = 1000 * PER_MILLISECOND

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class DatabaseRevisions:
    """Revisions from a counter in the database, drawn in the transaction that writes the message.

    They rise in the order of the commits, for each entity or for all, over all machines. They have
    gaps where a transaction was rolled back after others had drawn; none is drawn twice.

    A sequence would not do: it gives its numbers at once and asks nobody to wait, so of two
    transactions the one with the higher revision may commit first, and a consumer that has seen it
    discards the other. The counter's row is locked instead, until the transaction ends. Senders of
    one entity, or with a global counter all senders, so write one after another. A transaction that
    draws for several entities draws for them in one sorted order, or two of them may end in a
    deadlock, which is a `SerializationError`.
    """

    def __init__(self, connection: Connection[Any], scope: Scope = "entity") -> None:
        """Prepare.

        Args:
            connection: the sender's, in the transaction that writes the messages when `next` is
                called. A sender may draw for the entities that its categories are of.
            scope: whether each entity has a counter of its own, or all have one. A sender draws
                from the latter if it was granted with ``--global-revisions``.

        Raises:
            DeclarationError: the scope is none that there is.
        """
        if scope not in get_args(Scope):
            raise DeclarationError(
                f"DatabaseRevisions: scope={scope!r} is neither 'entity' nor 'global'"
            )
        self._connection = connection
        self._scope = scope

    def next(self, entity: str) -> int:
        """Return the next revision of an entity, from 1.

        Args:
            entity: the stream of the entity that the message is for.

        Raises:
            StoreError: the connection is not in a transaction, which would have to keep others from
                drawing until the message is written.
            SerializationError, LockTimeoutError: as for any statement of the store.
        """
        connection = self._connection
        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            raise StoreError(
                "A revision is drawn in the transaction that writes its message, and the "
                "connection is in none; draw and write within `with connection.transaction():`"
            )
        name = "" if self._scope == "global" else entity
        cursor = Cursor(connection, row_factory=tuple_row)
        with translated():
            ((revision,),) = cursor.execute(_QUERIES["next"], [name], prepare=False).fetchall()
        return int(revision)


class ClockRevisions:
    """Revisions from a clock: its milliseconds, times 1,000,000, plus a number in sequence.

    They rise strictly for all threads and processes of a machine that share the file, over restarts
    of the processes and of the machine, and where the clock steps back: then they go on from the
    last. They need no database.

    **Across machines they do not**: two clocks differ, so what a machine numbers later may have
    the lower revision, and a consumer would discard it. Give each machine, that is each file, a
    *source* of its own, which the consumer keeps apart; or draw from `DatabaseRevisions`. The file
    belongs on a disk of the machine, not on one that machines share. If it is deleted while the
    clock is behind what was drawn, revisions repeat. Two threads that draw for one entity must also
    *send* in that order: the generator numbers messages, it does not line them up.

    A revision is about 1.8e18, which 64 bits hold until the year 2262. Readers that take JSON
    numbers for floats, as JavaScript does, lose its last digits.
    """

    def __init__(
        self, path: str | os.PathLike[str], clock: Callable[[], int] = time.time_ns
    ) -> None:
        """Prepare; the file is made when the first revision is drawn.

        Args:
            path: the file that holds the last revision, in a folder that is there.
            clock: returns nanoseconds since 1970.
        """
        self._path = Path(path)
        self._clock = clock
        self._boot = _BOOT.read_text().strip() if _BOOT.exists() else ""

    def next(self) -> int:
        """Return a revision that is greater than all that were returned before.

        Raises:
            ReservationError: the file does not hold what was written to it.
            OSError: it cannot be read or written.
        """
        # Opened each time: a lock by flock is one of the open file, which threads, and processes
        # after a fork, would share.
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            return self._draw(file)
        finally:
            os.close(file)

    def _draw(self, file: int) -> int:
        """Draw from the file, which is locked.

        It holds the last revision; one ahead of it that is on the disk for sure; one that is being
        synced; and the boot id of the machine. After a restart of the machine, the last revision
        may be missing from the disk, but neither of the other two is lower.
        """
        last, sure, syncing, boot = self._parse(os.pread(file, 1000, 0))
        if boot != self._boot or not boot:
            last = max(last, sure, syncing)
        revision = max(last + 1, self._clock() // 1_000_000 * PER_MILLISECOND)
        if revision > sure:
            ahead = revision + _AHEAD if self._boot else revision
            self._write(file, last, sure, ahead)
            os.fsync(file)
            if not last:
                self._sync_folder()
            sure = ahead
        self._write(file, revision, sure, sure)
        return revision

    def _write(self, file: int, last: int, sure: int, syncing: int) -> None:
        """Write in one piece and of one length, so that who is killed leaves this or the former."""
        os.pwrite(file, f"{last:020} {sure:020} {syncing:020} {self._boot:36}\n".encode(), 0)

    def _parse(self, content: bytes) -> tuple[int, int, int, str]:
        if not content:
            return 0, 0, 0, self._boot
        try:
            last, sure, syncing, *boot = content.decode("ascii").split()
            return int(last), int(sure), int(syncing), boot[0] if boot else ""
        except ValueError as error:
            raise ReservationError(
                f"The file {self._path} does not hold the last revision; restore it, or remove it "
                f"and give the messages another source"
            ) from error

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
