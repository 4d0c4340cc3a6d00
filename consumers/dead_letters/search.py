"""Looking through dead letters: those that a filter picks out, a page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, NamedTuple
from uuid import UUID

from psycopg import Connection, sql

from consumers.dead_letters import administration
from consumers.dead_letters.letter import OPEN, Letter
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.dead_letters", "search.sql")


class LetterKey(NamedTuple):
    """The key of a letter.

    Attributes:
        global_position: that of the message.
        consumer: the component's name.
        category: the category that was read.
    """

    global_position: int
    consumer: str
    category: str

    @classmethod
    def of(cls, letter: Letter) -> "LetterKey":
        """Return the key of a letter."""
        return cls(letter.global_position, letter.consumer, letter.category)


@dataclass(frozen=True, slots=True)
class Filter:
    """The letters to look for; what is None does not narrow them.

    Attributes:
        consumer: those of this component.
        category: those of this category.
        type: those of messages of this type.
        reason: those for this kind of fault.
        entity: those of this entity.
        stream: those of messages of this stream.
        message_id: those of this message.
        digest: those of this fault.
        text: those whose error line has this text, in whichever case.
        states: those in one of these states.
        is_retriable: those that can be retried, and are not due.
        needs_person: those that are dead, or parked behind a dead one.
        older_than: those that were written longer ago than this.
    """

    consumer: str | None = None
    category: str | None = None
    type: str | None = None
    reason: str | None = None
    entity: str | None = None
    stream: str | None = None
    message_id: UUID | None = None
    digest: str | None = None
    text: str | None = None
    states: Sequence[str] | None = None
    is_retriable: Literal[True] | None = None
    needs_person: Literal[True] | None = None
    older_than: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Extent:
    """The count of a filter's letters, and the last of them.

    Attributes:
        count: how many there are.
        last: the global position of the last; 0 if there is none.
    """

    count: int
    last: int


def page(
    connection: Connection[Any],
    wanted: Filter,
    limit: int,
    *,
    key: LetterKey | None = None,
    backward: bool = False,
) -> list[Letter]:
    """Return letters, the last of the log first, or those next to another one."""
    values = {**_values(wanted), "limit": limit}
    name = "last"
    if key is not None:
        name = "newer" if backward else "older"
        values |= {
            "key_position": key.global_position,
            "key_consumer": key.consumer,
            "key_category": key.category,
        }
    found = _found(connection, name, wanted, values)
    found.sort(key=LetterKey.of, reverse=name != "newer")
    return found


def extent(connection: Connection[Any], wanted: Filter) -> Extent:
    """Return how many letters a filter picks out, and as far as which."""
    query = sql.SQL(_QUERIES["extent"].decode()).format(conditions=_conditions(wanted))
    with translated():
        ((count, last),) = connection.execute(query, _values(wanted)).fetchall()
    return Extent(count, last)


def by_keys(connection: Connection[Any], keys: Sequence[LetterKey]) -> dict[LetterKey, Letter]:
    """Return letters by their keys, as far as there are any."""
    values = {
        "consumers": [key.consumer for key in keys],
        "categories": [key.category for key in keys],
        "global_positions": [key.global_position for key in keys],
    }
    found = administration.fetch(connection, sql.SQL(_QUERIES["keys"].decode()), values)
    return {LetterKey.of(letter): letter for letter in found}


def counts(connection: Connection[Any]) -> dict[str, int]:
    """Return how many letters there are, by their states."""
    with translated():
        return dict(connection.execute(_QUERIES["counts"]).fetchall())


def consumers(connection: Connection[Any]) -> list[tuple[str, str]]:
    """Return the components that have letters, each with the categories that these are of."""
    with translated():
        return connection.execute(_QUERIES["consumers"]).fetchall()


def queue_of(letter: Letter) -> Filter:
    """Return what picks out the open letters of a letter's entity; of none, the letter itself."""
    if letter.entity is None:
        return Filter(letter.consumer, letter.category, message_id=UUID(letter.message_id))
    return Filter(letter.consumer, letter.category, entity=letter.entity, states=OPEN)


def _found(
    connection: Connection[Any], name: str, wanted: Filter, values: dict[str, Any]
) -> list[Letter]:
    rows = sql.SQL(_QUERIES[name].decode()).format(conditions=_conditions(wanted))
    return administration.fetch(connection, rows, values)


def _values(wanted: Filter) -> dict[str, Any]:  # Any: what the columns hold
    values = {field.name: getattr(wanted, field.name) for field in fields(wanted)}
    return {**values, "states": None if wanted.states is None else list(wanted.states)}


def _conditions(wanted: Filter) -> sql.Composed:
    given = [field.name for field in fields(wanted) if getattr(wanted, field.name) is not None]
    texts = [_QUERIES[f"by_{name}"].decode() for name in given] or [_QUERIES["by_any"].decode()]
    return sql.SQL("\n  AND ").join([sql.SQL(text) for text in texts])
