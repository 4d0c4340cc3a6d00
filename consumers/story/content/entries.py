"""What a story is made of."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from consumers.dead_letters.history import LetterDecision
from consumers.dead_letters.stored_letters import StoredLetter
from consumers.story.content.difference import Difference
from reservation.inspection.schedule import ScheduledMessage
from reservation.messages.message import StoredMessage


class Kind(StrEnum):
    """What an entry of a story is."""

    COMMAND = "command"
    REISSUE = "reissue"  # the same intent sent again: a duplicate
    CONFLICT = "conflict"  # the same key with other content
    RESERVATION = "reservation"  # the copy that a command's key admits
    EVENT = "event"
    REJECTION = "rejection"
    NO_EVENT = "no event"  # a pseudo event: handled, and nothing followed
    FURTHER = "further message"
    CORRECTION = "correction"
    MESSAGE = "message"  # of a stream or a correlation, whose cause is not part of the story
    SCHEDULED = "scheduled message"
    PASS = "pass"  # noqa: S105  a subscribed message that no event followed from
    LETTER = "dead letter"
    REQUEST = "HTTP request"


class Meaning(StrEnum):
    """What a text can be taken for."""

    MESSAGE = "message"  # the id of a message
    STREAM = "stream"
    KEY = "key"
    CORRELATION = "correlation"
    POSITION = "position"  # a global position
    REQUEST = "request"  # the key that a keyed HTTP request gives its command


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something else that a text may mean.

    Attributes:
        text: what to ask for instead.
        meaning: what that is to be taken for.
        described: what it is, in a phrase.
    """

    text: str
    meaning: Meaning
    described: str


@dataclass(frozen=True, slots=True)
class Pass:
    """That a consumer passed a subscribed message without an event.

    Attributes:
        consumer: the component's name.
        category: the category that it read.
        reason: ``nothing``, ``written`` or ``duplicate``.
    """

    consumer: str
    category: str
    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request with an idempotency key; what was answered is not read.

    Attributes:
        id: made of who asked and of the key; the key of the command.
        answered_at: when it was answered; None if it was not.
        status: of the answer; None if there is none.
        is_parked: whether it was sent away with 202 before there was an answer.
    """

    id: uuid.UUID
    answered_at: datetime | None
    status: int | None
    is_parked: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One point of a story.

    Attributes:
        kind: what it is.
        time: when, in UTC.
        depth: how many causes lead to it within the story, from 0.
        message: the stored message; of what is about a message, that message if it is known.
        cause: the global position of the message that it follows from, if it says so.
        cause_stream: the stream of that one.
        cause_is_told: whether that one is in the story.
        is_asked: whether the text names it.
        trace: the trace id of its ``traceparent``, 32 hexadecimal digits.
        differences: of a reissue, a corrected reservation or a correction: where its content
            differs from that of ``compared_with``.
        compared_with: the global position of the message whose content it was compared with.
        letter: of a dead letter, it.
        decisions: what people decided about that letter, the last decision first.
        scheduled: of a scheduled message, it.
        passed: of a pass, it.
        request: of an HTTP request, it.
        reason: of a rejection or a correction, the reason that was given.
        by: of a correction, the database user.
    """

    kind: Kind
    time: datetime
    depth: int = 0
    message: StoredMessage | None = None
    cause: int | None = None
    cause_stream: str | None = None
    cause_is_told: bool = False
    is_asked: bool = False
    trace: str | None = None
    differences: tuple[Difference, ...] = ()
    compared_with: int | None = None
    letter: StoredLetter | None = None
    decisions: tuple[LetterDecision, ...] = ()
    scheduled: ScheduledMessage | None = None
    passed: Pass | None = None
    request: Request | None = None
    reason: str | None = None
    by: str | None = None

    @property
    def global_position(self) -> int | None:
        """That of the message, or of the message that it is about."""
        if self.message is not None:
            return self.message.global_position
        return self.letter.global_position if self.letter is not None else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command.

    Attributes:
        text: in a sentence.
        tone: ``good``, ``warn`` or ``bad``.
    """

    text: str
    tone: Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Story:
    """What a store holds of that which a text names.

    Attributes:
        text: what was asked for.
        meaning: what it was taken for; None if it names nothing, or nothing in particular.
        taken_for: the same in a sentence.
        alternatives: what else it may mean.
        outcome: what became of the command; None if the story is not that of a command.
        entries: in order; a message never comes before its cause.
        looked_from: where the part of the log begins that was searched for what follows; None if
            nothing was searched.
        looked_until: the global position where it ends.
        next_after: where the next page begins; None if this is the last one. It is a position of
            the stream for a stream, and a global position for everything else.
        notes: what a reader has to know of what is missing.
    """

    text: str
    meaning: Meaning | None = None
    taken_for: str = ""
    alternatives: tuple[Alternative, ...] = ()
    outcome: Outcome | None = None
    entries: tuple[Entry, ...] = ()
    looked_from: int | None = None
    looked_until: int | None = None
    next_after: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def traces(self) -> tuple[str, ...]:
        """The trace ids in it, each once, in order."""
        return tuple(dict.fromkeys(entry.trace for entry in self.entries if entry.trace))
