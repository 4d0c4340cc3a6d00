"""A handler's output, encoded as soon as it returns.

Before that a message may share a list with the entity, the command, or what the handler keeps.
After that nothing can change what is stored. The consumers and `reservation.testing` use this.
"""

from collections.abc import Collection, Coroutine, Iterator, Sequence

from reservation.errors import EncodeError, HandlerError, StoreError
from reservation.messages.message import StoredMessage, followed_id
from reservation.messages.metadata import Metadata
from reservation.messages.pseudo_event import PseudoEvent
from reservation.messages.written import WrittenAs, written_as
from reservation.serialization.fields import is_message
from reservation.store.writing.scheduling import ScheduledRow, ScheduledWrite, scheduled_row
from reservation.store.writing.write import (
    Row,
    Write,
    encode_data,
    encode_metadata,
    row_of,
    with_version,
)


def events_of(
    result: object, message: StoredMessage, commands: Collection[type] = (), *, starts: bool = False
) -> list[object]:
    """Return the events that a handler returned: none, one, or several."""
    events = [result] if is_message(result) else list(_events(result, message))
    for event in events:
        if type(event) in commands:
            raise HandlerError(
                f"The handler of {message} returned the command {type(event).__name__}; return an "
                f"event, and write commands with context.write"
            )
    if starts and not events:
        raise HandlerError(
            f"The handler of {message} returned no event; a command that initiates must "
            f"return the event that starts the stream"
        )
    return events


def _events(result: object, message: StoredMessage) -> Iterator[object]:
    if result is None:
        return
    if is_message(result):
        yield result
        return
    if not isinstance(result, list | tuple):
        if isinstance(result, Coroutine):
            result.close()  # nobody awaits it
        raise HandlerError(
            f"The handler of {message} returned a {type(result).__name__}; a handler returns an "
            f"event, several or None"
        )
    for event in result:
        yield from _events(event, message)


def encode_events(
    events: Sequence[object],
    message: StoredMessage,
    stream_name: str,
    metadata: Metadata | None = None,
    version: int | None = None,
    written: WrittenAs = written_as,
) -> list[Row]:
    """Return the events of a handler as they are written to the stream of its entity."""
    if not events:
        return []
    rows = []
    texts: dict[int | None, str | None] = {}
    try:
        for ordinal, event in enumerate(events):
            name, shape = written(type(event))
            if shape not in texts:
                text = None
                if metadata is None and shape is None:
                    text = message.follow_metadata_text()
                if text is None:
                    known = with_version(metadata or message.follow_metadata(), name, shape)
                    text = encode_metadata(known, name, stream_name)
                texts[shape] = text
            row = Row(
                followed_id(message.id, stream_name, ordinal),
                stream_name,
                name,
                encode_data(event, stream_name),
                texts[shape],
                None if version is None else version + ordinal,
            )
            rows.append(row)
    except EncodeError as error:
        raise EncodeError(
            f"The handler of {message} returned what cannot be stored: {error}"
        ) from error
    return rows


def encode_further(
    writes: Sequence[Write], message: StoredMessage, written: WrittenAs = written_as
) -> list[Row]:
    """Return the further messages of a handler as they are written."""
    try:
        return [row_of(write, written=written) for write in writes]
    except (EncodeError, StoreError) as error:
        raise EncodeError(
            f"The handler of {message} wrote what cannot be stored: {error}"
        ) from error


def with_trace(events: Sequence[object], scheduled: Sequence[ScheduledWrite]) -> Sequence[object]:
    """Return the events of a handler; a pseudo event if it did nothing but schedule messages.

    That shows that the message was handled, before and after those are written, and also if they
    are cancelled.
    """
    return [PseudoEvent()] if scheduled and not events else events


def encode_scheduled(
    scheduled: Sequence[ScheduledWrite], message: StoredMessage, written: WrittenAs = written_as
) -> list[ScheduledRow]:
    """Return the messages that a handler scheduled as they will be written."""
    try:
        return [scheduled_row(one, written) for one in scheduled]
    except (EncodeError, StoreError) as error:
        raise EncodeError(
            f"The handler of {message} scheduled what cannot be stored: {error}"
        ) from error
