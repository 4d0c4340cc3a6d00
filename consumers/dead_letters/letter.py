"""A message that was not handled, and what is stored about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from reservation.errors import ReservationError
from reservation.messages.message import printable

STATES = ("waiting", "parked", "dead", "handled", "discarded")
OPEN = STATES[:3]


class LetterError(ReservationError):
    """A dead letter does not exist, or cannot be changed as requested."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that was not handled, as ``reservation.dead_letters`` has it.

    Attributes:
        consumer: the component's name.
        category: the category that was read.
        global_position: that of the message.
        message_id: that of the message.
        stream_name: the message's stream.
        type: the message's type.
        entity: whose messages wait behind it; None if none do.
        state: one of `STATES`.
        reason: the kind of fault, or parked.
        error: what went wrong, without anything of the message's data.
        error_type: the class of the exception that the component's code raised; None if it raised
            none.
        error_place: where in the component's own code it was raised, if there.
        digest: the same for the same fault.
        attempts: how often it was tried.
        process: host and id of the process that wrote it.
        created_at: when the consumer passed it.
        changed_at: when its state changed last.
        corrected: whether it was given other data for its message to be handled with.
        next_attempt_at: of one that is waiting, when it is tried again.
        behind: of one that is parked, the global position of the first of its queue.
    """

    consumer: str
    category: str
    global_position: int
    message_id: str
    stream_name: str
    type: str
    entity: str | None
    state: str
    reason: str
    error: str | None
    error_type: str | None
    error_place: str | None
    digest: str | None
    attempts: int
    process: str
    created_at: datetime
    changed_at: datetime
    corrected: bool
    next_attempt_at: datetime | None
    behind: int | None

    def __str__(self) -> str:
        """Name the letter in errors."""
        return (
            f"{printable(self.type)} at {printable(self.stream_name)}, global position "
            f"{self.global_position}, of the consumer {self.consumer} of {self.category}"
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of letters; what is None does not narrow it.

    Attributes:
        consumer: those of this consumer.
        category: those of this category.
        entity: those of this entity.
    """

    consumer: str | None = None
    category: str | None = None
    entity: str | None = None


@dataclass(frozen=True, slots=True)
class StateChange:
    """The result of a change of states.

    Attributes:
        letters: those whose state was changed, as they were before.
        waiting: how many are parked behind them.
    """

    letters: Sequence[Letter]
    waiting: int


@dataclass(frozen=True, slots=True)
class Content:
    """The stored content of a letter's message.

    Attributes:
        data: the payload, as JSON; a text that says so if it is too large to be read.
        metadata: the same of the metadata.
        time: when it was written; None if that cannot be read.
        position: in its stream.
    """

    data: str | None
    metadata: str | None
    time: datetime | None
    position: int


@dataclass(frozen=True, slots=True)
class Raised:
    """The stored exception, with ``--errors full``; it may hold data of the message.

    Attributes:
        error_text: its text; None if it was not kept.
        error_traceback: its traceback; None if it was not kept.
    """

    error_text: str | None = None
    error_traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """The data that a letter was given for its message to be handled with, and who gave it.

    Attributes:
        by: the database user.
        on_behalf_of: who asked, as the program says that was connected; None where it says nothing.
        at: when.
        reason: why.
        data: the data, as JSON.
    """

    by: str
    on_behalf_of: str | None
    at: datetime
    reason: str
    data: str
