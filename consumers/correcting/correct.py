"""Writing a correction, and having the message handled with it."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec
from psycopg import Connection, errors

from consumers.correcting.same_intent import CorrectionError, check_same_intent
from consumers.dead_letters import administration, history
from consumers.dead_letters.corrections import with_data
from consumers.dead_letters.failure import Reason
from consumers.dead_letters.history import Request
from consumers.dead_letters.stored_letters import LetterError, Selection, StoredLetter
from reservation.component import Component
from reservation.errors import MissingRightError, RefusedError
from reservation.messages.message import StoredMessage
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries
from reservation.serialization.json_limits import DEFAULT_MAX_BYTES

_QUERIES = load_queries("consumers.correcting")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A correction that could be written.

    Attributes:
        letter: the dead letter.
        message: the message, as it is stored.
        content: the corrected content, as the store will hold it.
        not_compared: as `Correction` has it.
    """

    letter: StoredLetter
    message: StoredMessage
    content: str
    not_compared: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction that was written.

    Attributes:
        letter: the dead letter, as it was before.
        global_position: that of the correction.
        number: how many corrections the message has now.
        waiting: how many messages are parked behind it.
        not_compared: the fields of key and entity that could not be compared, because the message
            itself does not have them; "key" for a key that is made by a function.
    """

    letter: StoredLetter
    global_position: int
    number: int
    waiting: int
    not_compared: tuple[str, ...]


def prepare(
    connection: Connection[Any],
    component: Component,
    category: str | None,
    global_position: int,
    data: bytes,
) -> Prepared:
    """Check a correction, and write nothing.

    Args:
        connection: in autocommit, of a role that may correct.
        component: whose consumer has the letter.
        category: the category of the letter; None if it has one in one category only.
        global_position: that of the message.
        data: the corrected content, a JSON object.

    Raises:
        LetterError: there is no such letter, or correcting it cannot help.
        CorrectionError: the content does not fit the message's type, or has another key or entity.
        MissingRightError: the role may not correct.
    """
    text = _checked(data)
    _check_right(connection)
    content = _as_stored(connection, text)
    selection = Selection(component.name, category)
    (letter,) = administration.find_each(connection, selection, [global_position])
    _check_letter(letter)
    message = _message(connection, letter)
    not_compared = check_same_intent(
        component, letter.category, message, with_data(message, content)
    )
    return Prepared(letter, message, content, not_compared)


def correct(
    connection: Connection[Any],
    component: Component,
    category: str | None,
    global_position: int,
    data: bytes,
    reason: str,
    request: Request | None = None,
) -> Correction:
    """Have a message that is a dead letter handled with other content.

    The correction is written, and the letter marked to be handled again, in one transaction. If the
    message is corrected again before it is handled, the last correction counts.

    Args:
        connection: in autocommit, of a role that may correct.
        component: whose consumer has the letter.
        category: the category of the letter; None if it has one in one category only.
        global_position: that of the message.
        data: the corrected content, a JSON object.
        reason: why it is corrected.
        request: who asked; its own reason does not count. None for the one who is connected.

    Raises:
        LetterError: there is no such letter, or correcting it cannot help.
        CorrectionError: the content does not fit the message's type, or has another key or entity,
            or the reason is empty.
        MissingRightError: the role may not correct.
    """
    if not reason.strip():
        raise CorrectionError("A correction needs a reason, and the one given is empty")
    prepared = prepare(connection, component, category, global_position, data)
    asked = replace(request or Request(), reason=reason)
    with administration.locked(connection):
        names = Selection(prepared.letter.consumer, prepared.letter.category)
        (letter,) = administration.find_each(connection, names, [global_position])
        return correct_letter(connection, letter, prepared, asked)


def correct_letter(
    connection: Connection[Any], letter: StoredLetter, prepared: Prepared, request: Request
) -> Correction:
    """Write a correction of a letter as it is, while letters are `administration.locked`.

    Args:
        connection: in that transaction.
        letter: the letter as it is now.
        prepared: the correction.
        request: why, and who asked.

    Raises:
        LetterError: correcting it cannot help any more.
    """
    _check_letter(letter)
    values = {
        "consumer": letter.consumer,
        "category": letter.category,
        "global_position": letter.global_position,
        "corrected": prepared.content,
        "reason": (request.reason or "").strip(),
        "not_compared": list(prepared.not_compared),
    }
    try:
        ((written, number),) = connection.execute(_QUERIES["correct"], values).fetchall()
    except errors.ObjectNotInPrerequisiteState as error:
        raise LetterError(str(error.diag.message_primary)) from error
    history.record(connection, [letter], "correct", request)
    waiting = administration.count_waiting(connection, [letter])
    return Correction(letter, written, number, waiting, prepared.not_compared)


def _checked(data: bytes) -> str:
    """Return JSON text, if it is an object.

    Raises:
        CorrectionError: it is not, or it is too long.
    """
    if len(data) > DEFAULT_MAX_BYTES:
        raise CorrectionError(
            f"The corrected content is {len(data):,} bytes long; a message has at most "
            f"{DEFAULT_MAX_BYTES:,}"
        )
    try:
        text = data.decode()
        found: object = msgspec.json.decode(text)
    except UnicodeDecodeError:
        raise CorrectionError("The corrected content is not UTF-8") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CorrectionError(f"The corrected content is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CorrectionError("The corrected content is not a JSON object, as a message's data is")
    return text


def _as_stored(connection: Connection[Any], text: str) -> str:
    """Return JSON text as a consumer will read it from the store.

    Raises:
        CorrectionError: the store does not take it.
    """
    try:
        with translated():
            rows = connection.execute(_QUERIES["as_stored"], {"data": text}).fetchall()
    except RefusedError as error:
        raise CorrectionError(f"The store does not take the corrected content: {error}") from error
    return str(rows[0][0])


def _check_right(connection: Connection[Any]) -> None:
    with translated():
        ((role, may),) = connection.execute(_QUERIES["may_correct"]).fetchall()
    if not may:
        raise MissingRightError(
            f"The role {role} may not correct messages; let the owner of the store run "
            f"`reservation store grants operator {role}`, or connect as an operator"
        )


def _check_letter(letter: StoredLetter) -> None:
    if letter.reason == Reason.CONFLICT:
        raise LetterError(
            f"{letter} is a conflict: another command with its key was first, and that one is the "
            f"command to correct; discard this one once its sender knows"
        )
    administration.check_not_parked(letter, "correct")


def _message(connection: Connection[Any], letter: StoredLetter) -> StoredMessage:
    with translated():
        rows = connection.execute(
            _QUERIES["message"],
            {"global_position": letter.global_position, "message_id": letter.message_id},
        ).fetchall()
    if not rows:
        raise LetterError(f"{letter} is no longer in the store; discard its dead letter")
    return StoredMessage(*rows[0])
