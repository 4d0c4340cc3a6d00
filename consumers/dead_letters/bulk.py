"""Decisions about all dead letters that a filter picks out.

Letters are changed in transactions of some thousand, because consumers cannot write letters while
people change them. Those that come in meanwhile stay as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from psycopg import Connection

from consumers.dead_letters import administration, search
from consumers.dead_letters.history import LetterRequest
from consumers.dead_letters.letter import Letter, StateChange
from consumers.dead_letters.search import Extent, Filter, LetterKey

# What changes letters while they are locked.
Change = Callable[[Connection[Any], Sequence[Letter], LetterRequest], StateChange]

# How many letters are changed in one transaction.
AT_ONCE = 10_000


def to_retry(wanted: Filter) -> Filter:
    """Return what picks out those of some letters that can be retried, and are not due."""
    return replace(wanted, is_retriable=True)


def to_discard(wanted: Filter) -> Filter:
    """Return what picks out those of some letters that are dead."""
    return replace(wanted, states=["dead"])


def retry_found(
    connection: Connection[Any],
    wanted: Filter,
    request: LetterRequest | None = None,
    seen: Extent | None = None,
) -> StateChange:
    """Retry all letters that a filter picks out and that are dead or waiting, except conflicts."""
    return _change(
        connection, to_retry(wanted), request or LetterRequest(), seen, administration.retry_letters
    )


def discard_found(
    connection: Connection[Any],
    wanted: Filter,
    request: LetterRequest | None = None,
    seen: Extent | None = None,
) -> StateChange:
    """Discard all dead letters that a filter picks out; see `retry_found`.

    What is parked behind them is handled.
    """
    return _change(
        connection,
        to_discard(wanted),
        request or LetterRequest(),
        seen,
        administration.discard_letters,
    )


def _change(
    connection: Connection[Any],
    wanted: Filter,
    request: LetterRequest,
    seen: Extent | None,
    do: Change,
) -> StateChange:
    """Change the letters, the last of the log first."""
    last = (seen or search.extent(connection, wanted)).last
    key, changed, waiting = LetterKey(last + 1, "", ""), list[Letter](), 0
    while True:
        with administration.locked(connection):
            letters = search.page(connection, wanted, AT_ONCE, key=key)
            waiting += do(connection, letters, request).waiting
        if not letters:
            return StateChange(changed[::-1], waiting)
        changed += letters
        key = LetterKey.of(letters[-1])
