"""Changes that were confirmed on letters as they were shown, some time before.

A letter that has changed since is not touched, and then nothing is. A request that comes twice
changes nothing the second time, and has the result of the first.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import Connection

from consumers.dead_letters import administration, history, search
from consumers.dead_letters.failure import Reason
from consumers.dead_letters.history import Done, Request
from consumers.dead_letters.search import Extent, Filter, LetterKey
from consumers.dead_letters.stored_letters import LetterError, StateChange, StoredLetter

# What changes letters while they are locked.
Change = Callable[[Connection[Any], Sequence[StoredLetter], Request], StateChange]


class Seen(NamedTuple):
    """A letter as it was shown.

    Attributes:
        key: which one.
        state: its state.
        changed_at: when that changed last.
    """

    key: LetterKey
    state: str
    changed_at: datetime

    @classmethod
    def of(cls, letter: StoredLetter) -> "Seen":
        """Return what is shown of a letter."""
        return cls(LetterKey.of(letter), letter.state, letter.changed_at)


class ChangedMeanwhileError(LetterError):
    """Letters are no longer as they were shown, so nothing was changed.

    Attributes:
        letters: those of them that changed, as they are now; empty if it is not known which.
    """

    def __init__(self, letters: Sequence[StoredLetter]) -> None:
        super().__init__("Letters have changed since they were shown; nothing was done with any")
        self.letters = letters


def change(
    connection: Connection[Any], seen: Iterable[Seen], request: Request, do: Change
) -> Done | None:
    """Change letters, if all of them are as they were shown.

    Args:
        connection: in autocommit, of an operator.
        seen: the letters.
        request: why, and who asked.
        do: `administration.retry_letters` or `administration.discard_letters`.

    Returns:
        What was done; None if there was nothing to do.

    Raises:
        ChangedMeanwhileError: a letter is not as it was shown.
        LetterError: a letter is gone, or cannot be changed in this way.
        MissingRightError: the role may not.
    """
    with administration.locked(connection):
        done = history.of_request(connection, request.id)
        if done is None:
            do(connection, unchanged(connection, list(seen)), request)
            done = history.of_request(connection, request.id)
    return done


def change_found(
    connection: Connection[Any], wanted: Filter, seen: Extent, request: Request, do: Change
) -> Done | None:
    """Change all letters that a filter picks out, as far as they were shown; later ones stay.

    Args:
        connection: in autocommit, of an operator.
        wanted: which letters: the line of an entity, for example.
        seen: how many they were, and as far as which.
        request: why, and who asked.
        do: `retry_dead` or `administration.discard_letters`.

    Returns:
        What was done; None if there was nothing to do.

    Raises:
        ChangedMeanwhileError: up to the last one that was shown, there are more or fewer now.
        LetterError: one of them cannot be changed in this way.
        MissingRightError: the role may not.
    """
    with administration.locked(connection):
        done = history.of_request(connection, request.id)
        if done is None:
            letters = search.up_to(connection, wanted, seen.last)
            if len(letters) != seen.count:
                raise ChangedMeanwhileError([])
            do(connection, letters, request)
            done = history.of_request(connection, request.id)
    return done


def retry_dead(
    connection: Connection[Any], letters: Sequence[StoredLetter], request: Request
) -> StateChange:
    """Retry those of some letters that are dead; the parked ones behind them follow."""
    dead = [
        letter for letter in letters if letter.state == "dead" and letter.reason != Reason.CONFLICT
    ]
    return administration.retry_letters(connection, dead, request)


def unchanged(connection: Connection[Any], seen: Sequence[Seen]) -> list[StoredLetter]:
    """Return letters, if all of them are as they were shown, while they are locked.

    Raises:
        ChangedMeanwhileError: some are not.
        LetterError: one is gone.
    """
    now = search.by_keys(connection, [one.key for one in seen])
    for one in seen:
        if one.key not in now:
            raise LetterError(
                f"There is no dead letter of the consumer {one.key.consumer} of "
                f"{one.key.category} at global position {one.key.global_position}"
            )
    letters = [now[one.key] for one in seen]
    changed = [letter for letter, one in zip(letters, seen, strict=True) if Seen.of(letter) != one]
    if changed:
        raise ChangedMeanwhileError(changed)
    return letters
