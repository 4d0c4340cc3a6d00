"""The messages of a command: its causes, its copy, its reissues, and what follows from it.

No index leads from a message to what follows from it. The copy is looked for under the names that
the fields of the command allow, events under the ids that derive from their causes, and everything
else in the log after the command and around what was found.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import permutations
from typing import Any

import msgspec

from consumers.dead_letters import administration
from consumers.dead_letters.letter import Selection
from consumers.story.reading import Reading, cause_of
from reservation.errors import IdempotenceKeyError
from reservation.idempotence.key import key_part
from reservation.messages import stream_name as names
from reservation.messages.comparison import same_json
from reservation.messages.message import StoredMessage, followed_id
from reservation.messages.stream_name import COMPOUND_SEPARATOR, command_category
from reservation.postgres.arrays import IntArray, TextArray

MOST_MESSAGES = 300  # of a story
PART = 5_000  # global positions that are looked at after a message
LOOKED_AT = 1_000  # messages of a stream among which reissues are looked for
_PARTS = 4
_BEFORE = 1_000  # what one transaction writes may lie before what was found of it
_MOST_FIELDS = 12  # of a command, whose values may name a stream
_MOST_EVENTS = 4  # of a message, which are looked for by their ids; the others are beside them

_COMMANDS = command_category("")
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)


@dataclass
class FoundMessages:
    """The found messages of those that were asked for.

    Attributes:
        messages: by their global positions.
        reissues: the global positions of further commands of a key, each with that of the first.
        searched: the parts of the log that were looked at.
        is_cut: whether there are more messages than a story holds.
    """

    messages: dict[int, StoredMessage] = field(default_factory=dict)
    reissues: dict[int, int] = field(default_factory=dict)
    searched: list[tuple[int, int]] = field(default_factory=list)
    is_cut: bool = False

    def add(self, messages: Sequence[StoredMessage]) -> set[int]:
        """Add messages as long as there is room; return the global positions of those in it."""
        for message in messages:
            if len(self.messages) >= MOST_MESSAGES and message.global_position not in self.messages:
                self.is_cut = True
                break
            self.messages[message.global_position] = message
        return self.messages.keys() & {message.global_position for message in messages}


def follow(reading: Reading, found: FoundMessages, asked: StoredMessage) -> None:
    """Find what belongs to the command that a message is, or follows from."""
    line = [asked, *reading.causes_of(asked)]
    found.add(line)
    command = next((message for message in line if is_command(message)), line[-1])
    first = _first_of_key(reading, command)
    if first is not None and cause_of(first) != command.global_position:
        reissue, line = command.global_position, reading.causes_of(first)
        command = line[0]
        found.add(line)
        found.reissues[reissue] = command.global_position
    own = found.add([command] if first is None else [command, first])
    own |= {m.global_position for m in line if m.global_position > command.global_position}
    own |= found.add(_events(reading, [found.messages[n] for n in own]))
    found.add(_events(reading, [m for m in line if m.global_position not in own]))
    _search(reading, found, command, own)
    _find_reissues(reading, found, command, own)


def is_command(message: StoredMessage) -> bool:
    """Return whether a message is in a category of commands."""
    return names.category(message.stream_name).endswith(_COMMANDS)


def component_of(message: StoredMessage) -> str | None:
    """Return the component whose command a message is, or follows from; None if it is neither."""
    for stream in (message.stream_name, message.metadata.causation_message_stream_name or ""):
        category = names.category(stream)
        if category.endswith(_COMMANDS):
            return category[: -len(_COMMANDS)]
    return None


def is_copy(message: StoredMessage) -> bool:
    """Return whether a message is the reserved copy of a command.

    What handlers write has an id that derives from its cause.
    """
    cause = names.category(message.metadata.causation_message_stream_name or "")
    is_first = message.position == 0 and cause.endswith(_COMMANDS) and not is_command(message)
    is_event = names.category(message.stream_name) == component_of(message)
    return is_first and not is_event and uuid.UUID(message.id).version != 5


def _ids(message: StoredMessage) -> list[str]:
    """Return the values of a message that may be the id of its entity, or a part of its key."""
    entity = names.cardinal_id(message.stream_name)
    ids = [] if entity is None else [entity]
    try:
        data = _decoder.decode(message.data or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return ids
    for name, value in data.items() if isinstance(data, dict) else ():
        try:
            ids.append(key_part(value, name))
        except IdempotenceKeyError:
            continue
    return list(dict.fromkeys(ids[: 1 + _MOST_FIELDS]))


def _first_of_key(reading: Reading, command: StoredMessage) -> StoredMessage | None:
    """Return the copy of a command or of the first one of its key, or what started its entity."""
    component = component_of(command)
    if component is None or not is_command(command):
        return None
    ids = _ids(command)
    pairs = list(permutations(ids, 2))
    keys: list[tuple[str, ...]] = [*((id_,) for id_ in ids), *pairs]
    keys += [(ids[0], *pair) for pair in pairs]
    streams = {
        f"{category}-{COMPOUND_SEPARATOR.join(key)}"
        for consumer, category in reading.groups
        if consumer == component
        for key in keys
    }
    streams |= {f"{component}-{id_}" for id_ in ids}
    firsts = [message for message in reading.first_of(streams) if not is_command(message)]
    own = [message for message in firsts if cause_of(message) == command.global_position]
    repeated = (m for m in firsts if _repeats(reading, command, m, reading.causes_of(m, 1)))
    return own[0] if own else next(repeated, None)


def _repeats(
    reading: Reading, command: StoredMessage, first: StoredMessage, causes: Sequence[StoredMessage]
) -> bool:
    """Return whether a command is a reissue of, or in conflict with, the cause of `first`."""
    if not causes or causes[0].type != command.type or not is_command(causes[0]):
        return False
    if is_copy(first) or same_json(command.data or "null", causes[0].data or "null"):
        return True
    letters = administration.find(
        reading.connection, Selection(), states=None, global_positions=[command.global_position]
    )
    return any(letter.reason == "conflict" for letter in letters)


def _events(reading: Reading, causes: Sequence[StoredMessage]) -> list[StoredMessage]:
    """Return what the consumers of some messages wrote to their entities, by its ids."""
    ids = [
        followed_id(cause.id, f"{consumer}-{id_}", n)
        for cause in causes
        for consumer, category in reading.groups
        if category == names.category(cause.stream_name)
        for id_ in _ids(cause)
        for n in range(_MOST_EVENTS)
    ]
    return reading.by_ids(ids)


def _search(reading: Reading, found: FoundMessages, command: StoredMessage, own: set[int]) -> None:
    """Look for what follows in the log after a command, and around what was found beyond."""
    until = command.global_position
    for _ in range(_PARTS):
        start = min((n for n in own if n >= until), default=None)
        if start is None or until >= reading.end_of_log:
            return
        after = max(until, start - _BEFORE)
        until = min(start + PART, reading.end_of_log)
        found.searched.append((after, until))
        causes = IntArray(sorted(own))
        limit = MOST_MESSAGES + 1
        more = reading.messages("following", causes=causes, after=after, until=until, limit=limit)
        own |= found.add(more)


def _find_reissues(
    reading: Reading, found: FoundMessages, command: StoredMessage, own: set[int]
) -> None:
    """Find further commands with the key of a command, in its stream."""
    firsts = [found.messages[n] for n in sorted(own) if found.messages[n].position == 0]
    first = next((m for m in firsts if _is_key_of(command, m)), None)
    if first is None:
        return
    entity, *key = names.ids(first.stream_name)
    # The id of the entity may be in the name of the command's stream only.
    parts = key if key and entity == names.cardinal_id(command.stream_name) else [entity, *key]
    more = reading.messages(
        "with_key",
        stream=command.stream_name,
        after=command.position,
        type=command.type,
        parts=TextArray(parts),
        looked_at=LOOKED_AT,
        limit=MOST_MESSAGES,
    )
    again = [message for message in more if _repeats(reading, message, first, [command])]
    found.reissues |= dict.fromkeys(found.add(again), command.global_position)


def _is_key_of(command: StoredMessage, first: StoredMessage) -> bool:
    """Return whether the stream that a message begins is named by the key of a command."""
    if cause_of(first) != command.global_position or not is_command(command):
        return False
    return is_copy(first) or names.category(first.stream_name) == component_of(command)
