"""Which messages have been handled before, found by the ids of what their handling writes."""

import uuid
from collections.abc import Iterator, Sequence

from consumers.decisions.decisions import Decisions
from consumers.handling.decoding import Decoding
from consumers.handling.transaction_needs import TransactionNeeds
from reservation.errors import MessageError
from reservation.messages.message import StoredMessage, followed_id
from reservation.store.client import MessageStore


def handled_before(
    store: MessageStore,
    messages: Sequence[StoredMessage],
    decoding: Decoding,
    needs: TransactionNeeds,
) -> frozenset[str]:
    """Return the ids of those messages whose first event is stored already.

    Args:
        store: in the transaction of the batch.
        messages: the batch.
        decoding: what says which entity each message is for.
        needs: what says which messages are handled in two transactions, and so have no such event.
    """
    first_events = list(_first_events(messages, decoding, needs))
    stored = store.stored_ids([event for _, event, _ in first_events])
    # In another stream it is no event of ours but a message that took the id, which the store
    # will then say.
    return frozenset(
        message.id for message, event, stream in first_events if stored.get(event) == stream
    )


def further_before(store: MessageStore, decisions: Decisions) -> Iterator[uuid.UUID]:
    """Give the ids of the further messages that are stored already, where they belong.

    Args:
        store: in the transaction of the batch.
        decisions: with the further messages.
    """
    if decisions.further:
        stored = store.stored_ids([row.id for row in decisions.further])
        for row in decisions.further:
            if stored.get(row.id) == row.stream_name:
                yield row.id


def _first_events(
    messages: Sequence[StoredMessage], decoding: Decoding, needs: TransactionNeeds
) -> Iterator[tuple[StoredMessage, uuid.UUID, str]]:
    """Give each message with the id and the stream that its handling's first event would have.

    Messages without data are to be reserved, and have none. Messages of a two-phase strategy are
    recognized by the versions of their states.
    """
    for message in messages:
        if message.data is None or needs.is_two_phase(message):
            continue
        try:
            decoded = decoding.look(message, None)
        except MessageError:
            continue
        if decoded is not None and decoded.entity_stream is not None:
            event = followed_id(message.id, decoded.entity_stream, 0)
            yield message, event, decoded.entity_stream
