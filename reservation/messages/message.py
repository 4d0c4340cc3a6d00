"""Messages as they are stored, and one message following another."""

import builtins
import re
import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from reservation.errors import DecodeError
from reservation.messages.ids import uuid_of
from reservation.messages.metadata import Metadata, following_text
from reservation.messages.written import written_as
from reservation.serialization import codec
from reservation.serialization.fields import adapter_of, forms_of

try:  # CPython's own, which `hashlib` falls back on, needs no set-up by OpenSSL for each hash
    from _sha1 import sha1  # type: ignore[import-not-found]
except ImportError:
    from hashlib import sha1

T = TypeVar("T")

# The largest position that the store can hold.
MAX_POSITION = 2**63 - 1

LONGEST_PRINTED = 300  # characters of a type or a name in logs and errors

# So begins what the server gives for a text that is too large to be read. It is no JSON.
_UNREADABLE = "unreadable: "


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as the store holds it, with its data and metadata still JSON text.

    The attributes are those of the store's ``message`` type, in its order. What a store's client
    reads can be read; of a message that a dead letter, an outcome or a story shows, `unreadable`
    says whether it can.
    """

    id: str
    stream_name: str
    type: str
    position: int
    global_position: int
    data: str | None
    metadata_json: str | None
    time: datetime

    @property
    def unreadable(self) -> str | None:
        """The column that cannot be read, and the reason; None if all can.

        Its data or metadata is longer than a text can be, or its time is not of the years 1 to
        9999. The text then stands for no JSON, and ``time`` is None.
        """
        return self._unreadable_text() or self._unreadable_time()

    def check_readable(self, *, time: bool = True) -> None:
        """Refuse a message that cannot be read.

        Args:
            time: whether its time has to be known. To copy it, it need not.

        Raises:
            DecodeError: it cannot; the error names the message and the column.
        """
        reason = self._unreadable_text() or (self._unreadable_time() if time else None)
        if reason is not None:
            raise DecodeError(
                f"Cannot read {self}, position {self.position} of its stream: {reason}"
            )

    def _unreadable_text(self) -> str | None:
        data, metadata = self.data, self.metadata_json
        if data is not None and data.startswith(_UNREADABLE):
            return f"its data is too large: {data.removeprefix(_UNREADABLE)}"
        if metadata is not None and metadata.startswith(_UNREADABLE):
            return f"its metadata is too large: {metadata.removeprefix(_UNREADABLE)}"
        return None

    def _unreadable_time(self) -> str | None:
        time: datetime | None = self.time
        return _UNREADABLE_TIME if time is None else None

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
        """Return the message's data as an instance of a class.

        It has to have the shape of that class; `Component.decode` also reads former shapes.

        Args:
            type_: the class.

        Raises:
            DecodeError: the data does not have the class's shape.
        """
        if self.data is None:
            raise DecodeError(f"Cannot decode {self}: it has no data")
        try:
            return codec.decode(type_, self.data)
        except Exception as error:  # a class may check itself as it likes
            self.check_readable(time=False)
            refuse_newer(self, type_, written_as(type_).version or 1)
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


_UNREADABLE_TIME = (
    "its time is infinite, before the year 1 or after 9999; correct the row's column time"
)


def json_to_show(text: str | None) -> str | None:
    """Return data or metadata as JSON, also where it stands for what cannot be read."""
    if text is None or not text.startswith(_UNREADABLE):
        return text
    return f'"{text}"'


def printable(text: str) -> str:
    """Return a text from the store without control characters, and cut if it is long."""
    if len(text) > LONGEST_PRINTED:
        text = f"{text[:LONGEST_PRINTED]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def follow(source: object, type_: type[T], **attributes: Any) -> T:
    """Return a new message that takes its attributes from another; see `Context.follow`."""
    for name in _init_fields[type_]:
        if name not in attributes:
            value = getattr(source, name, _MISSING)
            if value is not _MISSING:
                attributes[name] = value
    made: T = adapter_of(type_).create(type_, attributes)
    return made


class _InitFields(dict[type, tuple[str, ...]]):
    """The fields that a class is made with, looked up once; a dict is the fastest to ask again."""

    def __missing__(self, type_: type) -> tuple[str, ...]:
        names = tuple(form.name for form in forms_of(type_) if form.in_constructor)
        self[type_] = names
        return names


_MISSING = object()
_init_fields = _InitFields()


def followed_id(cause: str, stream_name: str, ordinal: int) -> uuid.UUID:
    """Return the id of the n-th message that the handling of ``cause`` writes to a stream.

    It depends on nothing else, so a message that is handled twice writes its events once: the store
    refuses the second of them by its id.
    """
    return _uuid5(cause, f"{stream_name} {ordinal}")


def further_id(cause: str, entity_stream: str, stream_name: str, ordinal: int) -> uuid.UUID:
    """Return the id of the n-th further message that the handling of ``cause`` writes to a stream.

    It differs from those of `followed_id`, because no name of a stream holds a line feed. The
    handling of the same message for another entity makes other ids.
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


def stored_version(message: StoredMessage) -> int | Decimal | str | None:
    """Return the version of a message's shape, digits as a number; None for one without."""
    if message.metadata_json is None or '"schemaVersion"' not in message.metadata_json:
        return None
    stored: int | Decimal | str | None = message.metadata.schema_version
    if isinstance(stored, str) and re.fullmatch("[0-9]{1,9}", stored):
        return int(stored)
    return stored


def refuse_newer(message: StoredMessage, type_: type, known: int) -> None:
    """Refuse a message that a newer program wrote: its class is not at fault."""
    stored = stored_version(message)
    if isinstance(stored, int) and stored > known:
        raise DecodeError(
            f"Cannot decode {message}: it was written by schemaVersion {stored}, and this program "
            f"knows {known} of {type_.__module__}.{type_.__qualname__}; upgrade the program, and "
            f"retry the message"
        )
