"""The check of a batch's messages against stored versions of states, and the versions to add."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from reservation.errors import (
    ExpiredError,
    IdempotenceKeyError,
    StoreError,
    StreamNameError,
)
from reservation.idempotence.state_based.delta import difference
from reservation.idempotence.state_based.states import (
    BuiltState,
    FirstHandling,
    StreamStates,
    Version,
    appending,
    looking,
    state_stream,
)
from reservation.idempotence.strategy import Check, Incoming
from reservation.messages.message import printable
from reservation.postgres.exchange.request import Request
from reservation.store.statements import Statement

# Versions that may build on one that holds the whole state, so that none takes long to build.
MOST_DELTAS = 50


def look(category: str, batch: Sequence[Incoming]) -> Statement[Check]:
    """Return what reads the versions for the messages of a batch."""
    streams = [_stream(incoming) for incoming in batch]
    ids = [incoming.message.id for incoming in batch]
    reading = looking(list(zip(streams, ids, strict=True)))

    def check(rows: Sequence[tuple[Any, ...]]) -> Check:
        found = zip(batch, streams, reading.read(rows), strict=True)
        return StateCheck(
            category,
            {one.message.global_position: (stream, stored) for one, stream, stored in found},
        )

    return Statement(reading.query, reading.parameters, check)


class StateCheck(Check):
    """The versions that are stored for the messages of one batch, and those that are added."""

    def __init__(self, category: str, found: Mapping[int, tuple[str, StreamStates]]) -> None:
        self._category = category
        self._found = found  # by global position, with the stream of each message's state
        self._read = {
            (stream, stored.newest if stored.known is None else stored.known.position - 1): before
            for stream, stored in found.values()
            if (before := stored.before) is not None
        }
        # By stream, the position of the newest version and its state.
        self._newest: dict[str, tuple[int, BuiltState]] = {}
        self._added: list[Version] = []

    def is_duplicate(self, incoming: Incoming) -> bool:
        """Return whether a version is stored of a message."""
        stream, stored = self._of(incoming)
        if stored.known is not None:
            return True
        if incoming.message.global_position <= stored.expired.get(self._category, 0):
            raise _expired(incoming, stream)
        return False

    def state_before(self, incoming: Incoming) -> str | None:
        """Return the state on which to handle a message, as JSON text; None for a new one.

        That is the state before the first handling of a duplicate, or else the newest.
        """
        stream, stored = self._of(incoming)
        if stored.known is None:
            position, state = self._newest_of(stream, stored)
            return None if position < 0 else state.text
        if stored.known.position == 0:
            return None
        before = self._read.get((stream, stored.known.position - 1))
        if before is None:
            raise _expired(incoming, stream)
        return before.text

    def first_handling(self, incoming: Incoming) -> FirstHandling | None:
        """Return the stored first handling of a message; None if it is new."""
        return self._of(incoming)[1].known

    def handled(
        self, incoming: Incoming, state: str, given: str, outputs: str, *, as_delta: bool
    ) -> None:
        """Note the version that a new message makes."""
        message = incoming.message
        stream, stored = self._of(incoming)
        newest, before = self._newest_of(stream, stored)
        position = newest + 1
        is_delta = as_delta and position > 0 and position - before.base <= MOST_DELTAS
        base = before.base if is_delta else position
        version = Version(
            stream,
            position,
            uuid.UUID(message.id),
            self._category,
            message.global_position,
            base=base,
            state=difference(before.text, state) if is_delta else state,
            given=given,
            outputs=outputs,
        )
        self._newest[stream] = position, BuiltState(state, base)
        self._added.append(version)

    def record(self) -> Sequence[Request]:
        """Return what stores the new versions."""
        return [appending(self._added)] if self._added else ()

    def _of(self, incoming: Incoming) -> tuple[str, StreamStates]:
        return self._found[incoming.message.global_position]

    def _newest_of(self, stream: str, stored: StreamStates) -> tuple[int, BuiltState]:
        """Return the newest version; its position is -1 if there is none."""
        newest = self._newest.get(stream)
        if newest is not None:
            return newest
        state = BuiltState("", 0) if stored.newest < 0 else self._read.get((stream, stored.newest))
        if state is None:
            raise StoreError(
                f"The newest state in {printable(stream)} builds on versions that are missing from "
                f"reservation.states; restore them"
            )
        self._newest[stream] = stored.newest, state
        return stored.newest, state


def _stream(incoming: Incoming) -> str:
    try:
        return state_stream(incoming.entity_stream)
    except StreamNameError as error:
        raise IdempotenceKeyError(f"Cannot keep a state for {incoming.message}: {error}") from error


def _expired(incoming: Incoming, stream: str) -> ExpiredError:
    return ExpiredError(
        f"Cannot tell whether {incoming.message}, was handled before: versions of "
        f"{printable(stream)} up to its time were removed. If it is new, send it again under a new "
        f"id; keep versions for longer with StateBased(window=...)"
    )
