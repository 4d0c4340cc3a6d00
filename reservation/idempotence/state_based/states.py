"""The stored versions of states: finding those of messages, reading, appending.

Their streams are not in the log but in the table ``reservation.states``, because versions are
removed after a while. Nothing is removed from the log: its positions have no gaps, its readers
trust what they have read, and no role may delete.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec
import psycopg
from psycopg import errors as pg

from reservation.errors import ExpectedVersionError
from reservation.idempotence.state_based.delta import apply
from reservation.messages import stream_name
from reservation.postgres.arrays import IntArray, TextArray, UuidArray
from reservation.postgres.error_translation import translation
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries
from reservation.store.statements import Statement

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
    """The stored first handling of a message.

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
class BuiltState:
    """A state, and how it is stored.

    Attributes:
        text: the whole state as JSON.
        base: the position of the version with the whole state that it was built on.
    """

    text: str
    base: int


@dataclass(frozen=True, slots=True)
class StreamStates:
    """The states in the stream that a message is for.

    Attributes:
        newest: the position of the newest version, -1 if there is none.
        expired: under categories, the highest global position of the messages whose versions were
            removed.
        known: the message's own version; None if there is none.
        before: the state before the message's own version, or else the newest; None if there is
            none, or an earlier message has it already.
    """

    newest: int
    expired: dict[str, int]
    known: FirstHandling | None
    before: BuiltState | None


def looking(wanted: Sequence[tuple[str, str]]) -> Statement[list[StreamStates]]:
    """Return what reads what is stored for messages, of which each is a stream and an id."""

    def read(rows: Sequence[tuple[Any, ...]]) -> list[StreamStates]:
        found = []
        for (stream, _), row in zip(wanted, rows, strict=True):
            newest, expired, position, given, outputs, base, states = row
            found.append(
                StreamStates(
                    -1 if newest is None else newest,
                    msgspec.json.decode(expired or "{}"),
                    None if position is None else FirstHandling(stream, position, given, outputs),
                    None if base is None else BuiltState(_built(states), base),
                )
            )
        return found

    streams = TextArray([stream for stream, _ in wanted])
    messages = UuidArray([uuid.UUID(message) for _, message in wanted])
    return Statement(QUERIES["look"], [streams, messages], read)


def appending(versions: Sequence[Version]) -> Request:
    """Return the statement that stores versions."""
    values = {
        "streams": TextArray([version.stream_name for version in versions]),
        "positions": IntArray([version.position for version in versions]),
        "messages": UuidArray([version.message_id for version in versions]),
        "categories": TextArray([version.category for version in versions]),
        "global_positions": IntArray([version.global_position for version in versions]),
        "bases": IntArray([version.base for version in versions]),
        "states": TextArray([version.state for version in versions]),
        "given": TextArray([version.given for version in versions]),
        "outputs": TextArray([version.outputs for version in versions]),
    }
    return Request(QUERIES["append"], values, failed=_not_appended)


def _not_appended(error: psycopg.Error) -> Exception:
    if isinstance(error, pg.UniqueViolation):
        key = error.diag.message_detail or "a version"
        return ExpectedVersionError(f"Another transaction stored the state first: {key}")
    return translation(error)


def _built(states: Sequence[str]) -> str:
    """Put a state together from the version that holds the whole, and what changed since."""
    return reduce(apply, states)
