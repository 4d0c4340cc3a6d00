"""The loop: batch after batch until told to stop, waiting where the category ends.

An error of the database that passes ends nothing: the consumer gets a new connection, reads its
position again and goes on from there. It claims the position once only, so a process that took over
meanwhile keeps it.
"""

from typing import Any

import structlog
from psycopg import Connection

from consumers.backoff import Backoff
from consumers.batch import Batch
from consumers.position import Position
from consumers.session import Session
from consumers.stopping import Stop
from reservation.component import Component
from reservation.errors import LockTimeoutError, MessageError, StoreError
from reservation.store.errors import RUN_AGAIN
from reservation.store.notice import Notices


class Consumer:
    """One of a component's consumers: of its commands, or of a reservation category."""

    def __init__(
        self,
        session: Session,
        component: Component,
        category: str,
        *,
        batch_size: int = 1000,
        poll_interval: float = 0.1,
        notices: Notices | None = None,
        notice_interval: float = 1.0,
    ) -> None:
        """Prepare; nothing is read or claimed before `run`.

        Args:
            session: with the connection for this consumer alone, opened; left open.
            component: whose handlers decide.
            category: the category to read.
            batch_size: how many messages to deal with in one transaction.
            poll_interval: seconds between two looks at a category that had nothing new.
            notices: what waits for notice of new messages between two looks; left open.
            notice_interval: seconds between two looks while notice is given.
        """
        self._session = session
        self._component = component
        self._category = category
        self._batch_size = batch_size
        self._poll_interval = poll_interval
        self._notices = notices
        self._notice_interval = notice_interval
        self._noticed = False
        self._position: Position | None = None
        self._log = structlog.get_logger().bind(consumer=component.name, category=category)

    def run(self, stop: Stop) -> None:
        """Deal with every message, in order, until told to stop.

        Raises:
            MessageError: a message can not be dealt with; the position is before it.
            PositionLostError: another process has taken over.
            StoreError: the database refuses, for a reason that does not pass.
        """
        while not stop.requested:
            try:
                self._go_on(self._session.connection, stop)
            except StoreError as error:
                if not self._session.recover(error, stop):
                    break
                if self._notices is not None:
                    self._notices.renew(self._session.connection)
        if self._position is not None:
            self._log.info("consumer_stopped", position=self._position.position)

    def _go_on(self, connection: Connection[Any], stop: Stop) -> None:
        """Deal with what there is from the stored position on, as long as the connection lasts."""
        position = self._hold(connection, stop)
        if position is None:
            return
        # A new one for each connection: whether what it remembers was committed is not known.
        batch = Batch(connection, self._component, position)
        while not stop.requested:
            dealt_with = self._next(batch, position, stop)
            self._session.works()
            if not dealt_with:
                self._wait(stop)
            elif self._notices is not None:
                self._notices.leave()

    def _wait(self, stop: Stop) -> None:
        """Wait where the category ends: until notice is given, or for a while."""
        notices = self._notices
        if notices is None:
            stop.wait(self._poll_interval)
            return
        notices.wait(self._notice_interval, poll=self._poll_interval, pause=stop)
        if self._noticed != (notices.missing is None):
            self._noticed = notices.missing is None
            if self._noticed:
                self._log.info("notice_awaited")
            else:
                self._log.info("notice_missing", reason=notices.missing)

    def _hold(self, connection: Connection[Any], stop: Stop) -> Position | None:
        """Claim the position the first time, and read it again later; None when stopped.

        Either waits for a transaction that is moving it.
        """
        while True:
            try:
                if self._position is None:
                    self._position = Position.claim(
                        connection, self._component.name, self._category
                    )
                    self._log.info(
                        "consumer_started",
                        position=self._position.position,
                        epoch=self._position.epoch,
                    )
                else:
                    self._position.renew(connection)
            except LockTimeoutError:
                self._log.info("lock_awaited")
                if stop.requested:
                    return None
            else:
                return self._position

    def _next(self, batch: Batch, position: Position, stop: Stop) -> int:
        """Run one batch; where that fails, go through it message by message to the one at fault.

        Returns how many messages were dealt with.
        """
        try:
            return self._once(batch, position, stop, self._batch_size)
        except MessageError as error:
            self._log.warning("batch_failed", position=position.position, error=str(error))
        for done in range(self._batch_size):
            if stop.requested or not self._once(batch, position, stop, 1):
                return done
        return self._batch_size

    def _once(self, batch: Batch, position: Position, stop: Stop, limit: int) -> int:
        lost = 0
        backoff = Backoff()
        while True:
            try:
                result = batch.run(limit, careful=lost > 0)
                break
            except LockTimeoutError:
                self._log.info("lock_awaited", position=position.position)
                if stop.requested:
                    return 0
            except RUN_AGAIN as error:
                lost += 1
                reason = type(error).__name__
                if lost == 1:  # it runs again with care, where no other writer can be first
                    self._log.info("race_lost", error=reason)
                    continue
                delay = backoff.next()
                self._log.warning(
                    "race_lost_again", times=lost, error=reason, delay=round(delay, 3)
                )
                if stop.wait(delay):
                    return 0
        for message, key_stream in result.conflicts:
            self._log.warning(
                "command_conflict",
                type=message.type,
                stream_name=message.stream_name,
                global_position=message.global_position,
                key_stream=key_stream,
            )
        if result.read:
            self._log.info(
                "batch_committed", position=position.position, read=result.read, **result.counts
            )
        return result.read
