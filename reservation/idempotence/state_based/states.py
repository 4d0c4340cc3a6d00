"""The stored versions of states: finding those of messages, reading, appending.

Their streams are not in the log but in the table ``reservation.states``, because versions are
removed after a while. Nothing is removed from the log: its positions have no gaps, its readers
trust what they have read, and no role may delete.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from psycopg import Connection, Cursor
from psycopg import errors as pg

from reservation.errors import ExpectedVersionError
from reservation.idempotence.state_based.delta import apply
from reservation.messages import stream_name
from reservation.postgres.arrays import IntArray, TextArray, UuidArray, array_cursor
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

QUERIES = load_queries("reservation.idempotence.state_based")


def state_category(component: str) -> str:
    """Return the category of a component's states: ``range:state`` for ``range``."""
    return f"{component}{stream_name.TYPE_SEPARATOR}state"


def state_stream(entity_stream: str) -> str:
    """Return the stream of an entity's states: ``range:state-1`` for ``range-1``."""
    category = stream_name.category(entity_stream)
    return stream_name.check(state_category(category) + entity_stream[len(category) :])


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a state, to be stored.

    Attributes:
        stream_name: the state's stream.
        position: from 0, without gaps.
        message_id: the message that made it.
        category: the category that the message was read from.
        global_position: the message's.
        base: the position of the version with the whole state that this one builds on.
        state: JSON text: the whole state, or the fields in which it differs from the one before.
        given: JSON text of the `HandlerInputs` of the handler.
        outputs: JSON text of what it published.
    """

    stream_name: str
    position: int
    message_id: uuid.UUID
    category: str
    global_position: int
    base: int
    state: str
    given: str
    outputs: str


@dataclass(frozen=True, slots=True)
class FirstHandling:
    """What is stored of the first handling of a message.

    Attributes:
        stream_name: the stream with the version of the state that it made.
        position: the position of that version.
        given: JSON text of the `HandlerInputs` of the handler.
        outputs: JSON text of what it published.
    """

    stream_name: str
    position: int
    given: str
    outputs: str


@dataclass(frozen=True, slots=True)
class StreamStates:
    """What is stored in the stream that a message is for.

    Attributes:
        newest: the position of the newest version, -1 if there is none.
        expired: under categories, the highest global position of the messages whose versions were
            removed.
        known: the message's own version; None if there is none.
    """

    newest: int
    expired: dict[str, int]
    known: FirstHandling | None


@dataclass(frozen=True, slots=True)
class Built:
    """A state, and how it is stored.

    Attributes:
        text: the whole state as JSON.
        base: the position of the version with the whole state that it was built on.
    """

    text: str
    base: int


class States:
    """The stored versions, in the transaction that a connection is in."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def look(self, wanted: Sequence[tuple[str, str]]) -> list[StreamStates]:
        """Return what is stored for messages, in one statement."""
        rows = self._execute(
            "look",
            streams=TextArray([stream for stream, _ in wanted]),
            messages=UuidArray([uuid.UUID(message) for _, message in wanted]),
        ).fetchall()
        return [
            StreamStates(
                -1 if newest is None else newest,
                msgspec.json.decode(expired or "{}"),
                None if position is None else FirstHandling(stream, position, *rest),
            )
            for (stream, _), (newest, expired, position, *rest) in zip(wanted, rows, strict=True)
        ]

    def read(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Built]:
        """Return states by stream and position, in one statement.

        Those that are not there, or not all of what they build on, are left out.
        """
        keys = set(wanted)
        if not keys:
            return {}
        rows = self._execute(
            "read",
            streams=TextArray([stream for stream, _ in keys]),
            positions=IntArray([position for _, position in keys]),
        ).fetchall()
        stored = {(stream, position): (base, text) for stream, position, base, text in rows}
        built = {}
        for key in keys:
            state = _build(stored, *key)
            if state is not None:
                built[key] = state
        return built

    def newest(self, stream_name: str) -> str | None:
        """Return the newest state in a stream as JSON text, or None if there is none."""
        rows = self._execute("newest", stream=stream_name).fetchall()
        found = self.read((stream_name, position) for (position,) in rows)
        return next((state.text for state in found.values()), None)

    def append(self, versions: Sequence[Version]) -> None:
        """Store versions, in one statement."""
        if versions:
            self._execute(
                "append",
                streams=TextArray([version.stream_name for version in versions]),
                positions=IntArray([version.position for version in versions]),
                messages=UuidArray([version.message_id for version in versions]),
                categories=TextArray([version.category for version in versions]),
                global_positions=IntArray([version.global_position for version in versions]),
                bases=IntArray([version.base for version in versions]),
                states=TextArray([version.state for version in versions]),
                given=TextArray([version.given for version in versions]),
                outputs=TextArray([version.outputs for version in versions]),
            )

    # Any: what a query takes.
    def _execute(self, query: str, **parameters: Any) -> Cursor[tuple[Any, ...]]:
        cursor = array_cursor(self._connection)
        with translated():
            try:
                return cursor.execute(QUERIES[query], parameters, prepare=False)
            except pg.UniqueViolation as error:
                key = error.diag.message_detail or "a version"
                raise ExpectedVersionError(
                    f"Another transaction stored the state first: {key}"
                ) from error


def _build(
    stored: dict[tuple[str, int], tuple[int, str]], stream: str, position: int
) -> Built | None:
    """Put a state together from the version that holds the whole, and what changed since."""
    if (stream, position) not in stored:
        return None
    base, _ = stored[stream, position]
    parts = [stored.get((stream, n)) for n in range(base, position + 1)]
    if None in parts:
        return None
    (_, text), *deltas = [part for part in parts if part is not None]
    for _, delta in deltas:
        text = apply(text, delta)
    return Built(text, base)
