"""The reservation pattern: a command takes effect through the one copy that its key admits.

Each command is copied to a stream named by its idempotence key, written with expected version -1:
the stream must not exist yet. The first copy wins. A reissue finds the stream there and is
discarded; a second consumer handles the copy. Nothing is forgotten and there is no time window.
(Source: the reservation pattern of Eventide.)

Where no other category is named, the copy goes to the command category, under the ids of the
command's stream and the key, and carries a local property. A message with that property is a copy
if it is the first of the stream that its own key names: only one message can be. (Source: the
idempotence reservation of Hubbado, for Eventide.)
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import psycopg
from psycopg import Connection

from reservation.errors import IdempotenceKeyError, StreamNameError
from reservation.idempotence.key import KeyFunction, key_part, key_parts, key_stream_name
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage
from reservation.postgres.arrays import (
    IntArray,
    JsonArray,
    TextArray,
    fetch_all,
)
from reservation.postgres.connection import check_encoding
from reservation.postgres.error_translation import translated, translation
from reservation.postgres.exchange.exchange import exchange
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries

# By this local property the reader finds what may be a copy in the command category.
RESERVED = "reserved"


class ReserveOutcome(StrEnum):
    """The outcome of a command that was to be reserved."""

    RESERVED = "reserved"
    DUPLICATE = "duplicate"  # the same intent, sent again
    CONFLICT = "conflict"  # the same key with different content


@dataclass(frozen=True, slots=True)
class Reservation:
    """How commands of one type are reserved.

    Attributes:
        command: the command's dataclass.
        into: the reservation category; None for the category of the commands themselves.
        key: the fields that hold the idempotence key, or a function of the command.
        entity: the field whose value leads the stream's id, so that a consumer group keeps the
            commands of an entity in order; None for streams named by the key alone.
        volatile: fields in which a reissue may differ from the first issue, such as the time of
            sending.
        formerly: the fields, or a function of the command, that were the whole id of the stream
            before the declaration was changed; None if it was not.
        same_key: whether the fields of the key are the same in every former shape of the command.
    """

    command: type
    into: str | None
    key: tuple[str, ...] | KeyFunction
    entity: str | None = None
    volatile: tuple[str, ...] = ()
    formerly: tuple[str, ...] | KeyFunction | None = None
    same_key: bool = False

    def stream_name(self, command: object, sent_to: str = "") -> str:
        """Return the reservation stream of a command.

        Args:
            command: the command, decoded.
            sent_to: the stream that the command is in, which leads the name where the copy goes to
                the same category.

        Raises:
            IdempotenceKeyError: the command has no key, or one that cannot name a stream.
        """
        parts = key_parts(command, self.key)
        if self.entity is not None:
            entity = key_part(getattr(command, self.entity), f"field {self.entity}")
            parts = [entity, *parts]
        return self.stream_of(parts, sent_to)

    def stream_of(self, parts: Sequence[str], sent_to: str = "") -> str:
        """Return the reservation stream that the parts of a key name.

        Args:
            parts: the parts as texts, after that of the entity where it leads the stream's id.
            sent_to: as for `stream_name`.

        Raises:
            IdempotenceKeyError: they cannot name a stream.
        """
        if self.into is None:
            return _beneath(sent_to, parts)
        return key_stream_name(self.into, parts)

    def former_stream(self, command: object, sent_to: str = "") -> str | None:
        """Return the stream that a command was reserved in formerly; None if it cannot have been.

        Args:
            command: the command, decoded.
            sent_to: as for `stream_name`.
        """
        if self.formerly is None:
            return None
        try:
            return self.stream_of(key_parts(command, self.formerly), sent_to)
        except IdempotenceKeyError:
            return None

    def is_copy(self, message: StoredMessage, command: object) -> bool:
        """Return whether a message of the command category is a copy, to be handled there.

        The mark alone is not enough, because every sender can set it. A copy is the first message
        of the stream that its own key names beneath the stream of the command that it follows. Only
        one message can be that, so a key has one effect, whoever wrote it. With a former key form
        there are two such streams; `reserve` makes one only where there is not the other.

        Args:
            message: the message.
            command: the command in it, decoded.

        Raises:
            IdempotenceKeyError: it has the place of a copy, but under another key.
        """
        if self.into is not None or message.position != 0 or not beneath_its_command(message):
            return False
        sent_to = message.metadata.causation_message_stream_name or ""
        named = self.stream_name(command, sent_to), self.former_stream(command, sent_to)
        if message.stream_name not in named:
            raise IdempotenceKeyError(
                f"{message} says that it is a reserved copy, and its stream is not the one that "
                f"its key names; a key cannot be changed while there are copies under the old one"
            )
        return True


_QUERIES = load_queries("reservation.idempotence")


def reserve(
    connection: Connection[Any],
    commands: Sequence[tuple[int, str]],
    volatile: Mapping[str, Sequence[str]],
    former: Sequence[str | None] | None = None,
    corrected: Sequence[str | None] | None = None,
    before: Sequence[Request] = (),
    *,
    commits: bool = False,
) -> list[ReserveOutcome]:
    """Reserve a batch of commands, in one statement that leaves the payloads in the server.

    Args:
        connection: in the transaction that also moves the consumer's position.
        commands: each command's global position and the stream that its key names.
        volatile: by message type, the JSON fields in which a reissue may differ.
        former: for each command, the stream that it may have been reserved in before the
            declaration was changed; None where there is none, or none for all of them.
        corrected: for each command, the JSON text that it was corrected to, which is reserved and
            compared in the place of its data; None where it was not, or for all of them.
        before: what is to be sent before, in one round trip.
        commits: whether to commit in the same round trip (`exchange`), if there is no conflict.

    Returns:
        The outcome of each command, in the order given.

    Raises:
        ConflictFoundError: there is a conflict, and the transaction has failed.
        StoreError: the connection is set to another encoding than UTF-8.
    """
    if not commands:
        return []
    check_encoding(connection)
    outcomes = [ReserveOutcome.RESERVED] * len(commands)
    names = None if former is None else list(former)
    further = names, _contents(corrected)
    for n, outcome in _outcomes(
        connection, "reserve", commands, volatile, *further, before=before, commits=commits
    ):
        outcomes[n - 1] = outcome
    return outcomes


class ConflictFoundError(Exception):
    """A command is in conflict with an earlier one, in a transaction that cannot record that."""


def compare_initiations(
    connection: Connection[Any],
    commands: Sequence[tuple[int, str]],
    volatile: Mapping[str, Sequence[str]],
    corrected: Sequence[str | None] | None = None,
) -> list[ReserveOutcome]:
    """Compare commands that found their entity's stream started with what started it.

    Args:
        connection: in the transaction that also moves the consumer's position.
        commands: each command's global position and its entity's stream.
        volatile: by message type, the JSON fields in which a reissue may differ.
        corrected: as for `reserve`.

    Returns:
        For each, in the order given: a duplicate of the command that started the stream, or in
        conflict with it.
    """
    if not commands:
        return []
    outcomes = _outcomes(
        connection, "compare_initiations", commands, volatile, _contents(corrected)
    )
    return [outcome for _, outcome in outcomes]


def _contents(corrected: Sequence[str | None] | None) -> JsonArray | None:
    return None if corrected is None else JsonArray(corrected)


def beneath_its_command(message: StoredMessage) -> bool:
    """Return whether a message says that it is a copy, and is beneath its command's stream."""
    metadata = message.metadata
    sent_to = metadata.causation_message_stream_name
    return (
        metadata.local_properties.get(RESERVED) is True
        and sent_to is not None
        and message.stream_name.startswith(_prefix(sent_to))
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """A command, and the one that was there first under its key.

    Attributes:
        ordinal: which of the commands that were asked about it is, from 0.
        command: the command.
        first: the reservation, or the command that started the stream.
        corrections: the data that the first was corrected from, and to.
    """

    ordinal: int
    command: StoredMessage
    first: StoredMessage
    corrections: Sequence[str] = ()


def first_reserved(
    connection: Connection[Any],
    commands: Sequence[tuple[int, str]],
    former: Sequence[str | None] | None = None,
) -> list[Pair]:
    """Return commands, with what was reserved first under their keys, in one statement.

    Args:
        connection: in the transaction that reserved the batch.
        commands: each command's global position and the stream that its key names.
        former: as for `reserve`.
    """
    return _pairs(connection, "first_reserved", commands, former)


def first_initiated(connection: Connection[Any], commands: Sequence[tuple[int, str]]) -> list[Pair]:
    """Return commands, with those that started the streams of their entities, in one statement.

    Args:
        connection: in the transaction that compared the batch.
        commands: each command's global position and its entity's stream.
    """
    return _pairs(connection, "first_initiated", commands, None)


def _pairs(
    connection: Connection[Any],
    query: str,
    commands: Sequence[tuple[int, str]],
    former: Sequence[str | None] | None,
) -> list[Pair]:
    if not commands:
        return []
    positions, names = zip(*commands, strict=True)
    formerly = list(former) if former is not None else [None] * len(commands)
    parameters = [IntArray(positions), TextArray(names), formerly]
    rows = fetch_all(connection, _QUERIES[query], parameters)
    return [
        Pair(n - 1, StoredMessage(*row[:8]), StoredMessage(*row[8:]), corrections)
        for n, corrections, *row in rows
    ]


def _beneath(sent_to: str, parts: Sequence[str]) -> str:
    """Return the name of a command's stream with the key added to its ids.

    Raises:
        IdempotenceKeyError: the parts contain a separator, or make no name.
    """
    for part in parts:
        if stream_name.COMPOUND_SEPARATOR in part:
            raise IdempotenceKeyError(
                f"The key {part!r} holds a '+', which separates it from the ids of the command's "
                f"stream; reserve into another category with into=, or send a key without one"
            )
    try:
        return stream_name.check(_prefix(sent_to) + stream_name.COMPOUND_SEPARATOR.join(parts))
    except StreamNameError as error:
        raise IdempotenceKeyError(str(error)) from error


def _prefix(sent_to: str) -> str:
    """Return what the names of the copies of a stream's commands begin with."""
    of_category = stream_name.is_category(sent_to)
    return sent_to + (stream_name.ID_SEPARATOR if of_category else stream_name.COMPOUND_SEPARATOR)


def _outcomes(
    connection: Connection[Any],
    query: str,
    commands: Sequence[tuple[int, str]],
    volatile: Mapping[str, Sequence[str]],
    *further: object,
    before: Sequence[Request] = (),
    commits: bool = False,
) -> Iterator[tuple[int, ReserveOutcome]]:
    positions, names = zip(*commands, strict=True)
    contents = json.dumps(volatile, ensure_ascii=False)
    parameters = [IntArray(positions), TextArray(names), contents, *further]
    if commits:
        request = Request(_QUERIES[f"{query}_or_fail"], parameters, failed=_conflict_found)
    else:
        request = Request(_QUERIES[query], parameters)
    # Whose fault the failure of a commit is, its transaction knows.
    with nullcontext() if commits else translated():
        *_, answer = exchange(connection, [*before, request], commits=commits)
    for ordinal, outcome, *_ in answer.rows:
        yield ordinal, ReserveOutcome(outcome)


def _conflict_found(error: psycopg.Error) -> Exception:
    if isinstance(error, psycopg.errors.DivisionByZero):
        return ConflictFoundError()
    return translation(error)
