"""The places where a command is looked for: by its key, its entity, and its own stream."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from reservation.declaration.records import MessageDeclaration, Role
from reservation.declaration.table import Declarations
from reservation.errors import IdempotenceKeyError
from reservation.idempotence.key import KeyPart, KeyValue, key_part, key_parts, key_stream_name
from reservation.idempotence.processed import Processed
from reservation.idempotence.reserve import Reservation
from reservation.messages import stream_name
from reservation.raised import describe
from reservation.serialization import codec
from reservation.serialization.fields import keys_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AskedKey:
    """The places of a command.

    Attributes:
        entity_stream: the stream of its entity; None if that is not known.
        sent_to: the stream that it is sent to; None if that is not known.
        key_streams: of a reserved command the streams that its key names, a former one first.
        processed: its key in the table of processed messages; None if it has none there.
        fields: the fields by which its stream is searched, as texts, by their names in JSON.
        content: its data, by which its stream is searched if there are no such fields.
        is_found: whether it can be found without its id.
    """

    entity_stream: str | None
    sent_to: str | None
    key_streams: tuple[str, ...] | None = None
    processed: str | None = None
    fields: Mapping[str, str] | None = None
    content: Any = None  # raw JSON
    is_found: bool = True


def by_value(
    declared: Declarations, record: MessageDeclaration, command: object, sent_to: str | None
) -> AskedKey:
    """Return where a command is found."""
    name, reservation, once = record.type, record.reservation, record.once
    keys = keys_of(record.message)
    entity = _part(name, lambda: key_part(getattr(command, declared.id), f"field {declared.id}"))
    sent_to = sent_to or stream_name.of(declared.command_category, entity)
    stream = stream_name.of(declared.name, entity)
    content = msgspec.Raw(codec.encode(command).encode())
    if reservation is not None:
        current = _part(name, lambda: reservation.stream_name(command))
        former = _part(name, lambda: reservation.former_stream(command))
        streams = (current,) if former is None else (former, current)
        if callable(reservation.key):
            return AskedKey(stream, sent_to, streams, content=content)
        parts = key_parts(command, reservation.key)
        fields = _fields(keys, declared.id, reservation.key, parts, entity)
        return AskedKey(stream, sent_to, streams, fields=fields)
    if record.role is Role.INITIATE:
        return AskedKey(stream, sent_to, fields=_fields(keys, declared.id, (), [], entity))
    if isinstance(once, Processed) and once.key is not None:
        key = once.key
        parts = _part(name, lambda: key_parts(command, key))
        processed = _processed(name, parts)
        if callable(key):
            return AskedKey(stream, sent_to, processed=processed, content=content)
        fields = _fields(keys, declared.id, key, parts, entity)
        return AskedKey(stream, sent_to, processed=processed, fields=fields)
    return AskedKey(stream, sent_to, content=content)


def by_key(
    declared: Declarations,
    record: MessageDeclaration,
    key: KeyValue | None,
    entity: KeyPart | None,
    sent_to: str | None,
) -> AskedKey:
    """Return where a command is found of which only the key is known."""
    name, reservation, once = record.type, record.reservation, record.once
    keys = keys_of(record.message)
    if record.role is Role.INITIATE and entity is None:
        entity, key = key, None  # type: ignore[assignment]  # the key of such a command
    id_ = None if entity is None else _part(name, lambda: key_part(entity, "entity="))
    field = declared.id if reservation is None else reservation.entity or declared.id
    stream = None
    if id_ is not None and field == declared.id:  # else it is not the id of the entity
        sent_to = sent_to or stream_name.of(declared.command_category, id_)
        stream = stream_name.of(declared.name, id_)
    if record.role is Role.INITIATE:
        if id_ is None:
            raise _missing(name, f"give key=, the {declared.id} of the {declared.name}")
        return AskedKey(stream, sent_to, fields=_fields(keys, declared.id, (), [], id_))
    own = once.key if isinstance(once, Processed) else None
    if reservation is None and own is None:
        return AskedKey(stream, sent_to, is_found=False)
    declared_key = reservation.key if reservation is not None else own
    parts = _given_parts(name, declared_key, key)
    fields = (
        None if callable(declared_key) else _fields(keys, field, declared_key or (), parts, id_)
    )
    if reservation is None:
        return AskedKey(stream, sent_to, processed=_processed(name, parts), fields=fields)
    streams = _key_streams(name, declared, reservation, parts, id_)
    return AskedKey(stream, sent_to, streams, fields=fields)


def _key_streams(
    name: str,
    declared: Declarations,
    reservation: Reservation,
    parts: Sequence[str],
    entity: str | None,
) -> tuple[str, ...]:
    """Return the streams that a key names, a former one first."""
    if entity is None and reservation.entity is not None:
        raise _missing(name, f"give entity=, the {reservation.entity} that leads its streams")
    leading = [] if entity is None or reservation.entity is None else [entity]
    streams = [_part(name, lambda: key_stream_name(reservation.into, [*leading, *parts]))]
    if isinstance(reservation.former_key, tuple) and not callable(reservation.key):
        known = dict(zip(reservation.key, parts, strict=True))
        if entity is not None:
            known.setdefault(reservation.entity or declared.id, entity)
        if all(field in known for field in reservation.former_key):
            former = [known[field] for field in reservation.former_key]
            streams.insert(0, _part(name, lambda: key_stream_name(reservation.into, former)))
    return tuple(streams)


def _given_parts(name: str, declared: Any, key: KeyValue | None) -> list[str]:
    """Return the parts of a key that a caller gave, as texts."""
    if key is None:
        fields = "" if callable(declared) else f", its {' and '.join(declared)}"
        raise _missing(name, f"give key={fields}")
    values = list(key) if isinstance(key, list | tuple) else [key]
    if not callable(declared) and len(values) != len(declared):
        raise _missing(name, f"give key= with {len(declared)} parts: {', '.join(declared)}")
    return _part(name, lambda: [key_part(value, "key=") for value in values])


def _fields(
    keys: Mapping[str, str], id_: str, key: Sequence[str], parts: Sequence[str], entity: str | None
) -> dict[str, str]:
    """Return the fields by which the stream of a command is searched."""
    fields = dict(zip(key, parts, strict=True))
    if entity is not None:
        fields.setdefault(id_, entity)
    return {keys[field]: text for field, text in fields.items()}


def _processed(name: str, parts: Sequence[str]) -> str:
    """Return a key as the table of processed messages has it."""
    return _part(name, lambda: key_stream_name(name, parts))[len(name) + 1 :]


def _part(name: str, made: Callable[[], T]) -> T:
    """Return what a function makes of a key; what it raises names the command."""
    try:
        return made()
    except IdempotenceKeyError as error:
        raise IdempotenceKeyError(f"Cannot ask about a {name}: {error}") from error
    except Exception as error:  # a key function can raise anything
        raise IdempotenceKeyError(
            f"Cannot ask about a {name}: its key function raised {describe(error)}"
        ) from error


def _missing(name: str, remedy: str) -> IdempotenceKeyError:
    return IdempotenceKeyError(f"Cannot ask about a {name} by its class: {remedy}")
