"""A statement to send, and what the server answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg


class Answer(NamedTuple):
    """The server's answer.

    Attributes:
        rows: the rows; none where the statement returns none.
        affected: how many rows there are, or were changed.
    """

    rows: list[tuple[Any, ...]]
    affected: int


def _accept(answer: Answer) -> None:
    """Accept any answer."""
    del answer


def _as_it_is(error: psycopg.Error) -> Exception:
    """Return an error as it is."""
    return error


# Any: parameters are what PostgreSQL has types for.
@dataclass(frozen=True, slots=True)
class Request:
    """A statement to send.

    Attributes:
        query: one statement with placeholders, whose plan may be kept: it does not depend on how
            large the log is, as the call of a function does not.
        parameters: their values.
        check: called with the answer, to raise an error if it is not as it must be.
        failed: returns what to raise for an error of this statement.
    """

    query: bytes
    parameters: Sequence[Any] | Mapping[str, Any]
    check: Callable[[Answer], None] = _accept
    failed: Callable[[psycopg.Error], Exception] = _as_it_is
