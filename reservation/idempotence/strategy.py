"""What the ways to make a handler idempotent have in common.

A strategy is declared for a handler: ``@account.handle(Deposit, once=Processed())``. For each batch
it is asked once which of the messages are there again, with all of them to see, and may then change
what is written for those that are not. What it keeps for later, it writes in the transaction that
writes the effects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psycopg import Connection

from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that a handler may be called for.

    Attributes:
        message: the message as it is stored.
        command: what it says.
        entity_stream: the stream of the entity that it is for.
        unordered: whether later messages of that entity may have been handled before, because its
            category has several partitions and this message is not in that of the entity.
    """

    message: StoredMessage
    command: object
    entity_stream: str
    unordered: bool = False


class Check(Protocol):
    """What a strategy found out about the messages of one batch.

    It is asked about them one by one, in their order, and told of the effects of each that it let
    through before it is asked about the next.
    """

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Tell whether a message must take no effect, because it is there again."""

    def effects(
        self, incoming: Incoming, events: Sequence[object], metadata: Metadata
    ) -> tuple[Sequence[object], Metadata]:
        """Return the events to write for a message that was handled, and their metadata.

        Args:
            incoming: the message.
            events: what its handler returned.
            metadata: that of a message that follows it.
        """

    def record(self) -> None:
        """Keep what is needed to know the messages again, once their effects are written."""


class Strategy(Protocol):
    """A way to be idempotent, as it is declared for a handler."""

    def declare(self, command: type) -> None:
        """Make sure that it can be used for a command.

        Raises:
            DeclarationError: it can not.
        """

    # Any: connections differ in what their rows are.
    def begin(
        self, connection: Connection[Any], consumer: str, category: str, batch: Sequence[Incoming]
    ) -> Check:
        """Look at the messages of a batch, in a constant number of statements.

        Args:
            connection: in the transaction that writes their effects.
            consumer: the component's name.
            category: the category that the messages are read from.
            batch: the messages whose handlers have this strategy, in their order.
        """
