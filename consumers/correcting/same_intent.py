"""Whether a correction is still the same intent: that its key and its entity are the former ones.

The corrected content is decoded as a consumer will decode it. Where the message itself can be
decoded too, its key and its entity are compared with those of the correction. A copy carries its
key in the name of its stream. Of a message that cannot be decoded, the fields that make the key and
the entity are read one by one, as far as they can be.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from consumers.dead_letters.corrections import with_data
from consumers.handling.decoding import Decoded, Decoding
from reservation.component import CategoryDeclaration, Component
from reservation.errors import (
    HandlerError,
    IdempotenceKeyError,
    MessageError,
    ReservationError,
)
from reservation.idempotence.key import key_part, key_parts
from reservation.idempotence.processed import Processed
from reservation.messages.message import StoredMessage, printable
from reservation.messages.stream_name import command_category
from reservation.raised import describe
from reservation.serialization.json_limits import encoder
from reservation.serialization.struct_types import camel_case, hints_of


class CorrectionError(ReservationError):
    """A message cannot be corrected, or not to this content."""


def check_same_intent(
    component: Component, category: str, message: StoredMessage, corrected: StoredMessage
) -> tuple[str, ...]:
    """Make sure that a message may be handled with other content.

    Args:
        component: whose message it is.
        category: the category that the consumer read it in.
        message: the message, as it is stored.
        corrected: the same with the corrected data.

    Returns:
        What could not be compared, because the message itself does not have it: names of fields,
        "key" for a key that is made by a function, or "entity" for such an id of the entity.

    Raises:
        CorrectionError: the content does not fit the type of the message, or the message would have
            another key or another entity.
    """
    decoding = Decoding(component, category)
    try:
        after = decoding.look(corrected, None)
    except MessageError as error:
        shape = ""
        if component.declared_in(category).types.is_upcast(message.type):
            shape = "; give it the shape of the message, which is upcast as that is"
        raise CorrectionError(f"The correction cannot be used: {error}{shape}") from error
    if after is None:
        raise CorrectionError(
            f"{message} is of a type that the component {component.name!r} ignores, so there is "
            f"nothing to correct; discard its dead letter"
        )
    declared = component.declared_in(category)
    _check_stream(declared, category, message, after)
    try:
        before = decoding.look(message, None)
    except MessageError:
        before = None
    if before is None:
        return tuple(_compare_fields(declared, message, corrected, after))
    _compare(declared, before, after)
    return ()


def _check_stream(
    of_category: CategoryDeclaration, category: str, message: StoredMessage, after: Decoded
) -> None:
    """Make sure that the key of a copy is the one that its stream is named by."""
    declared = of_category.reservations.get(message.type)
    if declared is None or category == command_category(of_category.name):
        return  # of copies in the command category, decoding has made sure of it
    with _comparing("key", message):
        names = (declared.stream_name(after.command), declared.former_stream(after.command))
    if message.stream_name not in names:
        raise _other(message, "key", message.stream_name)


def _compare(declared: CategoryDeclaration, before: Decoded, after: Decoded) -> None:
    """Make sure that two contents of a message have the same key and the same entity."""
    message = before.message
    if before.key_stream != after.key_stream:
        raise _other(message, "key", str(before.key_stream))
    with _comparing("entity", message):
        entities = [declared.entity_stream(decoded.command) for decoded in (before, after)]
    if entities[0] != entities[1]:
        raise _other(message, "entity", entities[0])
    strategy = declared.strategies.get(message.type)
    if isinstance(strategy, Processed) and strategy.key is not None:
        with _comparing("key", message):
            keys = [key_parts(decoded.command, strategy.key) for decoded in (before, after)]
        if keys[0] != keys[1]:
            raise _other(message, "key", "+".join(keys[0]))


@contextmanager
def _comparing(what: str, message: StoredMessage) -> Iterator[None]:
    """Give what the component's own code raises about a key or an entity without its values."""
    try:
        yield
    except ReservationError as error:
        raise CorrectionError(f"The {what} of {message} cannot be compared: {error}") from error
    except Exception as error:  # a function of the component can raise anything
        raise CorrectionError(
            f"The {what} of {message} cannot be compared: the component's code raised "
            f"{describe(error)}"
        ) from error


def _compare_fields(
    of_category: CategoryDeclaration,
    message: StoredMessage,
    corrected: StoredMessage,
    after: Decoded,
) -> Iterator[str]:
    """Compare the fields of a key and an entity; give those that the message does not have.

    Where the upcasters cannot take the message, both contents are compared in its former shape.
    """
    type_, upcast = of_category.types[message.type], _upcast(of_category, message)
    id_ = of_category.id_field(message.type)
    if id_ is None:
        yield "entity"
    fields = [] if id_ is None else [id_]
    declared = of_category.reservations.get(message.type)
    strategy = of_category.strategies.get(message.type)
    processed = strategy.key if isinstance(strategy, Processed) else None
    for key in (None if declared is None else declared.key, processed):
        if callable(key):
            yield "key"
        elif key is not None:
            fields.extend(key)
    if declared is not None and declared.entity is not None:
        fields.append(declared.entity)
    for field in dict.fromkeys(fields):
        try:
            former = key_part(_read_field(type_, field, upcast or message), field)
            now = (
                _read_field(type_, field, corrected)
                if upcast is None
                else getattr(after.command, field)
            )
        except (ReservationError, msgspec.MsgspecError, RecursionError):
            yield field
            continue
        if former != key_part(now, field):
            what = "entity" if field == id_ else "key"
            raise _other(message, what, f"{field} {former}")


def _upcast(declared: CategoryDeclaration, message: StoredMessage) -> StoredMessage | None:
    """Return a message in the shape that its class has today; None if its upcasters fail."""
    types = declared.types
    if not types.is_upcast(message.type):
        return message
    try:
        fields = types.chain(types[message.type]).upcast(message)
    except MessageError:
        return None
    return message if fields is None else with_data(message, encoder.encode(fields).decode())


def _read_field(type_: type, field: str, message: StoredMessage) -> object:
    """Return one field of a message whose other fields need not fit."""
    if message.data is None:
        raise IdempotenceKeyError(f"{message} has no data")
    hint = hints_of(type_)[field]
    only = msgspec.defstruct("Only", [(field, hint, msgspec.field(name=camel_case(field)))])
    try:
        return getattr(msgspec.json.decode(message.data, type=only), field)
    except (ReservationError, msgspec.MsgspecError, RecursionError):
        raise
    except Exception as error:  # the field's own class may check itself as it likes
        raise HandlerError(f"The field {field} of {message} raised {describe(error)}") from error


def _other(message: StoredMessage, what: str, former: str) -> CorrectionError:
    return CorrectionError(
        f"The correction of {message} has another {what}; it must have that of the message, "
        f"{printable(former)}. Send a new command for another intent"
    )
