"""The history of decisions about dead letters: kept with the change, in one transaction.

Rows are only added. The server notes who was connected, and when. A program that acts for people
names the one who asked, which is what that program says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from psycopg import Connection

from consumers.dead_letters.letter import Letter
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.dead_letters", "history.sql")

# How many decisions about one letter are shown; it takes a person a while to make more.
_SHOWN = 100

LetterAction = Literal["retry", "discard"]


@dataclass(frozen=True, slots=True)
class LetterRequest:
    """A person's request, apart from the letters.

    Attributes:
        reason: why; None where none is given.
        on_behalf_of: who asked the program that is connected; None for the one who is connected.
        id: the same for a request that is made again, which then changes nothing.
    """

    reason: str | None = None
    on_behalf_of: str | None = None
    id: UUID = field(default_factory=uuid4)


@dataclass(frozen=True, slots=True)
class LetterDecision:
    """A person's decision about a letter.

    Attributes:
        decision: retry, discard, or correct: a retry with other data.
        former_state: the letter's state before.
        reason: why; None where none was given.
        on_behalf_of: who asked, as the program says that was connected; None where it says nothing.
        decided_by: the database user.
        decided_at: when.
    """

    decision: str
    former_state: str
    reason: str | None
    on_behalf_of: str | None
    decided_by: str
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class LetterResult:
    """The result of a request.

    Attributes:
        decision: retry, discard, or correct: a retry with other data.
        letters: about how many letters.
        consumer, category, global_position: of one of them; the only one, if it was one.
    """

    decision: str
    letters: int
    consumer: str
    category: str
    global_position: int


def record(
    connection: Connection[Any],
    letters: Sequence[Letter],
    decision: LetterAction,
    request: LetterRequest,
) -> None:
    """Keep what is decided about letters, in the transaction that changes their states."""
    if not letters:
        return
    values = {
        "decision": decision,
        "reason": (request.reason or "").strip() or None,
        "on_behalf_of": (request.on_behalf_of or "").strip() or None,
        "request": request.id,
        "consumers": [letter.consumer for letter in letters],
        "categories": [letter.category for letter in letters],
        "global_positions": [letter.global_position for letter in letters],
        "message_ids": [letter.message_id for letter in letters],
        "former_states": [letter.state for letter in letters],
    }
    with translated():
        connection.execute(_QUERIES["record"], values)


def of_letter(connection: Connection[Any], letter: Letter) -> list[LetterDecision]:
    """Return the last decisions about a letter, the last one first."""
    values = {
        "consumer": letter.consumer,
        "category": letter.category,
        "global_position": letter.global_position,
        "message_id": letter.message_id,
        "limit": _SHOWN,
    }
    with translated():
        rows = connection.execute(_QUERIES["of_letter"], values).fetchall()
    return [LetterDecision(*row) for row in rows]


def of_request(connection: Connection[Any], request: UUID) -> LetterResult | None:
    """Return what a request has done; None if it has done nothing."""
    with translated():
        rows = connection.execute(_QUERIES["of_request"], {"request": request}).fetchall()
    return LetterResult(*rows[0]) if rows else None
