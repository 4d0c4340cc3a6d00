"""What belongs to a command: its copy, its reissues, and what follows from it.

No index leads from a message to what follows from it. So the streams are read where that is written
by rule, and the log is searched after the command and around whatever was found, a part at a time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from consumers.story.content.kinds import component_of, is_command, is_copy
from consumers.story.search.naming import Naming, fields_of, holds, key_of, texts_of
from consumers.story.search.reading import Reading, cause_of
from reservation.messages import stream_name as names
from reservation.messages.message import StoredMessage
from reservation.postgres.arrays import IntArray, TextArray

MOST_MESSAGES = 300  # of a story
PART = 20_000  # global positions that are searched after the command
_JUMPS = 2  # how often the search goes on around what was found beyond
_BEFORE = 2_000  # what one transaction writes may lie before what was found of it
_IN_STREAM = 5_000  # messages of one stream that are looked at


@dataclass(slots=True)
class Gathered:
    """What was found.

    Attributes:
        command: the command, or whatever the story is of.
        before: what that follows from, the first cause first.
        messages: all of them, by their global positions.
        copy: its reserved copy.
        reissues: the global positions of further commands with its key.
        looked_until: up to where the log was searched without a gap.
        is_cut: whether there are more messages than a story holds.
    """

    command: StoredMessage
    before: Sequence[StoredMessage]
    messages: dict[int, StoredMessage] = field(default_factory=dict)
    copy: StoredMessage | None = None
    reissues: set[int] = field(default_factory=set)
    looked_until: int = 0
    is_cut: bool = False

    def add(self, found: Sequence[StoredMessage]) -> None:
        """Add messages, the first of the log first, as long as there is room."""
        for message in found:
            if message.global_position in self.messages:
                continue
            if len(self.messages) >= MOST_MESSAGES:
                self.is_cut = True
                return
            self.messages[message.global_position] = message


def gather(
    reading: Reading, naming: Naming, asked: StoredMessage, after: int | None = None
) -> Gathered:
    """Return what belongs to the command that a message is, or follows from.

    Args:
        reading: the store.
        naming: how its commands are reserved.
        asked: the message.
        after: the global position up to which the log was searched before; the search goes on
            from there.
    """
    reissue = None
    command, before, line = _command_of(reading, asked)
    copy = _copy_of(reading, naming, command)
    if copy is not None and cause_of(copy) != command.global_position:
        # A reissue was asked for; the story is that of the command whose copy there is.
        first = reading.causes_of(copy, 1)
        if first:
            reissue, line = command, []
            command, before = first[0], reading.causes_of(first[0])
    found = Gathered(command, before[::-1], copy=copy)
    found.add([*found.before, command, *line, *([copy] if copy is not None else [])])
    _follow_in_streams(reading, naming, found)
    _search(reading, found, after or command.global_position)
    if found.copy is None:
        found.copy = next((m for m in found.messages.values() if is_copy(m, command)), None)
    _find_reissues(reading, naming, found)
    if reissue is not None:
        found.add([reissue, asked])
        found.reissues.add(reissue.global_position)
    corrections = reading.rows(
        "corrections", positions=IntArray(sorted(found.messages)), limit=MOST_MESSAGES
    )
    found.add(reading.at([correction for (correction,) in corrections]))
    return found


def _command_of(
    reading: Reading, asked: StoredMessage
) -> tuple[StoredMessage, list[StoredMessage], list[StoredMessage]]:
    """Return the command that a message is, or the nearest among its causes.

    Returns:
        The command, its own causes, and what leads from it to the message, which is the last.
    """
    line = [asked, *reading.causes_of(asked)]
    for n, message in enumerate(line):
        if is_command(message):
            return message, line[n + 1 :], line[:n][::-1] or [asked]
    return line[-1], [], line[::-1]


def _copy_of(reading: Reading, naming: Naming, command: StoredMessage) -> StoredMessage | None:
    if not is_command(command):
        return None
    streams = naming.key_streams(command)
    first = reading.first_of(streams)
    copies = []
    for copy in [first[name] for name in streams if name in first]:
        causes = reading.causes_of(copy, 1)
        if causes and is_copy(copy, causes[0]):
            if causes[0].global_position == command.global_position:
                return copy
            copies.append(copy)
    # Where the names were guessed and there are several, none of them is sure to be the right one.
    is_sure = len(copies) == 1 or naming.declared_for(command) is not None
    return copies[0] if copies and is_sure else None


def _follow_in_streams(reading: Reading, naming: Naming, found: Gathered) -> None:
    """Find the events in the streams that the entity of a command may have."""
    command, copy = found.command, found.copy
    causes = [m.global_position for m in (command, copy) if m is not None]
    streams = _entity_streams(naming, command, copy)
    if not streams:
        return
    found.add(
        reading.messages(
            "following_in_streams",
            streams=TextArray(streams),
            first=causes[-1],
            causes=IntArray(causes),
            looked_at=_IN_STREAM,
            limit=MOST_MESSAGES,
        )
    )


def _entity_streams(
    naming: Naming, command: StoredMessage, copy: StoredMessage | None
) -> list[str]:
    component = component_of(command)
    if component is None:
        return []
    for declared in naming.components:
        if declared.name == component:
            try:
                return [declared.entity_stream(declared.decode(command))]
            except Exception:  # noqa: BLE001  a class can raise anything
                break
    ids = [names.identifier(command.stream_name), names.cardinal_id(command.stream_name)]
    if copy is not None:
        ids.append(key_of(copy.stream_name, command.stream_name)[0])
    return list(dict.fromkeys(f"{component}-{id_}" for id_ in ids if id_))


def _search(reading: Reading, found: Gathered, after: int) -> None:
    """Search the log after the command, and then around what was found beyond."""
    begin = found.command.global_position
    contiguous = min(max(after, begin) + PART, reading.end_of_log)
    _search_part(reading, found, begin, contiguous)
    found.looked_until = contiguous
    until = contiguous
    for _ in range(_JUMPS):
        beyond = [n for n in found.messages if n > until]
        if not beyond:
            return
        first = max(until, min(beyond) - _BEFORE)
        until = min(first + PART // 2, reading.end_of_log)
        _search_part(reading, found, first, until)


def _search_part(reading: Reading, found: Gathered, after: int, until: int) -> None:
    if after >= until:
        return
    # What the command itself follows from has other effects too, which are not its own.
    causes = found.messages.keys() - {m.global_position for m in found.before}
    found.add(
        reading.messages(
            "following",
            causes=IntArray(sorted(causes)),
            after=after,
            until=until,
            limit=MOST_MESSAGES + 1,
        )
    )


def _find_reissues(reading: Reading, naming: Naming, found: Gathered) -> None:
    """Find further commands with the key of the command."""
    command = found.command
    parts = _key_parts(found)
    if not parts:
        return
    texts = texts_of(command.data)
    fields = [name for name, text in texts.items() if text in parts]
    # One field may be both the entity's id and the key.
    held = Counter(parts) & Counter(texts[name] for name in fields)
    if held.keys() != set(parts):
        fields = []
    parts = list(held.elements()) or parts
    component = naming.declared_for(command)
    conflicts = _conflicts(reading, command)
    candidates = {message.global_position: message for message in conflicts}
    if fields:
        values = {"parts": TextArray(parts), "fields": TextArray(fields), "limit": MOST_MESSAGES}
        near = reading.messages(
            "with_key_in_stream",
            stream=command.stream_name,
            after=command.position,
            looked_at=_IN_STREAM,
            **values,
        )
        near += reading.messages(
            "with_key",
            category=names.category(command.stream_name),
            after=command.global_position,
            until=found.looked_until,
            **values,
        )
        candidates |= {m.global_position: m for m in near}
    in_conflict = {message.global_position for message in conflicts}
    for position, message in sorted(candidates.items()):
        if position == command.global_position or position in found.messages:
            continue
        if found.copy is not None and (component is not None or position in in_conflict):
            is_reissue = found.copy.stream_name in naming.key_streams(message)
        else:
            is_alike = bool(fields) and message.type == command.type
            is_reissue = is_alike and holds(message.data, parts, fields)
        if is_reissue and found.copy is None and component is None:
            # The first command of an entity need not be one that initiates.
            is_reissue = position in in_conflict or fields_of(message.data) == fields_of(
                command.data
            )
        if is_reissue and is_command(message):
            found.add([message])
            found.reissues.add(position)


def _key_parts(found: Gathered) -> list[str]:
    """Return the parts of the command's key; none if it has none."""
    command = found.command
    if found.copy is not None:
        return key_of(found.copy.stream_name, command.stream_name)
    for message in found.messages.values():
        started = message.position == 0 and cause_of(message) == command.global_position
        if started and names.category(message.stream_name) == component_of(command):
            return [names.identifier(message.stream_name) or ""]
    return []


def _conflicts(reading: Reading, command: StoredMessage) -> list[StoredMessage]:
    """Return the commands in a command's stream that were in conflict with another one."""
    rows = reading.rows(
        "conflicts_of_stream",
        stream=command.stream_name,
        category=names.category(command.stream_name),
        limit=MOST_MESSAGES,
    )
    return reading.at([row[0] for row in rows])
