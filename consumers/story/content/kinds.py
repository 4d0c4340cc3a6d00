"""What a message is, by what it says and by what it follows from."""

import uuid
from datetime import UTC, datetime

from consumers.story.content.entries import Kind
from reservation.idempotence.reserve import RESERVED
from reservation.messages import stream_name as names
from reservation.messages.message import StoredMessage, followed_id
from reservation.messages.pseudo_event import PSEUDO_EVENT, rejection_of
from reservation.messages.stream_name import command_category, correction_category

_COMMANDS = command_category("")
_CORRECTIONS = correction_category("")

# So many events of one message are recognized by their ids.
_MOST_EVENTS = 32


def kind_of(message: StoredMessage, cause: StoredMessage | None) -> Kind:
    """Return what a message is.

    Args:
        message: the message.
        cause: what it follows from; None if that is not known.
    """
    category = names.category(message.stream_name)
    if message.type == PSEUDO_EVENT:
        return Kind.NO_EVENT if rejection_of(message) is None else Kind.REJECTION
    if category.endswith(_CORRECTIONS) and message.type == "Corrected":
        return Kind.CORRECTION
    if cause is None:
        if message.metadata.local_properties.get(RESERVED) is True:
            return Kind.RESERVATION
        return Kind.COMMAND if is_command(message) else Kind.MESSAGE
    if is_copy(message, cause):
        return Kind.RESERVATION
    return Kind.EVENT if _is_event(message, cause) else Kind.FURTHER


def is_command(message: StoredMessage) -> bool:
    """Return whether a message is in a category of commands, and no copy within it."""
    return (
        names.category(message.stream_name).endswith(_COMMANDS)
        and message.metadata.local_properties.get(RESERVED) is not True
    )


def is_copy(message: StoredMessage, cause: StoredMessage) -> bool:
    """Return whether a message is the reserved copy of the one that it follows from.

    Handlers may write a message of the same type too, under an id that derives from its cause.
    """
    return (
        message.position == 0
        and message.metadata.causation_message_global_position == cause.global_position
        and message.type == cause.type
        and is_command(cause)
        and uuid.UUID(message.id).version != 5
    )


def is_of(component: str, message: StoredMessage) -> bool:
    """Return whether a message is in a stream of a component's entities."""
    return names.category(message.stream_name) == component


def component_of(message: StoredMessage) -> str | None:
    """Return the component whose command a message is, or is the copy of; None if it is neither."""
    for stream in (message.stream_name, message.metadata.causation_message_stream_name or ""):
        category = names.category(stream)
        if category.endswith(_COMMANDS):
            return category[: -len(_COMMANDS)]
    return None


def time_of(message: StoredMessage) -> datetime:
    """Return when a message was stored, in UTC."""
    return message.time.replace(tzinfo=UTC)


def _is_event(message: StoredMessage, cause: StoredMessage) -> bool:
    component = component_of(cause)
    if component is not None:
        return is_of(component, message)
    id_, stream = uuid.UUID(message.id), message.stream_name
    return id_.version == 5 and any(
        followed_id(cause.id, stream, n) == id_ for n in range(_MOST_EVENTS)
    )
