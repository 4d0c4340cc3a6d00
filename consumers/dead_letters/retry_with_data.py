"""Having the message of a dead letter handled with other data, which the letter then keeps."""

from dataclasses import replace
from typing import Any

import msgspec
from psycopg import Connection, errors

from consumers.dead_letters import administration
from consumers.dead_letters.history import LetterRequest
from consumers.dead_letters.letter import LetterError, Selection, StateChange
from consumers.failures.failure import Reason
from reservation.postgres.queries import load_queries
from reservation.serialization.json_limits import DEFAULT_MAX_BYTES

_QUERIES = load_queries("consumers.dead_letters")


def retry_with_data(
    connection: Connection[Any],
    selection: Selection,
    global_position: int,
    data: bytes,
    request: LetterRequest,
) -> StateChange:
    """Request that a dead letter is handled again, with other data than its message has.

    The data and the letter's state are written in one transaction. If the letter is given data
    again before it is handled, the last data counts.
    """
    text = _checked(data)
    if not (request.reason or "").strip():
        raise LetterError(
            "A reason is needed to give a letter other data, and the one given is empty"
        )
    with administration.locked(connection):
        (letter,) = administration.find_each(connection, selection, [global_position])
        if letter.reason == Reason.CONFLICT:
            raise LetterError(
                f"{letter} is a conflict: another command with its key was first; give that one "
                f"other data, and discard this one once its sender knows"
            )
        administration.check_not_parked(letter, "retry")
        values = {
            "consumer": letter.consumer,
            "category": letter.category,
            "global_position": letter.global_position,
            "data": text,
            "reason": request.reason,
            "on_behalf_of": (request.on_behalf_of or "").strip() or None,
            "request": request.id,
        }
        try:
            connection.execute(_QUERIES["retry_with_data"], values)
        except (errors.ObjectNotInPrerequisiteState, errors.ProgramLimitExceeded) as error:
            raise LetterError(str(error.diag.message_primary)) from error
        except errors.DataError as error:  # whose text repeats the data
            raise LetterError(f"The store refuses the data: {type(error).__name__}") from None
        waiting = administration.count_waiting(connection, [letter])
        return StateChange([replace(letter, corrected=True)], waiting)


def _checked(data: bytes) -> str:
    """Return JSON text, if it is an object."""
    if len(data) > DEFAULT_MAX_BYTES:
        raise LetterError(
            f"The data is {len(data):,} bytes long; a message has at most {DEFAULT_MAX_BYTES:,}"
        )
    try:
        text = data.decode()
        found: object = msgspec.json.decode(text)
    except UnicodeDecodeError:
        raise LetterError("The data is not UTF-8") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LetterError(f"The data is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise LetterError("The data is not a JSON object; the data of every message is one")
    return text
