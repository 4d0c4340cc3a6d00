"""What a text is taken for: the id of a message, a stream, a key, a correlation or a position.

Every way in which a text may be meant is tried. The first that the store has something for is
taken, and the others are offered. Where one way finds several things, none of them is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from consumers.story.content.entries import Alternative, Entry, Meaning
from consumers.story.content.kinds import is_command, is_copy
from consumers.story.search.accounts import as_uuid, requests_of, scheduled_entry
from consumers.story.search.reading import Reading
from reservation.messages import stream_name as names
from reservation.messages.message import StoredMessage, printable
from reservation.messages.stream_name import MAX_BYTES
from reservation.postgres.arrays import UuidArray

_MOST_FOUND = 10
_RECENT = 10_000  # global positions at the end of the log
_LAST_POSITION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Taken:
    """What a text was taken for; nothing has a meaning if it is not known.

    Attributes:
        meaning: what it is.
        described: the same in a sentence.
        message: of the id of a message, a key and a position, the message.
        stream: of a stream or a correlation, its name.
        entry: of what is not in the log, what is known of it.
        alternatives: what else it may mean.
        notes: what a reader has to know of what was not found.
    """

    meaning: Meaning | None = None
    described: str = ""
    message: StoredMessage | None = None
    stream: str | None = None
    entry: Entry | None = None
    alternatives: tuple[Alternative, ...] = ()
    notes: tuple[str, ...] = ()


def recognize(reading: Reading, text: str, meaning: Meaning | None = None) -> Taken:
    """Return what a text is taken for.

    Args:
        reading: the store.
        text: the text, without spaces around it.
        meaning: what it is to be taken for; None to find out.
    """
    if not text or len(text.encode("utf-8", "replace")) > MAX_BYTES or not _is_storable(text):
        return Taken(notes=("No message, stream or key can have this name.",))
    if meaning is not None:
        return _first(_TAKERS[meaning](reading, text), _nothing(meaning))
    found = [
        *_by_id(reading, text),
        *_by_request(reading, text),
        *_by_stream(reading, text),
        *_by_key(reading, text, everywhere=False),
    ]
    if not found:
        found = _by_category(reading, text)
    if not found:
        found = [*_by_key(reading, text, everywhere=True), *_by_position(reading, text)]
    if not found:
        found = _by_content(reading, text)
    if not found and not names.is_category(text):
        found = _by_correlation(reading, text)
    taken = _first(found, _nothing(None))
    return replace(taken, alternatives=_with_guesses(reading, text, taken))


def _first(found: Sequence[Taken], nothing: Taken) -> Taken:
    """Return the first of what was found, with the others offered."""
    if not found:
        return nothing
    taken, *others = found
    same = [other for other in others if other.meaning is taken.meaning]
    offered = tuple(_offer(other) for other in others if other.meaning is not None)
    if taken.meaning is Meaning.KEY and same:
        several = (_offer(taken), *offered)
        return Taken(
            notes=("Several commands have this key; ask for one of them:",), alternatives=several
        )
    return replace(taken, alternatives=(*taken.alternatives, *offered))


def _offer(taken: Taken) -> Alternative:
    if taken.meaning is Meaning.KEY and taken.message is not None:
        return Alternative(taken.message.id, Meaning.MESSAGE, str(taken.message))
    if taken.message is not None:
        return Alternative(taken.message.id, Meaning.MESSAGE, taken.described)
    return Alternative(taken.stream or "", taken.meaning or Meaning.STREAM, taken.described)


def _with_guesses(reading: Reading, text: str, taken: Taken) -> tuple[Alternative, ...]:
    """Return the alternatives, and ways in which the text may be meant that were not tried."""
    offered = list(taken.alternatives)
    is_id, is_category = as_uuid(text) is not None, names.is_category(text)
    if taken.meaning in (Meaning.MESSAGE, Meaning.STREAM, Meaning.POSITION) and (
        is_id or is_category
    ):
        offered.append(Alternative(text, Meaning.KEY, "a key, sought in the names of all streams"))
    if taken.meaning is Meaning.STREAM or (taken.meaning is None and not (is_id or is_category)):
        offered.append(Alternative(text, Meaning.CORRELATION, "a correlation"))
    if taken.meaning is not Meaning.POSITION and _position(text, reading) is not None:
        offered.append(Alternative(text, Meaning.POSITION, f"the global position {text}"))
    return tuple(dict.fromkeys(offered))


def _by_id(reading: Reading, text: str) -> list[Taken]:
    id_ = as_uuid(text)
    if id_ is None:
        return []
    found = reading.messages("by_id", ids=UuidArray([id_]))
    if found:
        return [Taken(Meaning.MESSAGE, f"the id of {found[0]}", found[0])]
    return [
        Taken(Meaning.MESSAGE, "the id of a scheduled message", entry=scheduled_entry(row))
        for row in reading.rows("scheduled_by_id", id=id_)
    ]


def _by_request(reading: Reading, text: str) -> list[Taken]:
    id_ = as_uuid(text)
    found = [] if id_ is None else requests_of(reading, [id_])
    described = "the key that an HTTP request gave its command"
    if not found:
        return []
    keyed = _by_key(reading, str(id_), everywhere=True) or _by_content(reading, str(id_))
    message = keyed[0].message if keyed else None
    return [Taken(Meaning.REQUEST, described, message, entry=found[0])]


def _by_stream(reading: Reading, text: str) -> list[Taken]:
    if names.is_category(text) or not reading.first_of([text]):
        return []
    return [Taken(Meaning.STREAM, f"the stream {printable(text)}", stream=text)]


def _by_key(reading: Reading, text: str, *, everywhere: bool = True) -> list[Taken]:
    """Return the reservations of a key, and streams that it is the id of.

    Args:
        reading: the store.
        text: the key.
        everywhere: whether to search the names of all streams for one that ends with the key, too.
    """
    streams = [f"{category}{names.ID_SEPARATOR}{text}" for category in reading.categories]
    first = list(reading.first_of(streams).values())
    if everywhere:
        ending = names.COMPOUND_SEPARATOR + text
        rows = reading.rows("ending_with", ending=ending, limit=_MOST_FOUND + 1)
        first += reading.first_of([row[0] for row in rows]).values()
    reserved, others = [], []
    for message in first:
        causes = reading.causes_of(message, 1)
        name = printable(message.stream_name)
        if causes and is_copy(message, causes[0]):
            reserved.append(Taken(Meaning.KEY, f"the key of the reservation {name}", message))
        else:
            others.append(Taken(Meaning.STREAM, f"the stream {name}", stream=message.stream_name))
    processed = reading.at([row[0] for row in reading.rows("processed", key=text)])
    remembered = [Taken(Meaning.KEY, f"the key of {message}", message) for message in processed]
    return reserved + remembered + others


def _by_correlation(reading: Reading, text: str) -> list[Taken]:
    del reading  # whether there are any shows when they are read
    return [Taken(Meaning.CORRELATION, f"the correlation {printable(text)}", stream=text)]


def _by_position(reading: Reading, text: str) -> list[Taken]:
    position = _position(text, reading)
    found = [] if position is None else reading.at([position])
    return [Taken(Meaning.POSITION, f"the global position of {m}", m) for m in found]


def _position(text: str, reading: Reading) -> int | None:
    if not text.isascii() or not text.isdigit() or len(text) > len(str(_LAST_POSITION)):
        return None
    return int(text) if 0 < int(text) <= reading.end_of_log else None


def _by_category(reading: Reading, text: str) -> list[Taken]:
    if text not in reading.categories:
        return []
    rows = reading.rows("newest_of_category", category=text, limit=_MOST_FOUND)
    offered = [
        Alternative(name, Meaning.STREAM, f"the stream {printable(name)}")
        for name in dict.fromkeys(row[0] for row in rows)
    ]
    note = f"{printable(text)} is a category, which has many stories. These streams are its newest."
    return [Taken(alternatives=tuple(offered), notes=(note,))]


def _by_content(reading: Reading, text: str) -> list[Taken]:
    """Return the newest messages that hold a text: a command that is not reserved is found so."""
    after = max(0, reading.end_of_log - _RECENT)
    found = reading.messages("holding", after=after, value=text, limit=_MOST_FOUND)
    commands = [message for message in found if is_command(message)]
    if len(commands) == 1:
        return [Taken(Meaning.KEY, f"what a field of {commands[0]} holds", commands[0])]
    offered = tuple(Alternative(m.id, Meaning.MESSAGE, str(m)) for m in found)
    note = f"No stream has this name or key. These of the newest {_RECENT:,} messages hold it."
    return [Taken(alternatives=offered, notes=(note,))] if found else []


def _nothing(meaning: Meaning | None) -> Taken:
    what = "message, stream, key or correlation" if meaning is None else meaning.value
    return Taken(notes=(f"The store has no {what} of this name.",))


def _is_storable(text: str) -> bool:
    return text.isprintable() or not any(c < " " or "\ud800" <= c <= "\udfff" for c in text)


_TAKERS = {
    Meaning.MESSAGE: _by_id,
    Meaning.REQUEST: _by_request,
    Meaning.STREAM: _by_stream,
    Meaning.KEY: _by_key,
    Meaning.CORRELATION: _by_correlation,
    Meaning.POSITION: _by_position,
}
