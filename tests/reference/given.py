"""What the reference interpreter gives a handler, takes from it, and knows of messages."""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

from reservation import MessageIdInEvents, PositionInEvents, Processed, Revisions, StateBased
from reservation.errors import DecodeError
from reservation.messages.message import StoredMessage, followed_id, further_id
from reservation.messages.pseudo_event import PseudoEvent
from reservation.messages.stream_name import cardinal_id
from reservation.serialization import codec


class Given:
    """The context of one call of a handler."""

    def __init__(self, message: StoredMessage, stream: str, version: Callable[[str], int]) -> None:
        self.message, self._stream, self._version = message, stream, version
        self._further: list[tuple[Any, str, int | None, bool]] = []
        self.rows: list[str] = []
        self.connection = self

    def execute(self, _: str, row: list[str]) -> None:
        self.rows += row

    def write(self, message: Any, name: str, *, expected_version: int | None = None) -> None:
        assert name != self._stream
        self._further.append((message, name, expected_version, False))

    def reply(self, message: Any) -> None:
        name = self.message.metadata.reply_stream_name
        assert name is not None
        self._further.append((message, name, None, True))

    def encoded(self, made: Any, once: Any, *, starts: bool) -> list[tuple[Any, ...]]:
        """Return the messages to be written: id, stream, type, data and metadata of each."""
        events = made if isinstance(made, list | tuple) else [] if made is None else [made]
        assert events or not starts
        assert not (isinstance(once, StateBased) and self.rows)  # it has no connection
        m, local, ids = self.message, {}, list[Any]()
        if isinstance(once, MessageIdInEvents):
            local, events = {"messageId": m.id}, events or [PseudoEvent()]
        if isinstance(once, PositionInEvents):
            local = {"sequence": m.global_position}
            events = events or [PseudoEvent()] * once.pseudo_events
        metadata = m.follow_metadata()
        own = dataclasses.replace(metadata, local_properties=local)
        writes = [
            (followed_id(m.id, self._stream, n), self._stream, *text(event), own.encode())
            for n, event in enumerate(events)
        ]
        replying = dataclasses.replace(metadata, reply_stream_name=None)
        for message, name, expected, reply in self._further:
            at = self._version(name) + sum(name == other for _, other, *_ in writes)
            assert expected in (None, at)
            assert expected is None or not isinstance(once, StateBased)
            id_ = further_id(m.id, self._stream, name, ids.count(name))
            ids.append(name)
            writes.append((id_, name, *text(message), (replying if reply else metadata).encode()))
        return writes


def text(message: Any) -> tuple[str, str]:
    return type(message).__name__, codec.encode(message)


def known_by(
    once: Any, category: str, message: StoredMessage, command: Any, stream: str
) -> tuple[Any, int]:
    """Return what identifies a message, and the number that must rise; -1 for none."""
    if isinstance(once, Processed):
        return ("processed", message.type, command.key if once.key else message.id), 0
    if isinstance(once, Revisions):
        return ("revision", category, stream, command.source), command.revision
    if isinstance(once, PositionInEvents):
        return ("sequence", category, stream), message.global_position
    if isinstance(once, MessageIdInEvents | StateBased):
        return (type(once).__name__, stream, message.id), 0
    return None, 0


def server_key(declared: Any, message: StoredMessage) -> str | None:
    """Return the name of a key's stream where the data need not be read against its class."""
    data = json.loads(message.data or "null")
    if callable(declared.key) or not isinstance(data, dict):
        return None
    fields = [*([declared.entity] if declared.entity else []), *declared.key]
    parts = [data.get(codec.camel_case(field)) for field in fields]
    kinds = [declared.command.__dataclass_fields__[field].type for field in fields]
    for part, kind in zip(parts, kinds, strict=True):
        if type(part) is not kind or not re.fullmatch(r"[^+\x00-\x1f\x7f-\x9f]+", str(part)):
            return None
    if declared.into:
        return f"{declared.into}-{'+'.join(map(str, parts))}"
    separator = "+" if "-" in message.stream_name else "-"
    return f"{message.stream_name}{separator}{'+'.join(map(str, parts))}"


def entity_by_stream(component: Any, of: str, message: StoredMessage) -> str | None:
    """Return the entity that a message is for by the name of its stream, if that says so."""
    declared, id_ = component.reservations.get(message.type), cardinal_id(message.stream_name)
    if declared and not declared.entity and of != component.command_category:
        return None  # the key alone names the stream
    return f"{component.name}-{id_}" if id_ else None


def compare(later: StoredMessage, first: StoredMessage, declared: Any) -> str:
    """Return whether a command is a duplicate of the first of its key, or in conflict with it."""
    contents = [(m.type, json.loads(m.data or "{}")) for m in (later, first)]
    for field in declared.volatile:
        for _, data in contents:
            data.pop(codec.camel_case(field), None)
    if contents[0] == contents[1]:
        return "duplicate"
    if later.type != first.type:
        return "conflict"
    try:
        meanings = [dataclasses.asdict(m.decode(declared.command)) for m in (later, first)]
    except DecodeError:
        return "conflict"
    for field in declared.volatile:
        for meaning in meanings:
            del meaning[field]
    return "duplicate" if meanings[0] == meanings[1] else "conflict"
