"""The loop: batch after batch until told to stop, waiting where the category ends."""

from typing import Any

import structlog
from psycopg import Connection

from consumers.batch import Batch
from consumers.position import Position
from consumers.stopping import Stop
from reservation.component import Component
from reservation.errors import LockTimeoutError, MessageError
from reservation.store.errors import RUN_AGAIN

# A batch that lost a race runs again with care, where no other writer can be first. One that loses
# that often all the same meets something that running again does not mend.
MAX_LOST_RACES = 10


class Consumer:
    """One of a component's consumers: of its commands, or of a reservation category."""

    def __init__(
        self,
        connection: Connection[Any],
        component: Component,
        category: str,
        *,
        batch_size: int = 500,
        poll_interval: float = 0.1,
    ) -> None:
        """Prepare; nothing is read or claimed before `run`.

        Args:
            connection: for this consumer alone, not in a transaction.
            component: whose handlers decide.
            category: the category to read.
            batch_size: how many messages to deal with in one transaction.
            poll_interval: seconds between two looks at a category that had nothing new.
        """
        self._connection = connection
        self._component = component
        self._category = category
        self._batch_size = batch_size
        self._poll_interval = poll_interval
        self._log = structlog.get_logger().bind(consumer=component.name, category=category)

    def run(self, stop: Stop) -> None:
        """Deal with every message, in order, until told to stop.

        Raises:
            MessageError: a message can not be dealt with; the position is before it.
            PositionLostError: another process has taken over.
            DatabaseUnavailableError: the connection was lost.
        """
        position = self._claim(stop)
        if position is None:
            return
        batch = Batch(self._connection, self._component, position)
        self._log.info("consumer_started", position=position.position, epoch=position.epoch)
        while not stop.requested:
            if not self._next(batch, position, stop):
                stop.wait(self._poll_interval)
        self._log.info("consumer_stopped", position=position.position)

    def _claim(self, stop: Stop) -> Position | None:
        """Claim the position, waiting for a transaction that is moving it; None when stopped."""
        while True:
            try:
                return Position.claim(self._connection, self._component.name, self._category)
            except LockTimeoutError:
                self._log.info("lock_awaited")
                if stop.requested:
                    return None

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
                self._log.info("race_lost", times=lost, error=type(error).__name__)
                if lost == MAX_LOST_RACES:
                    raise
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
