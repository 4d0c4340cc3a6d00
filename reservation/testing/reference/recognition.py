"""Recognition of repeated messages: by what was handled before, and by the key's first copy."""

import json
import re
from typing import Any

from reservation.component import Component
from reservation.declaration.records import MessageDeclaration
from reservation.declaration.table import declarations
from reservation.errors import DecodeError, ReservationError
from reservation.idempotence.followed import Followed
from reservation.idempotence.in_events import MessageIdInEvents, PositionInEvents
from reservation.idempotence.processed import Processed
from reservation.idempotence.revision import Revisions
from reservation.idempotence.strategy import Incoming
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import PseudoEvent
from reservation.messages.stream_name import cardinal_id
from reservation.serialization.fields import hints_of, is_message, keys_of, names_of


# Any: strategies are of all classes, and keys and commands are a component's own.
def known_by(once: Any, category: str, incoming: Incoming) -> tuple[Any, int]:
    """Return what identifies a message, and the number that must rise."""
    message, stream = incoming.message, incoming.entity_stream
    if isinstance(once, Processed):
        name = incoming.names[0] if incoming.names else message.type
        return ("processed", name, once.key_of(incoming)), 0
    if isinstance(once, Revisions):
        return ("revision", category, once.series_of(incoming)), once.revision_of(incoming)
    if isinstance(once, PositionInEvents):
        return ("sequence", category, stream), message.global_position
    if isinstance(once, Followed):
        return ("followed", category, message.global_position, stream), 0
    if once is not None:
        return (type(once).__name__, stream, message.id), 0
    return None, 0


def traced(
    once: Any, message: StoredMessage, events: list[object]
) -> tuple[list[object], dict[str, Any]]:
    """Return the events by which a strategy recognizes a message, and what they carry."""
    if isinstance(once, MessageIdInEvents):
        return events or [PseudoEvent()], {"messageId": message.id}
    if isinstance(once, PositionInEvents):
        pseudo: list[object] = [PseudoEvent()] if once.pseudo_events else []
        return events or pseudo, {"sequence": message.global_position}
    return events, {}


def server_key(component: Component[Any], message: StoredMessage) -> str | None:
    """Return the stream of a command's key where its data need not be read against its class."""
    declared = declarations(component).server_keys.get(message.type)
    if declared is None or callable(declared.key) or declared.former_key is not None:
        return None
    data = json.loads(message.data or "null")
    if not isinstance(data, dict):
        return None
    fields = [*([declared.entity] if declared.entity else []), *declared.key]
    hints = hints_of(declared.command)
    parts = [data.get(keys_of(declared.command)[field]) for field in fields]
    for part, field in zip(parts, fields, strict=True):
        if hints[field] not in (str, int) or type(part) is not hints[field]:
            return None
        if not re.fullmatch(r"[^+\x00-\x1f\x7f-\x9f]+", str(part)):
            return None
    return f"{declared.into}-{'+'.join(map(str, parts))}"


def entity_by_stream(
    component: Component[Any], category: str, message: StoredMessage
) -> str | None:
    """Return the entity that a message is for by the name of its stream, if that says so."""
    table = declarations(component)
    if category in table.others:
        return None
    declared = table.own[message.type].reservation
    if declared and not declared.entity and category != table.command_category:
        return None  # the key alone names the stream
    id_ = cardinal_id(message.stream_name)
    return f"{component.name}-{id_}" if id_ else None


def is_repeated(
    component: Component[Any],
    declared: MessageDeclaration,
    later: StoredMessage,
    first: StoredMessage,
) -> bool:
    """Return whether a command says the same as the first one of its key."""
    table = declarations(component)
    contents = [(m.type, json.loads(m.data or "{}")) for m in (later, first)]
    for field in declared.ignoring:
        for _, data in contents:
            if isinstance(data, dict):
                data.pop(keys_of(declared.message)[field], None)
    if contents[0] == contents[1]:
        return True
    if first.type not in table.types.names_of(declared.message):
        return False
    try:
        meanings = [_meaning(table.types.decode(m)) for m in (later, first)]
    except (DecodeError, ReservationError):
        return False
    for meaning in meanings:
        for field in declared.ignoring:
            del meaning[field]
    return bool(meanings[0] == meanings[1])


def _meaning(value: Any) -> Any:
    """Return a value with a dictionary in the place of each message in it."""
    class_: Any = type(value)
    if is_message(value):
        return {name: _meaning(getattr(value, name)) for name in names_of(class_)}
    if isinstance(value, dict):
        return {key: _meaning(part) for key, part in value.items()}
    return [*map(_meaning, value)] if isinstance(value, list | tuple) else value


def first_copy(streams: tuple[str, str | None], stream: Any) -> tuple[str, StoredMessage | None]:
    """Return the stream of a key, and the first message in it or in that of its former name."""
    name, former = streams
    for one in (name, former):
        if one is not None and (found := stream(one)):
            return one, found[0]
    return name, None
