"""The check that other data is the same intent: its key and its entity must stay.

The server compares the fields that make them (`reservation.retry_with_data`). What functions and
upcasters make of a message only the component can tell, when the message is handled.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from consumers.handling.decoding import Decoded, Decoding
from reservation.declaration.category import CategoryDeclarations
from reservation.errors import (
    HandlerError,
    IdempotenceKeyError,
    MessageError,
    ReservationError,
)
from reservation.idempotence.key import key_parts
from reservation.idempotence.processed import Processed
from reservation.idempotence.revision import Revisions
from reservation.messages.message import StoredMessage
from reservation.raised import describe
from reservation.serialization.fields import keys_of


def key_fields(declared: CategoryDeclarations, name: str) -> list[str] | None:
    """Return the JSON fields that make key and entity of a type; None if a function makes them."""
    if name not in declared.types:
        return None
    if declared.is_read:  # the entity is the stream, which no other data changes
        return []
    fields = [declared.id_field(name)]
    reservation, strategy = declared[name].reservation, declared[name].once
    if reservation is not None:
        fields.append(reservation.entity or fields[0])
        fields += [None] if callable(reservation.key) else reservation.key
    if isinstance(strategy, Processed) and strategy.key is not None:
        fields += [None] if callable(strategy.key) else strategy.key
    if isinstance(strategy, Revisions):
        fields += [strategy.revision, strategy.source or strategy.revision]
    keys = keys_of(declared.types[name])
    named = [field for field in dict.fromkeys(fields) if field is not None]
    known = [
        keys[field] for field in named if field in keys
    ]  # one that is not handled may lack some
    return known if None not in fields else None


def check_same_intent(
    declared: CategoryDeclarations, decoding: Decoding, sent: StoredMessage, given: Decoded
) -> None:
    """Make sure that a message with other data has the key and the entity that it had."""
    if declared.is_read:
        return
    reservation = declared[sent.type].reservation
    if reservation is not None and given.key_stream is None:
        with _comparing(decoding, sent, "key"):
            names = reservation.stream_name(given.command), reservation.former_stream(given.command)
        if sent.stream_name not in names:  # the stream of a copy is named by its key
            raise _differs(sent, "key")
    try:
        before = decoding.look(sent, None)
    except MessageError:
        return
    if before is None:
        return
    if before.key_stream != given.key_stream:
        raise _differs(sent, "key")
    with _comparing(decoding, sent, "entity"):
        former, entity = (declared.entity_stream(one.command) for one in (before, given))
    if former != entity:
        raise _differs(sent, "entity")
    strategy = declared[sent.type].once
    if isinstance(strategy, Processed) and strategy.key is not None:
        with _comparing(decoding, sent, "key"):
            keys = [key_parts(one.command, strategy.key) for one in (before, given)]
        if keys[0] != keys[1]:
            raise _differs(sent, "key")


@contextmanager
def _comparing(decoding: Decoding, sent: StoredMessage, what: str) -> Iterator[None]:
    """Report what the component's own code raises about a key or an entity without its values."""
    try:
        yield
    except ReservationError as error:
        raise IdempotenceKeyError(f"Cannot compare the {what} of {sent}: {error}") from error
    except BaseException as error:  # a function of the component can raise anything
        if decoding.is_no_fault(error):
            raise
        raise HandlerError(
            f"Cannot compare the {what} of {sent}: the component's code raised {describe(error)}"
        ) from error


def _differs(sent: StoredMessage, what: str) -> IdempotenceKeyError:
    return IdempotenceKeyError(
        f"The data given for {sent} has another {what} than the message; for another intent, send "
        f"a new command"
    )
