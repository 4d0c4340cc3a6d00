"""Questions what became of a command, which a component makes and a store's client sends.

Where a command is looked for, and what its effect is, follows from the declaration: the stream of
its key, the stream of its entity, what its strategy keeps.
"""

import uuid
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from reservation.declaration.asked_key import AskedKey, by_key, by_value
from reservation.declaration.known_events import known_events
from reservation.declaration.records import MessageDeclaration, Role
from reservation.declaration.table import Declarations
from reservation.errors import IdempotenceKeyError, MessageError, UnknownTypeError
from reservation.idempotence.key import KeyPart, KeyValue
from reservation.idempotence.processed import Processed
from reservation.messages.comparison import same_content, same_json
from reservation.messages.message import StoredMessage, followed_id
from reservation.serialization import codec
from reservation.serialization.fields import keys_of
from reservation.store.answers.question import Question


def question(
    declared: Declarations,
    command: object,
    key: KeyValue | None,
    entity: KeyPart | None,
    stream_name: str | None,
    message_id: uuid.UUID | None,
) -> Question:
    """Return the question what became of a command; see `Component.question`."""
    is_class = isinstance(command, type)
    class_: type = command if isinstance(command, type) else type(command)
    record = _record(declared, class_)
    asked = (
        by_key(declared, record, key, entity, stream_name)
        if is_class
        else by_value(declared, record, command, stream_name)
    )
    if not asked.is_found and message_id is None:
        raise IdempotenceKeyError(
            f"Cannot ask about a {record.type} of {declared.name} by its class: it has no key; "
            f"give message_id=, or the command itself"
        )
    return Question(
        about=f"{record.type} of {declared.name}",
        category=declared.name,
        asked=_asked(declared, record, asked, message_id),
        decode=known_events(declared).decode,
        is_same=_comparison(declared, record, None if is_class else command),
    )


def _record(declared: Declarations, class_: type) -> MessageDeclaration:
    """Return the record of a command, under the name of its class."""
    record = declared.own.of_class(class_)
    if record.handler is None:
        raise UnknownTypeError(
            f"Cannot ask about a {class_.__name__}: the component {declared.name!r} does not "
            f"handle it; ask with the component that does"
        )
    return record


def _asked(
    declared: Declarations,
    record: MessageDeclaration,
    asked: AskedKey,
    message_id: uuid.UUID | None,
) -> dict[str, Any]:
    """Return what is sent to the server."""
    keys = keys_of(record.message)
    question: dict[str, Any] = {
        "category": declared.command_category,
        "types": declared.types.names_of(record.message),
        "entityStream": asked.entity_stream,
        "idField": keys[declared.id],
        "sentTo": asked.sent_to,
        "keyStreams": asked.key_streams,
        "initiates": record.role is Role.INITIATE,
        "ignoring": [keys[field] for field in record.ignoring],
        "fields": asked.fields,
        "content": asked.content,
    }
    if message_id is not None:
        question["messageId"] = str(message_id)
        if asked.entity_stream is not None:
            question["firstEvent"] = str(followed_id(str(message_id), asked.entity_stream, 0))
    if isinstance(record.once, Processed):
        question["processed"] = asked.processed or True
    if record.once is not None:
        question["states"] = record.once.keeps_state
    return question


def _comparison(declared: Declarations, record: MessageDeclaration, command: object | None) -> Any:
    """Return the function that compares what stands under the key with a command."""
    stored = declared.types.names_of(record.message)

    def is_same(standing: StoredMessage, contents: Sequence[str]) -> bool:
        if standing.type not in stored:
            return False
        if command is None:
            return True
        firsts = [standing, *(replace(standing, data=content) for content in contents)]
        return any(_says_the_same(declared, command, one, record.ignoring) for one in firsts)

    return is_same


def _says_the_same(
    declared: Declarations, command: object, first: StoredMessage, ignoring: tuple[str, ...]
) -> bool:
    """Return whether a stored command says what another says, as consumers compare them."""
    try:
        return same_content(command, declared.types.decode(first), ignoring)
    except MessageError:  # as it is stored
        own = codec.encode(command)
        class_: Any = type(command)
        fields = [keys_of(class_)[field] for field in ignoring]
        return first.data is not None and same_json(own, first.data, fields)
