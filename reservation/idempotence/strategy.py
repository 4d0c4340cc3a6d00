"""The interface of the strategies that make a handler idempotent.

A strategy is declared for a handler: ``@account.handle(Deposit, once=Processed())``. Once for each
batch it looks up which of the messages have been handled. For each of the others it may change
what is written. What it remembers is written in the transaction that writes the effects.

A new strategy is one module with a subclass of `Strategy` and its SQL, an export in `reservation`
and a page in the documentation. Its properties say in what it differs from the others; the
consumers and the Spark jobs ask these and nothing else.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
from psycopg import Connection

from reservation.errors import SerializationError
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.postgres.error_translation import translation
from reservation.postgres.exchange.request import Request
from reservation.postgres.sqlstates import RECORDED, is_condition
from reservation.store.statements import Statement


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message that a handler may be called for.

    Attributes:
        message: the message as it is stored.
        command: the decoded command.
        entity_stream: the stream of the entity that the message is for.
        unordered: whether later messages of that entity may have been handled before, because its
            category has several partitions and this message is not in that of the entity.
        names: the types that messages of the command's class are stored under, if the class has
            former names: its own name first; none if it has no others.
    """

    message: StoredMessage
    command: object
    entity_stream: str
    unordered: bool = False
    names: tuple[str, ...] = ()


def record_failed(consumer: str, error: psycopg.Error) -> Exception:
    """Return the error for records that could not be written."""
    if not is_condition(error, RECORDED):
        return translation(error)
    return SerializationError(
        f"Another process of the consumer {consumer} has handled messages of this batch; run it "
        f"again from its start"
    )


class Check(Protocol):
    """A strategy's check of the messages of one batch.

    The messages are checked in their order. The effects of each message that passes are given to
    the check before the next message is.
    """

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether a message has been handled, so that it must not take effect again."""

    def ordering_key(self, incoming: Incoming) -> Hashable | None:
        """Return what a message is recognized by that messages of other entities may have too.

        Such messages are handled one after the other; None if there are none.
        """
        del incoming
        return None

    def forget(self, incoming: Incoming) -> None:
        """Forget a message that was found to be no duplicate, because its handler failed.

        It is handled later. Until the end of the batch no other message of its entity follows.
        """
        del incoming

    def effects(
        self, incoming: Incoming, events: Sequence[object], metadata: Metadata
    ) -> tuple[Sequence[object], Metadata]:
        """Return the events to write for a message that was handled, and their metadata."""
        del incoming
        return events, metadata

    def record(self) -> Sequence[Request]:
        """Return what stores what is needed to recognize the messages, after their effects."""
        return ()


class Strategy(Protocol):
    """Keeps a handler idempotent, as it is declared for that handler.

    A class that inherits from this one need only define `look`. Equal strategies share a `Check`.
    """

    @property
    def keeps_state(self) -> bool:
        """Whether handlers change a state that is kept, and are called again for a duplicate."""
        return False

    @property
    def leaves_trace(self) -> bool:
        """Whether handled messages are recognized by what their events carry, so by the log."""
        return False

    @property
    def keeps_records(self) -> bool:
        """Whether `forget` lets handled messages be handled anew."""
        return False

    @property
    def needs_order(self) -> bool:
        """Whether a message is refused if later ones of its entity may have been handled before."""
        return False

    def categories(self, consumer: str) -> Sequence[str]:
        """Return the categories that are written besides those of the events.

        Args:
            consumer: the component's name.
        """
        del consumer
        return ()

    def declare(self, component: str, command: type, entity: type | None) -> None:
        """Make sure that the strategy can be used for a command.

        Args:
            component: the component's name.
            command: the command's class.
            entity: the component's entity, None if it has none.

        Raises:
            DeclarationError: it cannot.
        """
        del component, command, entity

    def forget(
        self, connection: Connection[Any], consumer: str, category: str, types: Sequence[str]
    ) -> None:
        """Remove the records by which messages are recognized, where there are such.

        Args:
            connection: of the owner of the store, in a transaction.
            consumer: the component's name.
            category: the category of the messages.
            types: the types whose handlers have this strategy.
        """
        del connection, consumer, category, types

    def look(self, consumer: str, category: str, batch: Sequence[Incoming]) -> Statement[Check]:
        """Return the statement that looks at the messages of a batch.

        It is sent with what loads their entities, in the transaction that writes their effects, and
        may be prepared: its plan must not depend on the size of a table, as that of a call of a
        function does not.

        Args:
            consumer: the component's name.
            category: the category that the messages are read from.
            batch: the messages whose handlers have this strategy, in their order.
        """
