"""Messages as they are stored, and one message following another."""

import builtins
import dataclasses
import uuid
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from reservation.errors import DecodeError
from reservation.messages.ids import uuid_of
from reservation.messages.metadata import Metadata, following_text
from reservation.serialization import codec

try:  # CPython's own, which `hashlib` falls back on, needs no set-up by OpenSSL for each hash
    from _sha1 import sha1  # type: ignore[import-not-found]
except ImportError:
    from hashlib import sha1

T = TypeVar("T")

LONGEST_PRINTED = 300  # characters of a type or a name in logs and errors


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as the store holds it, with its data and metadata still JSON text.

    The attributes are those of the store's ``message`` type, in its order.
    """

    id: str
    stream_name: str
    type: str
    position: int
    global_position: int
    data: str | None
    metadata_json: str | None
    time: datetime

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return what `repr` shows: nothing of the data or metadata."""
        shown = ("id", "stream_name", "type", "position", "global_position", "time")
        return [(name, getattr(self, name)) for name in shown]

    def __repr__(self) -> str:
        """Show the message without its data or metadata."""
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"StoredMessage({shown})"

    def __str__(self) -> str:
        """Name the message in logs and errors, without anything of its data."""
        return (
            f"{printable(self.type)} at {printable(self.stream_name)}, "
            f"global position {self.global_position}"
        )

    def decode(self, type_: builtins.type[T]) -> T:
        """Return the message's data as an instance of a dataclass.

        It has to have the shape of that class; `Component.decode` also reads former shapes.

        Args:
            type_: the dataclass.

        Raises:
            DecodeError: the data does not have the dataclass's shape.
        """
        if self.data is None:
            raise DecodeError(f"Cannot decode {self}: it has no data")
        try:
            return codec.decode(type_, self.data)
        except Exception as error:  # a class may check itself as it likes
            raise DecodeError(
                f"Cannot decode {self}: {codec.explain(error)}. Its sender and {type_.__module__}."
                f"{type_.__qualname__} disagree; correct the class, or the message's writer"
            ) from error

    @property
    def metadata(self) -> Metadata:
        """The metadata, decoded each time that it is asked for."""
        return Metadata.decode(self.metadata_json)

    def follow_metadata(self) -> Metadata:
        """Return the metadata of a message that follows this one."""
        return Metadata.following(
            self.metadata_json, self.stream_name, self.position, self.global_position
        )

    def follow_metadata_text(self) -> str | None:
        """Return the JSON text of `follow_metadata`; None where that has to be checked first."""
        return following_text(
            self.metadata_json, self.stream_name, self.position, self.global_position
        )


def printable(text: str) -> str:
    """Return a text from the store without control characters, and cut if it is long.

    Args:
        text: the text.
    """
    if len(text) > LONGEST_PRINTED:
        text = f"{text[:LONGEST_PRINTED]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def follow(source: object, type_: type[T], **attributes: Any) -> T:
    """Return a new message that takes its attributes of the same name from ``source``.

    Args:
        source: the message that is followed, an instance of any dataclass.
        type_: the dataclass of the message to make.
        attributes: what the source does not have, or has with another value.

    Raises:
        TypeError: neither the source nor the caller gives an attribute that the message needs.
    """
    for name in _init_fields[type_]:
        if name not in attributes:
            value = getattr(source, name, _MISSING)
            if value is not _MISSING:
                attributes[name] = value
    return type_(**attributes)


class _InitFields(dict[type, tuple[str, ...]]):
    """The fields that a class is made with, looked up once; a dict is the fastest to ask again."""

    def __missing__(self, type_: type) -> tuple[str, ...]:
        names = tuple(field.name for field in dataclasses.fields(type_) if field.init)
        self[type_] = names
        return names


_MISSING = object()
_init_fields = _InitFields()


def followed_id(cause: str, stream_name: str, ordinal: int) -> uuid.UUID:
    """Return the id of the n-th message that the handling of ``cause`` writes to a stream.

    It depends on nothing else, so a message that is handled twice writes its events once: the store
    refuses the second of them by its id.

    Args:
        cause: the id of the message that is handled.
        stream_name: the stream that is written to.
        ordinal: from 0, in the order of writing.
    """
    return _uuid5(cause, f"{stream_name} {ordinal}")


def further_id(cause: str, entity_stream: str, stream_name: str, ordinal: int) -> uuid.UUID:
    """Return the id of the n-th further message that the handling of ``cause`` writes to a stream.

    It differs from those of `followed_id`, because no name of a stream holds a line feed. The
    handling of the same message for another entity makes other ids.

    Args:
        cause: the id of the message that is handled.
        entity_stream: the stream that the events of the handling go to.
        stream_name: the stream that is written to.
        ordinal: from 0, in the order of writing to that stream.
    """
    return _uuid5(cause, f"{entity_stream}\n{stream_name}\n{ordinal}")


# The bits of a UUID that hold its version and variant, and their values for version 5.
_KIND = 0xF000 << 64 | 0xC000 << 48
_VERSION_5 = 0x5000 << 64 | 0x8000 << 48


def _uuid5(namespace: str, name: str) -> uuid.UUID:
    """Return what `uuid.uuid5` returns, in a third of the time; one is made for each event."""
    hashed = bytes.fromhex(namespace.replace("-", "")) + name.encode()
    number = int.from_bytes(sha1(hashed, usedforsecurity=False).digest()[:16])
    return uuid_of(number & ~_KIND | _VERSION_5)
