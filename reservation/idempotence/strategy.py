"""What the strategies that make a handler idempotent have in common.

A strategy is declared for a handler: ``@account.handle(Deposit, once=Processed())``. Once for each
batch it looks up which of the messages have been handled. For each of the others it may change
what is written. What it remembers is written in the transaction that writes the effects.

A new strategy is one module with a subclass of `Strategy` and its SQL, an export in `reservation`
and a page in the documentation. Its properties say in what it differs from the others; the
consumers and the Spark jobs ask these and nothing else.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeGuard

from psycopg import Connection

from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata


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


class Check(Protocol):
    """What a strategy found out about the messages of one batch.

    The messages are checked in their order. The effects of each message that passes are given to
    the check before the next message is.
    """

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether a message has been handled, so that it must not take effect again.

        Raises:
            ExpiredError: that is no longer known.
        """

    def line(self, incoming: Incoming) -> Hashable | None:
        """Return what a message is recognized by that messages of other entities may have too.

        Such messages are handled one after the other; None if there are none.
        """
        del incoming
        return None

    def take_back(self, incoming: Incoming) -> None:
        """Forget a message that was found to be no duplicate, because its handler failed.

        It is handled later. Until the end of the batch no other message of its entity follows.
        """
        del incoming

    def effects(
        self, incoming: Incoming, events: Sequence[object], metadata: Metadata
    ) -> tuple[Sequence[object], Metadata]:
        """Return the events to write for a message that was handled, and their metadata.

        Args:
            incoming: the message.
            events: what its handler returned.
            metadata: that of a message that follows it.
        """
        del incoming
        return events, metadata

    def record(self) -> None:
        """Store what is needed to recognize the messages, after their effects are written."""
        return


class Strategy(Protocol):
    """How a handler is kept idempotent, as it is declared for that handler.

    A class that inherits from this one need only define `begin`. Equal strategies share a `Check`.
    """

    @property
    def two_phase(self) -> bool:
        """Whether this is a `TwoPhaseStrategy`."""
        return False

    @property
    def leaves_trace(self) -> bool:
        """Whether handled messages are recognized by what their events carry, so by the log."""
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
            command: the command's dataclass.
            entity: the component's entity, None if it has none.

        Raises:
            DeclarationError: it cannot.
        """
        del component, command, entity

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


@dataclass(frozen=True, slots=True)
class FirstHandling:
    """What is stored of the first handling of a message.

    Attributes:
        stream_name: the stream with the version of the state that it made.
        position: the position of that version.
        given: JSON text of the `HandlerInputs` of the handler.
        outputs: JSON text of what it published.
        outputs_hash: the digest of that.
        published: whether that is known to be published.
    """

    stream_name: str
    position: int
    given: str
    outputs: str
    outputs_hash: str
    published: bool


class TwoPhaseCheck(Check, Protocol):
    """What a two-phase strategy found out about the messages of one batch.

    `record` is called before anything is published, and committed with nothing else; `publish`
    together with the outputs, in the next transaction. A duplicate is handled again.
    """

    def state_before(self, incoming: Incoming) -> str | None:
        """Return the state on which to handle a message, as JSON text; None for a new one.

        Raises:
            ExpiredError: the state before the first handling of a duplicate was removed.
            SerializationError: versions were removed meanwhile; run the batch again.
        """

    def first_handling(self, incoming: Incoming) -> FirstHandling:
        """Return what is stored of the first handling of a duplicate."""

    def handled_again(self, incoming: Incoming) -> None:
        """Note that the outputs of a duplicate are going to be published again."""

    def handled(
        self, incoming: Incoming, state: str, given: str, outputs: str, *, as_delta: bool
    ) -> None:
        """Note what the handling of a new message left.

        Args:
            incoming: the message.
            state: the state after it, as JSON text.
            given: JSON text of the `HandlerInputs` of the handler.
            outputs: JSON text of what is going to be published.
            as_delta: whether it is enough to store the fields that changed.
        """

    def publish(self) -> None:
        """Mark what was handled as published, in the transaction that writes the outputs."""

    @property
    def described(self) -> str:
        """What was handled, for errors."""


class TwoPhaseStrategy(Strategy, Protocol):
    """A strategy for which a batch takes two transactions: one stores states, one publishes.

    The handler changes a state instead of reading one from its events. All two-phase handlers of a
    component share their states, so one check serves the messages of them all.
    """

    @property
    def as_delta(self) -> bool:
        """Whether versions of the state need hold only the fields that changed."""

    @property
    def window(self) -> timedelta | None:
        """How long versions of the state are kept at least; None to keep them for ever."""

    def begin(
        self, connection: Connection[Any], consumer: str, category: str, batch: Sequence[Incoming]
    ) -> TwoPhaseCheck:
        """Look at the messages of a batch; see `Strategy.begin`."""


def is_two_phase(strategy: Strategy) -> TypeGuard[TwoPhaseStrategy]:
    """Return whether a strategy takes two transactions."""
    return strategy.two_phase
