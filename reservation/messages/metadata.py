"""The metadata of a message: what caused it, what it belongs to, where to reply."""

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

import msgspec

from reservation.messages.stream_name import MAX_BYTES, category
from reservation.serialization import codec, json_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata of a message, as Message DB's clients know it.

    Stored as camelCase JSON; attributes that are None and empty property bags are left out.
    """

    __omit_defaults__: ClassVar[bool] = True

    causation_message_stream_name: str | None = None
    causation_message_position: int | None = None
    causation_message_global_position: int | None = None
    correlation_stream_name: str | None = None
    reply_stream_name: str | None = None
    schema_version: Any = None  # clients write texts and numbers
    properties: dict[str, Any] = field(default_factory=dict)  # JSON values of the users' own
    local_properties: dict[str, Any] = field(default_factory=dict)

    def encode(self, max_bytes: int = codec.DEFAULT_MAX_BYTES) -> str | None:
        """Return it as JSON text, or None if it is empty.

        Args:
            max_bytes: how long the text may be, in bytes of UTF-8.

        Raises:
            msgspec.MsgspecError: as for `codec.encode`, or the category of the correlation stream
                is longer than an index takes; `codec.explain` says which field it is.
        """
        text = codec.encode(self, max_bytes)
        if len(text) > MAX_BYTES // 4 and self.correlation_stream_name:  # UTF-8 takes up to 4
            length = len(category(self.correlation_stream_name).encode())
            if length > MAX_BYTES:
                raise msgspec.ValidationError(
                    f"Expected a category of at most {MAX_BYTES} bytes, got {length} - at "
                    f"`$.correlationStreamName`"
                )
        return None if text == "{}" else text

    @classmethod
    def decode(cls, text: str | None) -> "Metadata":
        """Return metadata from JSON text; what is not of the right kind is left out.

        Metadata comes from clients in many languages and is never a reason to refuse a message. So
        what could not be written with a following message is left out too.

        Args:
            text: the JSON text; None for no metadata.
        """
        try:
            values = None if text is None else _decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            return cls()
        if not isinstance(values, dict):
            return cls()
        kept = {
            name: values[key]
            for name, (key, kind) in _KINDS.items()
            if isinstance(values.get(key), kind) and not isinstance(values[key], bool)
        }
        made = cls(**kept)
        if len(text or "") > _SURELY_WRITABLE:
            for name in ("local_properties", "properties", "correlation_stream_name"):
                if made._is_writable():
                    break
                kept.pop(name, None)
                made = cls(**kept)
        return made

    def _is_writable(self) -> bool:
        try:
            self.encode()
        except (msgspec.MsgspecError, TypeError):
            return False
        return True

    @classmethod
    def following(
        cls, text: str | None, stream_name: str, position: int, global_position: int
    ) -> "Metadata":
        """Return the metadata of a message that follows one, from the JSON text of that one's.

        The same as `decode` and then `follow`, without decoding what is not passed on.

        Args:
            text: the metadata of the message that is followed.
            stream_name: its stream.
            position: its position in that stream, from 0.
            global_position: its position in the store.
        """
        if text is None or len(text) > _SURELY_WRITABLE:
            return cls.decode(text).follow(stream_name, position, global_position)
        try:
            handed_on = _handed_on.decode(text)
        except msgspec.MsgspecError:
            return cls().follow(stream_name, position, global_position)
        correlation, reply = handed_on.correlation_stream_name, handed_on.reply_stream_name
        properties = handed_on.properties
        return cls(
            causation_message_stream_name=stream_name,
            causation_message_position=position,
            causation_message_global_position=global_position,
            correlation_stream_name=correlation if isinstance(correlation, str) else None,
            reply_stream_name=reply if isinstance(reply, str) else None,
            properties=properties if isinstance(properties, dict) else {},
        )

    def follow(self, stream_name: str, position: int, global_position: int) -> "Metadata":
        """Return the metadata of a message that follows the one that this metadata belongs to.

        The three causation fields point at that message. Correlation, reply stream and properties
        are passed on; local properties and schema version are not. (Source: Eventide's *follow*.)

        Args:
            stream_name: the stream of the message that is followed.
            position: its position in that stream, from 0.
            global_position: its position in the store.
        """
        return Metadata(
            causation_message_stream_name=stream_name,
            causation_message_position=position,
            causation_message_global_position=global_position,
            correlation_stream_name=self.correlation_stream_name,
            reply_stream_name=self.reply_stream_name,
            properties=self.properties,
        )


def following_text(
    text: str | None, stream_name: str, position: int, global_position: int
) -> str | None:
    """Return the JSON text of `Metadata.following`, without making the object.

    None where something has to be checked first: the message that is followed has long metadata,
    or a correlation.
    """
    made = _Following(stream_name, position, global_position)
    if text is not None:
        if len(text) > _SURELY_WRITABLE:
            return None
        try:
            handed_on = _handed_on.decode(text)
        except msgspec.MsgspecError:
            handed_on = _HandedOn()
        if handed_on.correlation_stream_name is not None:
            return None
        if isinstance(handed_on.reply_stream_name, str):
            made.reply_stream_name = handed_on.reply_stream_name
        if isinstance(handed_on.properties, dict):
            made.properties = handed_on.properties or None
    return json_limits.encoder.encode(made).decode()


class _Following(msgspec.Struct, rename="camel", omit_defaults=True):
    """The attributes of the metadata of a message that follows another, as they are stored."""

    causation_message_stream_name: str
    causation_message_position: int
    causation_message_global_position: int
    reply_stream_name: str | None = None
    properties: dict[str, Any] | None = None


class _HandedOn(msgspec.Struct, rename="camel"):
    """Metadata for the messages that follow; any JSON value."""

    correlation_stream_name: Any = None
    reply_stream_name: Any = None
    properties: Any = None


# Characters; a shorter text is not too deep or too long, and neither is a name in it.
_SURELY_WRITABLE = 600

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)
_handed_on = msgspec.json.Decoder(_HandedOn, float_hook=Decimal)

# By each field's name: its key in JSON, and the types of its value.
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "causation_message_stream_name": ("causationMessageStreamName", (str,)),
    "causation_message_position": ("causationMessagePosition", (int,)),
    "causation_message_global_position": ("causationMessageGlobalPosition", (int,)),
    "correlation_stream_name": ("correlationStreamName", (str,)),
    "reply_stream_name": ("replyStreamName", (str,)),
    "schema_version": ("schemaVersion", (str, int, Decimal)),
    "properties": ("properties", (dict,)),
    "local_properties": ("localProperties", (dict,)),
}
