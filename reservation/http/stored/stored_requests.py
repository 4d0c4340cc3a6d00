"""The requests with a key in the database: statements, and how their answers are read."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reservation.http.wire.answers import HttpAnswer
from reservation.http.wire.incoming import Parked
from reservation.postgres.queries import load_queries
from reservation.store.async_client import AsyncMessageStore
from reservation.store.statements import Statement

QUERIES = load_queries("reservation.http.stored")


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A request as it is stored.

    Attributes:
        fingerprint: the digest of what it is made of.
        answer: what it was answered; None if it was not yet.
        parked: the request itself, if its client was sent away.
    """

    fingerprint: bytes
    answer: HttpAnswer | None
    parked: Parked | None


T = TypeVar("T")


async def ask(store: AsyncMessageStore, statement: Statement[T]) -> T:
    """Send a statement of this module, and return its result."""
    return await store._run(statement)


def begin(request: uuid.UUID, fingerprint: bytes) -> Statement[StoredRequest | None]:
    """Return the statement that records a request, unless it is recorded already."""
    return Statement(QUERIES["begin"], [request, fingerprint], _stored)


def find(request: uuid.UUID) -> Statement[StoredRequest | None]:
    """Return the statement that looks a request up."""
    return Statement(QUERIES["find"], [request], _stored)


def answer(request: uuid.UUID, given: HttpAnswer) -> Statement[StoredRequest | None]:
    """Return the statement that records the answer, unless there is one; the stored one counts."""
    headers = json.dumps(given.header_texts())
    return Statement(QUERIES["answer"], [request, given.status, headers, given.body], _stored)


def send(request: uuid.UUID, number: int, message_id: uuid.UUID) -> Statement[bool | None]:
    """Return the statement that records that the caller's transaction sends a command.

    Its result is whether no transaction did before; None if the request is not recorded there.
    """
    return Statement(QUERIES["send"], [request, number], lambda rows: rows[0][0], [message_id])


def sent(request: uuid.UUID) -> Statement[set[int]]:
    """Return the statement that asks which commands committed transactions have sent."""
    return Statement(QUERIES["sent"], [request], lambda rows: {*(rows[0][0] or ())})


def park(request: uuid.UUID, parked: Parked) -> Statement[None]:
    """Return the statement that keeps a request until it is answered."""
    shown = {"method": parked.method, "target": parked.target, "headers": parked.headers}
    return Statement(QUERIES["park"], [request, json.dumps(shown), parked.content], lambda _: None)


def _stored(rows: Sequence[tuple[Any, ...]]) -> StoredRequest | None:
    if not rows:
        return None
    ((fingerprint, parked, content, status, headers, body),) = rows
    return StoredRequest(
        fingerprint=bytes(fingerprint),
        answer=None if status is None else HttpAnswer.from_texts(status, headers, body),
        parked=None if parked is None else Parked(**parked, content=bytes(content)),
    )
