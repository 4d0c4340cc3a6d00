"""Correcting a dead letter's message: an edit of its data, the difference, and the correction."""

from typing import Any
from uuid import UUID, uuid4

from psycopg import Connection
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import NotAllowedError, action, actor_of, console_of, see
from cli.console.pages.letters.dead_letters import ENTRY, LETTER
from cli.console.pages.letters.letter_decisions import LONGEST_REASON, where
from cli.console.pages.letters.letter_search import SearchError, address_of, key_in, marked, seen_in
from consumers.correcting.correct import Prepared, correct_letter, prepare
from consumers.correcting.same_intent import CorrectionError
from consumers.dead_letters import administration, confirmed, history, search
from consumers.dead_letters.stored_letters import Content, LetterError, StoredLetter
from consumers.story.content.difference import MOST, differences, formatted

CORRECT = f"{LETTER}/correct"

# Characters of a value that the comparison shows.
MOST_OF_VALUE = 2_000


def edit(request: Request) -> Response:
    """Show the data that the message is handled with now, to be edited."""
    try:
        return _edited(request, request.query_params)
    except SearchError as error:
        return _problem(request, str(error))


def correct(request: Request, form: FormData) -> Response:
    """Show what a correction changes; or make it, once that was seen."""
    try:
        return _corrected(request, form)
    except SearchError as error:
        return _problem(request, str(error))
    except (LetterError, CorrectionError) as error:
        return _edited(request, form, problem=f"{error}.", status=409)


def _corrected(request: Request, form: FormData) -> Response:
    console = console_of(request)
    key = key_in(form)
    data, reason = str(form.get("data", "")), str(form.get("why", "")).strip()
    if not reason or len(reason) > LONGEST_REASON or "\0" in reason:
        return _edited(request, form, problem="Give a reason; it is kept.", status=422)
    if key.consumer not in console.components:
        raise NotAllowedError(_lacks_app(key.consumer))
    with console.acting() as connection:
        asked = history.Request(reason, actor_of(request), _uuid(form))
        done = history.of_request(connection, asked.id)
        if done is None:
            component = console.components[key.consumer]
            prepared = prepare(
                connection, component, key.category, key.global_position, data.encode()
            )
            if form.get("step") != "apply":
                return _compared(request, prepared, data, reason)
            seen = seen_in([form.get("letter")])
            with administration.locked(connection):
                done = history.of_request(connection, asked.id)
                if done is None:
                    (letter,) = confirmed.unchanged(connection, seen)
                    correct_letter(connection, letter, prepared, asked)
            done = history.of_request(connection, asked.id)
    if done is None:
        raise SearchError("Nothing was corrected; go back to the letter and try again")
    return see(where(done, asked.id))


def _compared(request: Request, prepared: Prepared, data: str, reason: str) -> Response:
    """Return the page that shows what a correction changes, and asks whether to make it."""
    console = console_of(request)
    with console.reading() as connection:
        _, now = _current(connection, prepared.letter)
        waiting = administration.count_waiting(connection, [prepared.letter])
    return console.page(
        request,
        "letter_comparison.html",
        page=ENTRY,
        letter=prepared.letter,
        marked=marked(prepared.letter),
        differences=differences(now or "{}", prepared.content, exact=True, longest=MOST_OF_VALUE),
        most=MOST,
        not_compared=prepared.not_compared,
        waiting=waiting,
        data=data,
        why=reason,
        request_id=uuid4(),
        address=address_of(prepared.letter),
    )


def _edited(
    request: Request,
    parameters: QueryParams | FormData,
    *,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    """Return the page with the form.

    Raises:
        SearchError: the parameters name no letter.
    """
    console = console_of(request)
    key = key_in(parameters)
    with console.reading() as connection:
        letter = search.by_keys(connection, [key]).get(key)
        if letter is None:
            raise SearchError(f"There is no dead letter at global position {key.global_position}")
        content, now = _current(connection, letter)
    data = parameters.get("data")
    return console.page(
        request,
        "letter_correction.html",
        status=status,
        page=ENTRY,
        letter=letter,
        is_there=content is not None,
        is_declared=letter.consumer in console.components,
        lacks_app=_lacks_app(letter.consumer),
        data=data if isinstance(data, str) else formatted(now or ""),
        why=str(parameters.get("why", "")),
        longest=LONGEST_REASON,
        request_id=uuid4(),
        problem=problem,
        address=address_of(letter),
    )


def _current(
    connection: Connection[Any], letter: StoredLetter
) -> tuple[Content | None, str | None]:
    """Return a letter's message, and the data that it is handled with now."""
    content = administration.content(connection, letter)
    corrections = administration.corrections(connection, letter)
    if corrections:
        return content, corrections[-1].corrected
    return content, None if content is None else content.data


def _lacks_app(component: str) -> str:
    return (
        f"A correction is checked against the declaration of its component: start the console with "
        f"the app path of {component}, as in `reservation console bank:account`"
    )


def _uuid(form: FormData) -> UUID:
    try:
        return UUID(str(form.get("request")))
    except ValueError:
        raise SearchError("The form is not complete; go back to the letter and try again") from None


def _problem(request: Request, text: str) -> Response:
    return console_of(request).page(
        request, "problem.html", status=400, title="Nothing was changed", text=text, retry=False
    )


ROUTES = [
    Route(CORRECT, edit, methods=["GET"]),
    Route(CORRECT, action(correct), methods=["POST"]),
]
