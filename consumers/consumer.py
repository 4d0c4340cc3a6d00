"""The loop: batch after batch until told to stop, waiting where the category ends."""

from typing import Any

import structlog
from psycopg import Connection

from consumers.batch import Batch, BatchResult
from consumers.position import Position
from consumers.stopping import Stop
from reservation.component import Component
from reservation.errors import MessageError
from reservation.store.errors import TRANSIENT

# How often in a row a batch may lose a race to other writers before it counts as an error.
MAX_LOST_RACES = 20


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
        position = Position.claim(self._connection, self._component.name, self._category)
        batch = Batch(self._connection, self._component, position)
        self._log.info("consumer_started", position=position.position, epoch=position.epoch)
        while not stop.requested:
            result = self._next(batch, position)
            if result.read == 0:
                stop.wait(self._poll_interval)
        self._log.info("consumer_stopped", position=position.position)

    def _next(self, batch: Batch, position: Position) -> BatchResult:
        """Run one batch; where that fails, go through it message by message to the one at fault."""
        try:
            return self._once(batch, position, self._batch_size)
        except MessageError as error:
            self._log.warning("batch_failed", position=position.position, error=str(error))
        for _ in range(self._batch_size):
            result = self._once(batch, position, 1)
        return result

    def _once(self, batch: Batch, position: Position, limit: int) -> BatchResult:
        lost = 0
        while True:
            try:
                result = batch.run(limit)
            except TRANSIENT as error:
                lost += 1
                self._log.info("race_lost", times=lost, error=type(error).__name__)
                if lost == MAX_LOST_RACES:
                    raise
            else:
                break
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
        return result
