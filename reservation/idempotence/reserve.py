"""The reservation pattern: a command takes effect through the one copy that its key admits.

Each command is copied to a stream named by its idempotence key, written with expected version -1:
the stream must not exist yet. The first copy wins. A reissue finds the stream there and is
discarded; a second consumer handles the copy. Nothing is forgotten and there is no time window.
(Source: the reservation pattern of Eventide.)
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from psycopg import Connection

from reservation.errors import DeclarationError, IdempotenceKeyError
from reservation.idempotence.key import KeyFunction, key_part, key_parts, key_stream_name
from reservation.messages.message import StoredMessage
from reservation.postgres.arrays import (
    IntArray,
    JsonArray,
    TextArray,
    fetch_all,
)
from reservation.postgres.connection import check_encoding
from reservation.postgres.error_translation import translated
from reservation.postgres.exchange.exchange import exchange
from reservation.postgres.exchange.request import Request
from reservation.postgres.queries import load_queries


class ReserveOutcome(StrEnum):
    """The outcome of a command that was to be reserved."""

    RESERVED = "reserved"
    DUPLICATE = "duplicate"  # the same intent, sent again
    CONFLICT = "conflict"  # the same key with different content


@dataclass(frozen=True, slots=True)
class Reservation:
    """The reservation of one command type.

    Attributes:
        command: the command's class.
        into: the reservation category.
        key: the fields that hold the idempotence key, or a function of the command.
        entity: the field whose value is the first part of the stream's id, so that a group keeps
            the commands of an entity in order; None for streams named by the key alone.
        former_key: the fields, or a function of the command, that were the whole id of the stream
            before the declaration was changed; None if it was not.
        shared: whether a key of the same fields in a command of another type is never the same key.
    """

    command: type
    into: str
    key: tuple[str, ...] | KeyFunction
    entity: str | None = None
    former_key: tuple[str, ...] | KeyFunction | None = None
    shared: bool = False

    def takes_keys_of(self, other: "Reservation") -> bool:
        """Return whether a command of another type would be reserved in the same streams."""
        if self.shared and other.shared:
            return False
        if callable(self.key) or callable(other.key) or self.into != other.into:
            return False
        fields = self.key if self.entity is None else (self.entity, *self.key)
        return fields == (other.key if other.entity is None else (other.entity, *other.key))

    def stream_name(self, command: object) -> str:
        """Return the reservation stream of a command."""
        parts = key_parts(command, self.key)
        if self.entity is not None:
            entity = key_part(getattr(command, self.entity), f"field {self.entity}")
            parts = [entity, *parts]
        return key_stream_name(self.into, parts)

    def former_stream(self, command: object) -> str | None:
        """Return the stream that reserved a command under its former key; None without one."""
        if self.former_key is None:
            return None
        try:
            return key_stream_name(self.into, key_parts(command, self.former_key))
        except IdempotenceKeyError:
            return None


def check_keys(component: str, added: Reservation, declared: Iterable[Reservation]) -> None:
    """Make sure that commands of two types do not take each other's keys."""
    for other in declared:
        if other.command is added.command or not added.takes_keys_of(other):
            continue
        here, there = added.command.__name__, other.command.__name__
        key = ", ".join(added.key) if isinstance(added.key, tuple) else "its function"
        raise DeclarationError(
            f"{component}: {there} and {here} are both reserved in {added.into} by {key}, so a "
            f"{here} with the {key} of a {there} would be a conflict; reserve it into a category "
            f"of its own, give it a key function that tells the two apart, or declare both with "
            f"shared=True if no two commands ever have the same {key}"
        )


_QUERIES = load_queries("reservation.idempotence")


def reserve(
    connection: Connection[Any],
    commands: Sequence[tuple[int, str]],
    ignoring: Mapping[str, Sequence[str]],
    former: Sequence[str | None] | None = None,
    corrected: Sequence[str | None] | None = None,
    before: Sequence[Request] = (),
) -> list[ReserveOutcome]:
    """Reserve a batch of commands, in one statement that leaves the payloads in the server."""
    if not commands:
        return []
    check_encoding(connection)
    outcomes = [ReserveOutcome.RESERVED] * len(commands)
    names = None if former is None else list(former)
    further = names, _contents(corrected)
    for n, outcome in _outcomes(connection, "reserve", commands, ignoring, *further, before=before):
        outcomes[n - 1] = outcome
    return outcomes


def compare_initiations(
    connection: Connection[Any],
    commands: Sequence[tuple[int, str]],
    ignoring: Mapping[str, Sequence[str]],
    corrected: Sequence[str | None] | None = None,
) -> list[ReserveOutcome]:
    """Compare commands that found their entity's stream started with what started it."""
    if not commands:
        return []
    outcomes = _outcomes(
        connection, "compare_initiations", commands, ignoring, _contents(corrected)
    )
    return [outcome for _, outcome in outcomes]


def _contents(corrected: Sequence[str | None] | None) -> JsonArray | None:
    return None if corrected is None else JsonArray(corrected)


@dataclass(frozen=True, slots=True)
class Pair:
    """A command, and the one that was there first under its key.

    Attributes:
        ordinal: which of the commands that were asked about it is, from 0.
        command: the command.
        first: the reservation, or the command that started the stream.
        corrections: the data that the first was sent and handled with, if they differ.
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
    """Return commands, with what was reserved first under their keys, in one statement."""
    return _pairs(connection, "first_reserved", commands, former)


def first_initiated(connection: Connection[Any], commands: Sequence[tuple[int, str]]) -> list[Pair]:
    """Return commands, with those that started the streams of their entities, in one statement."""
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
    streams = list(former) if former is not None else [None] * len(commands)
    parameters = [IntArray(positions), TextArray(names), streams]
    rows = fetch_all(connection, _QUERIES[query], parameters)
    return [
        Pair(n - 1, StoredMessage(*row[:8]), StoredMessage(*row[8:]), corrections)
        for n, corrections, *row in rows
    ]


def _outcomes(
    connection: Connection[Any],
    query: str,
    commands: Sequence[tuple[int, str]],
    ignoring: Mapping[str, Sequence[str]],
    *further: object,
    before: Sequence[Request] = (),
) -> Iterator[tuple[int, ReserveOutcome]]:
    positions, names = zip(*commands, strict=True)
    contents = json.dumps(ignoring, ensure_ascii=False)
    parameters = [IntArray(positions), TextArray(names), contents, *further]
    with translated():
        *_, answer = exchange(connection, [*before, Request(_QUERIES[query], parameters)])
    for ordinal, outcome in answer.rows:
        yield ordinal, ReserveOutcome(outcome)
