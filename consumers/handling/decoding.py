"""Decoding a message: its command, and its entity or the stream of its key.

A command category holds commands that are reserved, that initiate, or that are handled
directly; a reservation category holds the copies, which are handled. The component declares which
command is which. Of a subscribed category, the messages of the declared types are handled, and all
others ignored.
"""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from consumers.effects.blocking import blocking
from reservation.component import Component
from reservation.context import out_of_order
from reservation.declaration.table import declarations
from reservation.effects.addressing import (
    command_in,
    entity_stream_of,
    key_streams_of,
    no_key,
    unknown_type,
)
from reservation.effects.faults import is_interrupt
from reservation.errors import ReservationError, StreamNameError
from reservation.idempotence.in_events import in_order
from reservation.idempotence.key import key_part
from reservation.idempotence.strategy import Incoming
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage
from reservation.messages.stream_name import MAX_BYTES, cardinal_id, check
from reservation.serialization.fields import hints_of, keys_of

# Characters; however many bytes each takes, the store takes a name of that length.
SURELY_FITS = MAX_BYTES // 4


@dataclass(slots=True)
class Decoded:
    """A stored message, the command in it, and the stream of the entity or the key it is for."""

    message: StoredMessage
    command: object = None
    entity_stream: str | None = None
    key_stream: str | None = None
    former_stream: str | None = None
    unordered: bool = False
    redelivered: bool = False
    names: tuple[str, ...] = ()

    @property
    def incoming(self) -> Incoming:
        """The message as strategies take it."""
        return Incoming(
            self.message, self.command, str(self.entity_stream), self.unordered, self.names
        )


class Decoding:
    """Decodes the messages of one category.

    Attributes:
        ignores: takes a message, and returns whether it is skipped, because its type is ignored.
    """

    def __init__(self, component: Component, category: str) -> None:
        declared = declarations(component)
        self._component = component
        self._declared = declared.of(category)
        self._is_subscribed = category in declared.others
        self._reserves = category == declared.command_category
        self._handles_any = self._reserves or self._is_subscribed
        self.ignores = self._declared.passes
        self._process = os.getpid()
        self._ids: dict[str, type[Any]] = {}  # structs of only the entity's id, by message type
        self._unordered_until = 0
        self._letters: Mapping[int, str | None] | None = None

    def order(self, unordered_until: int, letters: Mapping[int, str | None] | None) -> None:
        """Note which messages may come out of the order of their entity."""
        self._unordered_until = unordered_until
        self._letters = letters

    def look(self, message: StoredMessage, key_stream: str | None) -> Decoded | None:
        """Return a message, decoded, or None if its type is ignored."""
        if key_stream is not None:
            return Decoded(message, key_stream=_fitting(key_stream, message))
        declared = self._declared
        if self.ignores(message):
            return None
        one = declared[message.type]
        reservation = one.reservation
        if reservation is None and (one.handler is None or not self._handles_any):
            raise unknown_type(declared, message)
        message.check_readable(time=False)
        command = command_in(declared, message, self.is_no_fault)
        if reservation is not None and self._reserves:
            name, former = key_streams_of(reservation, message, command, self.is_no_fault)
            return Decoded(message, command, key_stream=name, former_stream=former)
        if not message.time:
            message.check_readable()
        if declared.is_read:
            return Decoded(message, command, message.stream_name)
        entity_stream = entity_stream_of(declared, message, command, self.is_no_fault)
        unordered = (
            message.global_position <= self._unordered_until or self._letters is not None
        ) and self._is_unordered(message, entity_stream)
        strategy = one.once if unordered else None
        if strategy is not None and strategy.needs_order:
            raise out_of_order(message, entity_stream)
        renamed = declared.types.renamed
        names = renamed.get(type(command), ()) if renamed else ()
        return Decoded(message, command, entity_stream, unordered=unordered, names=names)

    def _is_unordered(self, message: StoredMessage, entity_stream: str) -> bool:
        """Return whether later messages of its entity may have been handled before a message."""
        if in_order(message, entity_stream):
            return False
        if message.global_position <= self._unordered_until or self._letters is None:
            return True
        return self._letters.get(message.global_position) != blocking(entity_stream)

    def is_no_fault(self, error: BaseException) -> bool:
        """Return whether an exception is not a fault of the message.

        A process that the component's code has forked is to end with what it raises.
        """
        return is_interrupt(error) or os.getpid() != self._process

    def entity_of(self, message: StoredMessage, decoded: Decoded | None = None) -> str | None:
        """Return the entity that a message is for, whose later messages wait behind a dead letter.

        Without a decoded command, the entity is taken from the name of the message's stream, unless
        that is named only by the key, or is a stream of others.
        """
        component = self._component
        if self._declared.is_read:
            return blocking(message.stream_name)
        if decoded is not None and decoded.entity_stream is not None:
            return blocking(decoded.entity_stream)
        if decoded is not None and decoded.command is not None:
            with contextlib.suppress(ReservationError):
                return blocking(component.entity_stream(decoded.command))
        if self._is_subscribed:
            return None
        declared = declarations(component).own[message.type].reservation
        if not self._reserves and declared is not None and declared.entity is None:
            return None
        id_ = cardinal_id(message.stream_name)
        return blocking(f"{component.name}-{id_}") if id_ else None

    def entity_of_unread(self, message: StoredMessage) -> str | None:
        """Return the entity that a message is for, without running any code of the component.

        Of the data only the entity's id is read, so that no class checks itself.
        """
        types = self._declared.types
        if self._declared.is_read:
            return self.entity_of(message)
        if message.data is not None and message.type in types and not types.is_upcast(message.type):
            id_ = self._declared.id_field(message.type)
            # What does not fit could not have been decoded either; then the stream's name is used.
            with contextlib.suppress(ReservationError, msgspec.MsgspecError, RecursionError):
                if id_ is not None:
                    read = msgspec.json.decode(message.data, type=self._id_of(message.type, id_))
                    value = key_part(getattr(read, id_), f"field {id_}")
                    return blocking(stream_name.of(self._component.name, value))
        return self.entity_of(message)

    def _id_of(self, name: str, id_: str) -> type[Any]:
        """Return a struct with the entity's id as the only field of a type of messages."""
        if name not in self._ids:
            class_: Any = self._declared.types[name]
            field = (id_, hints_of(class_)[id_], msgspec.field(name=keys_of(class_)[id_]))
            self._ids[name] = msgspec.defstruct("Id", [field])
        return self._ids[name]


def _fitting(key_stream: str, message: StoredMessage) -> str:
    """Return the name of a key's stream, as it came from the server, unless it is too long."""
    if len(key_stream) > SURELY_FITS:
        try:
            check(key_stream)
        except StreamNameError as error:
            raise no_key(message, error) from error
    return key_stream
