"""Messages that have been handled before, found by the ids of what their handling writes."""

import json
import uuid
from collections.abc import Iterator, Sequence

from consumers.effects.effects import Effects
from consumers.handling.decoding import Decoding
from reservation.declaration.category import CategoryDeclarations
from reservation.effects.faults import TakenIdError
from reservation.errors import MessageError
from reservation.messages.message import StoredMessage, followed_id
from reservation.store.client import MessageStore
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row


def handled_before(
    store: MessageStore,
    messages: Sequence[StoredMessage],
    decoding: Decoding,
    declared: CategoryDeclarations,
) -> frozenset[str]:
    """Return the ids of those messages whose first event is stored already."""
    first_events = list(_first_events(messages, decoding, declared))
    stored = store.stored_ids([event for _, event, _ in first_events])
    # In another stream it is no event of ours but a message that took the id, which the store
    # will then say.
    return frozenset(
        message.id for message, event, stream in first_events if stored.get(event) == stream
    )


def further_before(store: MessageStore, effects: Effects) -> Iterator[uuid.UUID]:
    """Give the ids of the further messages that are stored already, where they belong."""
    if effects.further:
        stored = store.stored_ids([row.id for row in effects.further])
        for row in effects.further:
            if stored.get(row.id) == row.stream_name:
                yield row.id


def refuse_taken_ids(
    store: MessageStore, effects: Effects, messages: Sequence[StoredMessage]
) -> None:
    """Refuse to write what has the id of a message in another stream."""
    rows: list[Row | ScheduledRow] = [*effects.writes, *effects.scheduled]
    if not rows:
        return
    stored = store.stored_ids([row.id for row in rows])
    causes = {message.global_position: message for message in messages}
    for row in rows:
        taken_by = stored.get(row.id, row.stream_name)
        if taken_by != row.stream_name and (cause := causes.get(_cause(row))) is not None:
            raise TakenIdError(cause, row.id, taken_by)


def _cause(row: Row | ScheduledRow) -> int:
    metadata = {} if row.metadata is None else json.loads(row.metadata)
    return int(metadata.get("causationMessageGlobalPosition", 0))


def _first_events(
    messages: Sequence[StoredMessage], decoding: Decoding, declared: CategoryDeclarations
) -> Iterator[tuple[StoredMessage, uuid.UUID, str]]:
    """Give each message with the id and the stream that its handling's first event would have.

    Messages without data are to be reserved, and have none.
    """
    if declared.is_read:  # which writes no events; its position says what was handled
        return
    with_state = declared.state_based
    for message in messages:
        if message.data is None or message.type in with_state:
            continue
        try:
            decoded = decoding.look(message, None)
        except MessageError:
            continue
        if decoded is not None and decoded.entity_stream is not None:
            event = followed_id(message.id, decoded.entity_stream, 0)
            yield message, event, decoded.entity_stream
