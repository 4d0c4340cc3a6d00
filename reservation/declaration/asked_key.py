"""Where a command that is asked about is found: by its key, its entity, and its own stream."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from reservation.errors import IdempotenceKeyError
from reservation.handlers.initiation import Initiation
from reservation.idempotence.key import Key, KeyPart, key_part, key_parts, key_stream_name
from reservation.idempotence.processed import Processed
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.strategy import Strategy
from reservation.messages import stream_name
from reservation.raised import describe
from reservation.serialization import codec
from reservation.serialization.struct_types import camel_case

T = TypeVar("T")


class Keyed(Protocol):
    """What a component declares of the keys of its commands."""

    name: str
    id: str
    command_category: str
    initiations: dict[str, Initiation]
    reservations: dict[str, Reservation]
    strategies: dict[str, Strategy]


@dataclass(frozen=True, slots=True)
class AskedKey:
    """Where a command is found.

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


def by_value(declared: Keyed, name: str, command: object, sent_to: str | None) -> AskedKey:
    """Return where a command is found.

    Args:
        declared: the component.
        name: the name of the command's class.
        command: the command.
        sent_to: the stream that it is sent to; None for that of its entity's id.

    Raises:
        IdempotenceKeyError: the command has no key, or one that names no stream.
    """
    entity = _part(name, lambda: key_part(getattr(command, declared.id), f"field {declared.id}"))
    sent_to = sent_to or stream_name.of(declared.command_category, entity)
    stream = stream_name.of(declared.name, entity)
    content = msgspec.Raw(codec.encode(command).encode())
    reservation = declared.reservations.get(name)
    if reservation is not None:
        current = _part(name, lambda: reservation.stream_name(command, sent_to))
        former = _part(name, lambda: reservation.former_stream(command, sent_to))
        streams = (current,) if former is None else (former, current)
        if callable(reservation.key):
            return AskedKey(stream, sent_to, streams, content=content)
        parts = key_parts(command, reservation.key)
        fields = _fields(declared, reservation.key, parts, entity)
        return AskedKey(stream, sent_to, streams, fields=fields)
    if name in declared.initiations:
        return AskedKey(stream, sent_to, fields=_fields(declared, (), [], entity))
    once = declared.strategies.get(name)
    if isinstance(once, Processed) and once.key is not None:
        key = once.key
        parts = _part(name, lambda: key_parts(command, key))
        processed = _processed(name, parts)
        if callable(key):
            return AskedKey(stream, sent_to, processed=processed, content=content)
        fields = _fields(declared, key, parts, entity)
        return AskedKey(stream, sent_to, processed=processed, fields=fields)
    return AskedKey(stream, sent_to, content=content)


def by_key(
    declared: Keyed,
    name: str,
    key: Key | None,
    entity: KeyPart | None,
    sent_to: str | None,
) -> AskedKey:
    """Return where a command is found of which only the key is known.

    Args:
        declared: the component.
        name: the name of the command's class.
        key: the key, several parts as a list; None for none.
        entity: the id of the entity; None if it is not known.
        sent_to: the stream that the command is sent to; None for that of the entity's id.

    Raises:
        IdempotenceKeyError: the key is missing, or names no stream.
    """
    reservation, once = declared.reservations.get(name), declared.strategies.get(name)
    if name in declared.initiations and entity is None:
        entity, key = key, None  # type: ignore[assignment]  # the key of such a command
    id_ = None if entity is None else _part(name, lambda: key_part(entity, "entity="))
    if sent_to is None and id_ is not None:
        sent_to = stream_name.of(declared.command_category, id_)
    stream = None if id_ is None else stream_name.of(declared.name, id_)
    if name in declared.initiations:
        if id_ is None:
            raise _missing(name, f"give key=, the {declared.id} of the {declared.name}")
        return AskedKey(stream, sent_to, fields=_fields(declared, (), [], id_))
    own = once.key if isinstance(once, Processed) else None
    if reservation is None and own is None:
        return AskedKey(stream, sent_to, is_found=False)
    declared_key = reservation.key if reservation is not None else own
    parts = _given_parts(name, declared_key, key)
    fields = None if callable(declared_key) else _fields(declared, declared_key or (), parts, id_)
    if reservation is None:
        return AskedKey(stream, sent_to, processed=_processed(name, parts), fields=fields)
    streams = _key_streams(name, declared, reservation, parts, id_, sent_to)
    if reservation.entity not in (None, declared.id):
        stream = None  # `entity` is not the id of the component's entity
    return AskedKey(stream, sent_to, streams, fields=fields)


def _key_streams(
    name: str,
    declared: Keyed,
    reservation: Reservation,
    parts: Sequence[str],
    entity: str | None,
    sent_to: str | None,
) -> tuple[str, ...]:
    """Return the streams that a key names, a former one first."""
    if entity is None and reservation.entity is not None:
        raise _missing(name, f"give entity=, the {reservation.entity} that leads its streams")
    if sent_to is None and reservation.into is None:
        raise _missing(name, "give entity=, or stream_name=, the stream that it is sent to")
    leading = [] if entity is None or reservation.entity is None else [entity]
    to = sent_to or ""
    streams = [_part(name, lambda: reservation.stream_of([*leading, *parts], to))]
    if isinstance(reservation.formerly, tuple) and not callable(reservation.key):
        known = dict(zip(reservation.key, parts, strict=True))
        if entity is not None:
            known.setdefault(reservation.entity or declared.id, entity)
        if all(field in known for field in reservation.formerly):
            former = [known[field] for field in reservation.formerly]
            streams.insert(0, _part(name, lambda: reservation.stream_of(former, to)))
    return tuple(streams)


def _given_parts(name: str, declared: Any, key: Key | None) -> list[str]:
    """Return the parts of a key that a caller gave, as texts."""
    if key is None:
        fields = "" if callable(declared) else f", its {' and '.join(declared)}"
        raise _missing(name, f"give key={fields}")
    values = list(key) if isinstance(key, list | tuple) else [key]
    if not callable(declared) and len(values) != len(declared):
        raise _missing(name, f"give key= with {len(declared)} parts: {', '.join(declared)}")
    return _part(name, lambda: [key_part(value, "key=") for value in values])


def _fields(
    declared: Keyed, key: Sequence[str], parts: Sequence[str], entity: str | None
) -> dict[str, str]:
    """Return the fields by which the stream of a command is searched."""
    fields = dict(zip(key, parts, strict=True))
    if entity is not None:
        fields.setdefault(declared.id, entity)
    return {camel_case(field): text for field, text in fields.items()}


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
