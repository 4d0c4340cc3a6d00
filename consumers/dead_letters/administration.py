"""Administration of dead letters: list them, and change their states.

Nothing is handled here. The consumer that holds the partition of a letter notices within a second
that it is to be retried, or when it starts.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import Connection, sql

from consumers.dead_letters import history
from consumers.dead_letters.history import LetterRequest
from consumers.dead_letters.letter import (
    OPEN,
    Content,
    Correction,
    Letter,
    LetterError,
    Raised,
    Selection,
    StateChange,
)
from consumers.failures.failure import Reason
from reservation.messages.message import json_to_show
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("consumers.dead_letters")


def find(
    connection: Connection[Any],
    selection: Selection,
    *,
    states: Collection[str] | None = OPEN,
    needs_person: bool = False,
    global_positions: Collection[int] | None = None,
) -> list[Letter]:
    """Return letters in the order of consumer, category and log.

    With `needs_person` only those that are dead, and what is parked behind them.
    """
    values = {
        "consumer": selection.consumer,
        "category": selection.category,
        "entity": selection.entity,
        "states": None if states is None else list(states),
        "needs_person": needs_person,
        "global_positions": None if global_positions is None else list(global_positions),
    }
    return fetch(connection, sql.SQL(_QUERIES["chosen"].decode()), values)


def fetch(
    connection: Connection[Any], rows: sql.Composable, values: Mapping[str, Any]
) -> list[Letter]:
    """Return letters in the order of consumer, category and log."""
    of_rows = sql.SQL(_QUERIES["letters"].decode()).format(letters=rows)
    with translated():
        found = connection.execute(of_rows, values).fetchall()
    return [Letter(*row) for row in found]


def find_each(
    connection: Connection[Any], selection: Selection, global_positions: Iterable[int]
) -> list[Letter]:
    """Return exactly one letter for each global position."""
    wanted = list(dict.fromkeys(global_positions))
    found = find(connection, selection, states=None, global_positions=wanted)
    by_position: dict[int, list[Letter]] = {position: [] for position in wanted}
    for letter in found:
        by_position[letter.global_position].append(letter)
    for position, letters in by_position.items():
        if not letters:
            raise LetterError(
                f"There is no dead letter at global position {position}; "
                f"`reservation dead-letters list --all` shows those that there are"
            )
        if len(letters) > 1:
            whose = ", ".join(f"{letter.consumer} of {letter.category}" for letter in letters)
            raise LetterError(
                f"Several consumers have a dead letter at global position {position}: {whose}; "
                f"say which with --consumer or --category"
            )
    return [letters[0] for letters in by_position.values()]


def content(connection: Connection[Any], letter: Letter) -> Content | None:
    """Return what the store holds of a letter's message; None if it is no longer there."""
    with translated():
        rows = connection.execute(
            _QUERIES["message"],
            {"global_position": letter.global_position, "message_id": letter.message_id},
        ).fetchall()
    if not rows:
        return None
    data, metadata, *rest = rows[0]
    return Content(json_to_show(data), json_to_show(metadata), *rest)


def raised(connection: Connection[Any], letter: Letter) -> Raised:
    """Return what is kept of the exception for which a letter failed last."""
    values = {
        "consumer": letter.consumer,
        "category": letter.category,
        "global_position": letter.global_position,
    }
    with translated():
        rows = connection.execute(_QUERIES["raised"], values).fetchall()
    return Raised(*rows[0]) if rows else Raised()


def correction(connection: Connection[Any], letter: Letter) -> Correction | None:
    """Return the data that a letter was given; None if it was given none."""
    values = {
        "consumer": letter.consumer,
        "category": letter.category,
        "global_position": letter.global_position,
    }
    with translated():
        rows = connection.execute(_QUERIES["correction"], values).fetchall()
    return Correction(*rows[0]) if rows else None


def retry(
    connection: Connection[Any],
    selection: Selection,
    global_positions: Collection[int],
    request: LetterRequest | None = None,
) -> StateChange:
    """Request that dead letters are handled again, and then those that are parked behind them."""
    with locked(connection):
        letters = find_each(connection, selection, global_positions)
        return retry_letters(connection, letters, request or LetterRequest())


def retry_letters(
    connection: Connection[Any], letters: Sequence[Letter], request: LetterRequest
) -> StateChange:
    """The same for letters as they are, while `locked`; those that will be retried stay so."""
    ((now,),) = connection.execute("SELECT clock_timestamp()").fetchall()
    for letter in letters:
        _check_retry(letter)
    changed = [
        one
        for one in letters
        if one.attempts or one.next_attempt_at is None or one.next_attempt_at > now
    ]
    history.record(connection, changed, "retry", request)
    return _change(connection, changed, "waiting")


def discard(
    connection: Connection[Any],
    selection: Selection,
    global_positions: Collection[int],
    request: LetterRequest | None = None,
) -> StateChange:
    """Discard letters; those that are parked behind them are handled."""
    with locked(connection):
        letters = find_each(connection, selection, global_positions)
        return discard_letters(connection, letters, request or LetterRequest())


def discard_letters(
    connection: Connection[Any], letters: Sequence[Letter], request: LetterRequest
) -> StateChange:
    """The same for letters as they are, while they are `locked`."""
    for letter in letters:
        if letter.state not in OPEN:
            raise LetterError(f"{letter} is {letter.state} already; nothing was changed")
    history.record(connection, letters, "discard", request)
    return _change(connection, letters, "discarded")


@contextmanager
def locked(connection: Connection[Any]) -> Iterator[None]:
    """Keep consumers, and other people, from changing letters for the length of a transaction."""
    with translated(), connection.transaction():
        connection.execute(_QUERIES["lock_letters"])
        yield


def _check_retry(letter: Letter) -> None:
    if letter.reason == Reason.CONFLICT:
        raise LetterError(
            f"{letter} is a conflict: another command with its key was first, so a retry cannot "
            f"help; discard it once its sender knows"
        )
    check_not_parked(letter, "retry")


def check_not_parked(letter: Letter, action: str) -> None:
    """Make sure that a letter is open, and the first of its queue."""
    if letter.state == "parked" and letter.behind == letter.global_position:
        raise LetterError(
            f"{letter} is no longer behind another message, so it is handled without a {action}"
        )
    if letter.state == "parked":
        raise LetterError(
            f"{letter} is parked behind global position {letter.behind}; {action} or discard that "
            f"one"
        )
    if letter.state not in OPEN:
        raise LetterError(f"{letter} is {letter.state} already; nothing was changed")


def _change(connection: Connection[Any], letters: Sequence[Letter], state: str) -> StateChange:
    for consumer, category, own in _by_category(letters):
        names = {"consumer": consumer, "category": category}
        positions = [letter.global_position for letter in own]
        connection.execute(
            _QUERIES["change_state"], {**names, "state": state, "global_positions": positions}
        )
    return StateChange(letters, count_waiting(connection, letters))


def count_waiting(connection: Connection[Any], letters: Sequence[Letter]) -> int:
    """Return how many messages are parked behind letters."""
    waiting = 0
    for consumer, category, own in _by_category(letters):
        values = {
            "consumer": consumer,
            "category": category,
            "entities": [letter.entity for letter in own if letter.entity],
        }
        with translated():
            rows = connection.execute(_QUERIES["count_waiting"], values).fetchall()
        waiting += rows[0][0]
    return waiting


def _by_category(
    letters: Sequence[Letter],
) -> Iterator[tuple[str, str, list[Letter]]]:
    names = dict.fromkeys((letter.consumer, letter.category) for letter in letters)
    for consumer, category in names:
        own = [
            letter
            for letter in letters
            if (letter.consumer, letter.category) == (consumer, category)
        ]
        yield consumer, category, own
