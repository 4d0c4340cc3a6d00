"""The story of what a text names: messages in order, and what is stored about them."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

from psycopg import Connection

from consumers.dead_letters import administration, history
from consumers.dead_letters.history import LetterDecision
from consumers.dead_letters.letter import OPEN, Letter, Selection
from consumers.failures.failure import HELD_UP
from consumers.group.inspection.waits import KINDS
from consumers.story.following import (
    LOOKED_AT,
    MOST_MESSAGES,
    FoundMessages,
    component_of,
    follow,
    is_command,
    is_copy,
)
from consumers.story.reading import Reading, cause_of, reading
from reservation.inspection.schedule import ScheduleEntry
from reservation.messages import stream_name as names
from reservation.messages.message import MAX_POSITION, StoredMessage, followed_id
from reservation.messages.pseudo_event import PSEUDO_EVENT, rejection_of
from reservation.messages.stream_name import MAX_BYTES
from reservation.postgres.arrays import IntArray, UuidArray

MOST = 10  # messages that one text may name
SCHEDULED_LOOKED_AT = 10_000
_MOST_EVENTS = 32  # of one message, which are recognized by their ids
_PASSED = {
    "nothing": "its handler decided on nothing",
    "written": "its handler only wrote messages to other streams",
    "duplicate": "it was recognized as handled before",
}

# Source: W3C Trace Context, 3.2.
_TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class EntryKind(StrEnum):
    """The kind of a story's entry."""

    COMMAND = "command"
    REISSUE = "reissue"  # a further command of the same key
    RESERVATION = "reservation"  # the copy that a command's key admits
    EVENT = "event"
    REJECTION = "rejection"
    NO_EVENT = "no event"  # a pseudo event: handled, and nothing followed
    FURTHER = "further message"
    MESSAGE = "message"  # which follows from nothing that is known
    SCHEDULED = "scheduled message"
    PASS = "pass"  # noqa: S105  a message of another component that no event followed from
    LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class StoryOutcome:
    """The outcome of a command, in a sentence; the tone is for its colour."""

    text: str
    tone: Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One point of a story.

    Attributes:
        kind: what it is.
        time: when, in UTC; None of a message whose time cannot be read.
        depth: how many causes lead to it within the story, from 0.
        message: the stored message; of what is about a message, that message.
        is_asked: whether the text names it.
        outcome: of a command or a reissue, what became of it.
        trace: the trace id of its ``traceparent``, 32 hexadecimal digits.
        reason: of a rejection, the reason that was given; of a pass, what the handler did.
        letter: of a dead letter, it.
        decisions: what people decided about that letter, the last decision first.
        scheduled: of a scheduled message, it.
        consumer: of a pass, whose it is.
    """

    kind: EntryKind
    time: datetime | None
    depth: int = 0
    message: StoredMessage | None = None
    is_asked: bool = False
    outcome: StoryOutcome | None = None
    trace: str | None = None
    reason: str | None = None
    letter: Letter | None = None
    decisions: tuple[LetterDecision, ...] = ()
    scheduled: ScheduleEntry | None = None
    consumer: str | None = None

    @property
    def is_message(self) -> bool:
        """Whether it is a message of the log, and not something about one."""
        return self.kind not in (EntryKind.LETTER, EntryKind.SCHEDULED, EntryKind.PASS)


@dataclass(frozen=True, slots=True)
class Story:
    """The stored story of what a text names.

    Attributes:
        text: what was asked for.
        entries: in the order of the log, with what is about a message after it.
        notes: what a reader has to know of what was not looked for, or cannot be read.
    """

    text: str
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()


def read_story(connection: Connection[Any], text: str) -> Story:
    """Return what a store holds of that which a text names."""
    text = text.strip()
    if not text or len(text.encode("utf-8", "replace")) > MAX_BYTES or not _is_storable(text):
        return Story(text, notes=("No message, stream or key can have this name.",))
    with reading(connection) as store:
        notes, found = [], FoundMessages()
        scheduled = store.rows("scheduled", **_scheduled(id_=_uuid(text)))
        asked = _named(store, text) or store.at([row[0] for row in scheduled if row[0] is not None])
        if len(asked) > MOST:
            asked = asked[:MOST]
            notes.append(f"There are more messages of this name; these are {MOST} of them.")
        for message in asked:
            if message.global_position not in found.messages:
                follow(store, found, message)
        entries = _entries(store, found, {message.global_position for message in asked})
        if not entries:
            entries = [_scheduled_entry(row, 0) for row in scheduled]
            entries += _letters(store, [_position(text) or 0], {})
        if not entries:
            return Story(text, notes=(_NOTHING,))
        return Story(text, tuple(entries), (*notes, *_notes(store, found)))


_DONE = {
    EntryKind.REJECTION: StoryOutcome("Rejected", "warn"),
    EntryKind.EVENT: StoryOutcome("Handled", "good"),
    EntryKind.NO_EVENT: StoryOutcome("Handled, without an event", "good"),
}

_NOTHING = (
    "The store has no stream, message or reservation of this name. A command that is not reserved "
    "is found by its stream or its id."
)


def _named(store: Reading, text: str) -> list[StoredMessage]:
    """Return the messages that a text names: more than `MOST` if there are too many."""
    limit = MOST + 1
    id_, position = _uuid(text), _position(text)
    named = [] if id_ is None else store.by_ids([id_])
    if not names.is_category(text):
        named += store.messages("last_of_stream", stream=text, limit=limit)
    streams = {f"{category}-{text}" for _, category in store.groups}
    named += filter(is_copy, store.first_of(streams))
    named += store.at([row[0] for row in store.rows("processed", key=text, limit=limit)])
    named += [] if position is None else store.at([position])
    if not named:
        rows = store.rows("ending_with", key=text, limit=limit)
        named += filter(is_copy, store.first_of({row[0] for row in rows}))
    return list({message.global_position: message for message in named}.values())


def _notes(store: Reading, found: FoundMessages) -> list[str]:
    notes = [store.notes[n] for n in sorted(store.notes) if n in found.messages]
    if found.is_cut:
        notes.append(
            f"Only {MOST_MESSAGES} messages are shown; ask for one of them to see what follows "
            f"from it."
        )
    parts = ", ".join(f"{after:,} to {until:,}" for after, until in sorted(set(found.searched)))
    if parts:
        notes.append(
            f"The log ends at global position {store.end_of_log:,}. Further messages, and what "
            f"other components made of them, were looked for from {parts}; reissues in the next "
            f"{LOOKED_AT:,} messages of the command's stream."
        )
    return notes


def _entries(store: Reading, found: FoundMessages, asked: set[int]) -> list[Entry]:
    """Return the entries of messages, each followed by those of what is stored about it."""
    about = _about(store, found.messages)
    entries: list[Entry] = []
    depths: dict[int, int] = {}
    for position, message in sorted(found.messages.items()):
        cause = cause_of(message)
        depth = depths[position] = depths[cause] + 1 if cause in depths else 0
        rejection = rejection_of(message)
        time: datetime | None = message.time
        entry = Entry(
            kind=_kind_of(message, found),
            time=None if time is None else time.replace(tzinfo=UTC),
            depth=depth,
            message=message,
            is_asked=position in asked,
            trace=_trace_of(message),
            reason=None if rejection is None else rejection.reason,
        )
        entries += [entry, *(replace(one, depth=depth + 1) for one in about[position])]
    return [
        replace(entry, outcome=_outcome(store, found, entry.message, entries))
        if entry.is_message and entry.message is not None and is_command(entry.message)
        else entry
        for entry in entries
    ]


def _kind_of(message: StoredMessage, found: FoundMessages) -> EntryKind:
    if message.type == PSEUDO_EVENT:
        return EntryKind.NO_EVENT if rejection_of(message) is None else EntryKind.REJECTION
    if message.global_position in found.reissues:
        return EntryKind.REISSUE
    if is_copy(message):
        return EntryKind.RESERVATION
    if component_of(message) == names.category(message.stream_name):
        return EntryKind.EVENT
    cause = found.messages.get(cause_of(message) or 0)
    if cause is None:
        return EntryKind.COMMAND if is_command(message) else EntryKind.MESSAGE
    id_, stream = uuid.UUID(message.id), message.stream_name
    is_event = any(followed_id(cause.id, stream, n) == id_ for n in range(_MOST_EVENTS))
    if is_event or component_of(cause) == names.category(stream):
        return EntryKind.EVENT
    return EntryKind.COMMAND if is_command(message) else EntryKind.FURTHER


def _about(store: Reading, messages: Mapping[int, StoredMessage]) -> dict[int, list[Entry]]:
    """Return what is stored about messages, by their global positions."""
    about: dict[int, list[Entry]] = {position: [] for position in messages}
    positions = sorted(messages)
    ids = UuidArray([uuid.UUID(messages[n].id) for n in positions])
    for entry in _letters(store, positions, messages):
        about[entry.letter.global_position].append(entry)  # type: ignore[union-attr]
    for position, consumer, reason, time in store.rows(
        "passes", positions=IntArray(positions), ids=ids
    ):
        what = _PASSED[reason]
        about[position].append(
            Entry(EntryKind.PASS, time, message=messages[position], reason=what, consumer=consumer)
        )
    for row in store.rows("scheduled", **_scheduled(causes=positions)):
        about[row[0]].append(_scheduled_entry(row))
    return about


def _letters(
    store: Reading, positions: Sequence[int], messages: Mapping[int, StoredMessage]
) -> list[Entry]:
    """Return the dead letters at some positions; a message of another id is of a replaced log."""
    return [
        Entry(
            EntryKind.LETTER,
            letter.created_at,
            message=message,
            letter=letter,
            decisions=tuple(history.of_letter(store.connection, letter)),
        )
        for letter in administration.find(
            store.connection, Selection(), states=None, global_positions=positions
        )
        for message in [messages.get(letter.global_position)]
        if message is None or message.id == letter.message_id
    ]


def _scheduled(id_: uuid.UUID | None = None, causes: Sequence[int] = ()) -> dict[str, object]:
    looked_at = SCHEDULED_LOOKED_AT
    return {"id": id_, "causes": IntArray(causes), "looked_at": looked_at, "limit": MOST_MESSAGES}


def _scheduled_entry(row: tuple[Any, ...], depth: int = 0) -> Entry:
    scheduled = ScheduleEntry(*row[1:])
    time = scheduled.cancelled_at or scheduled.scheduled_at
    return Entry(EntryKind.SCHEDULED, time, depth, scheduled=scheduled)


def _outcome(
    store: Reading, found: FoundMessages, command: StoredMessage, entries: Sequence[Entry]
) -> StoryOutcome:
    """Return what became of a command, by the entries that follow from it or are about it."""
    first = found.reissues.get(command.global_position)
    copies = [e for e in entries if e.kind is EntryKind.RESERVATION and _is_of(e, [command])]
    own = [command, *(entry.message for entry in copies if entry.message is not None)]
    about = [entry for entry in entries if _is_of(entry, own)]
    letters = [entry.letter for entry in about if entry.letter is not None]
    following = {entry.kind for entry in about}
    outcome = (
        _by_letters(letters)
        or next((outcome for kind, outcome in _DONE.items() if kind in following), None)
        or _by_position(store, own[-1], first)
    )
    if any(letter.corrected for letter in letters):
        return StoryOutcome(f"{outcome.text}, corrected", outcome.tone)
    return outcome


def _is_of(entry: Entry, messages: Sequence[StoredMessage]) -> bool:
    """Return whether an entry is about one of some messages, or of one that follows from them."""
    if entry.message is None:
        return False
    position = cause_of(entry.message) if entry.is_message else entry.message.global_position
    return any(message.global_position == position for message in messages)


def _by_letters(letters: Sequence[Letter]) -> StoryOutcome | None:
    for letter in letters:
        if letter.state not in OPEN:
            continue
        if letter.state == "waiting" and letter.reason in HELD_UP:
            return StoryOutcome(f"Waits: {KINDS[letter.reason]}", "warn")
        if letter.state == "waiting" and not letter.attempts:
            return StoryOutcome("Is about to be tried again", "warn")
        if letter.state == "waiting":
            return StoryOutcome(
                f"Waits for its next attempt, after {letter.attempts} failed", "warn"
            )
        if letter.state == "parked":
            return StoryOutcome(f"Parked behind the message at {letter.behind}", "warn")
        if letter.reason == "conflict":
            return StoryOutcome("In conflict with another command of its key", "bad")
        return StoryOutcome(f"A dead letter: {letter.reason}", "bad")
    if any(letter.state == "discarded" for letter in letters):
        return StoryOutcome("A dead letter, which was discarded", "bad")
    return None


def _by_position(store: Reading, message: StoredMessage, first: int | None) -> StoryOutcome:
    """Return what the position of the consumer says, where nothing follows from a command."""
    rows = store.rows(
        "dealt_with",
        consumer=component_of(message),
        category=names.category(message.stream_name),
        stream=message.stream_name,
    )
    if not rows:
        return StoryOutcome("No consumer has read it", "warn")
    dealt_with, is_paused = rows[0]
    if dealt_with < message.global_position:
        paused = ", because its consumer is paused" if is_paused else ""
        return StoryOutcome(f"Not handled yet{paused}", "warn")
    if first is not None:
        return StoryOutcome(f"A duplicate of the command at {first}", "good")
    return StoryOutcome("Read by its consumer; no event that follows was found", "good")


def _trace_of(message: StoredMessage) -> str | None:
    value = message.metadata.properties.get("traceparent")
    matched = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    return None if matched is None else matched[1]


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _position(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_POSITION))
    return int(text) if is_number and int(text) <= MAX_POSITION else None


def _is_storable(text: str) -> bool:
    return text.isprintable() or not any(c < " " or "\ud800" <= c <= "\udfff" for c in text)
