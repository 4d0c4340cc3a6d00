"""Whom a message is for: the command in it, its entity, and the stream of its key."""

from collections.abc import Callable

from reservation.declaration.category import CategoryDeclarations
from reservation.errors import (
    DecodeError,
    HandlerError,
    IdempotenceKeyError,
    ReservationError,
    UnknownTypeError,
)
from reservation.idempotence.reserve import Reservation
from reservation.messages.message import StoredMessage, printable
from reservation.raised import describe

# Returns whether an exception is to be raised as it is, because it is not a fault of the message.
Passes = Callable[[BaseException], bool]


def unknown_type(declared: CategoryDeclarations, message: StoredMessage) -> UnknownTypeError:
    """Return the error of a message that nothing handles."""
    return UnknownTypeError(
        f"Nothing handles {message}: declare a handler for {printable(message.type)} in "
        f"the component {declared.component!r}, or let it pass with "
        f"{declared.component}.ignore({printable(message.type)!r})"
    )


def command_in(declared: CategoryDeclarations, message: StoredMessage, passes: Passes) -> object:
    """Return the command, or the message of a subscribed category, in a stored message."""
    try:
        return declared.types.decode(message)
    except Exception:
        raise
    except BaseException as error:
        if passes(error):
            raise
        raise DecodeError(f"Cannot decode {message}: its class raised {describe(error)}") from error


def entity_stream_of(
    declared: CategoryDeclarations, message: StoredMessage, command: object, passes: Passes
) -> str:
    """Return the stream of the entity that a message is for."""
    try:
        return declared.entity_stream(command)
    except ReservationError as error:
        raise IdempotenceKeyError(f"Cannot handle {message}: {error}") from error
    except BaseException as error:  # a function that gives the id can raise anything
        if passes(error):
            raise
        raise HandlerError(
            f"The function that gives the id of the entity of {message} raised {describe(error)}"
        ) from error


def key_streams_of(
    reservation: Reservation, message: StoredMessage, command: object, passes: Passes
) -> tuple[str, str | None]:
    """Return the stream that a command's key names, and its former one; None if it has none."""
    try:
        return reservation.stream_name(command), reservation.former_stream(command)
    except IdempotenceKeyError as error:
        raise no_key(message, error) from error
    except BaseException as error:  # a key function can raise anything
        if passes(error):
            raise
        raise HandlerError(f"The key function for {message} raised {describe(error)}") from error


def no_key(message: StoredMessage, error: ReservationError) -> IdempotenceKeyError:
    """Return the error of a command that cannot be reserved."""
    return IdempotenceKeyError(f"Cannot reserve {message}: {error}. Correct its sender")
