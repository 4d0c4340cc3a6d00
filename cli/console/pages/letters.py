"""The page *dead letters*: the list of those that are looked for, and each of them whole."""

from typing import Any
from uuid import UUID

from psycopg import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import console_of
from cli.console.pages.letter_search import (
    REASONS,
    STATES,
    Search,
    SearchError,
    address_of,
    key_in,
)
from cli.console.rendering import formatted
from consumers.dead_letters import administration, history, search
from consumers.dead_letters.letter import Letter, Raised
from consumers.dead_letters.search import LetterKey

PATH = "/dead-letters"
LETTER = f"{PATH}/letter"

SIZE = 50

# How many of a queue are shown on the page of one of its letters.
_OF_QUEUE = 10

# Before every letter: global positions start at 1.
_BEFORE_ALL = LetterKey(0, "", "")

_WHEN_RETRIED = (
    "The running consumer handles them within a second or two; if none runs, the next one to start "
    "does."
)


def show(request: Request) -> Response:
    """Show the letters that are looked for, a page at a time."""
    console, given = console_of(request), request.query_params
    problem, after = None, None
    try:
        looked_for = Search.of(given)
        if "after_position" in given:
            after = key_in(given, "after_")
    except SearchError as error:
        problem, looked_for = str(error), Search.of({"state": "all"})
    with console.reading() as connection:
        rows = []
        if problem is None:
            rows = search.page(connection, looked_for.wanted, SIZE + 1, key=after)
        counts = search.counts(connection)
        names = search.consumers(connection)
        done = _done(connection, request)
    shown = rows[:SIZE]
    further = {**looked_for.given, **address_of(shown[-1], "after_")} if rows[SIZE:] else None
    return console.page(
        request,
        "dead_letters.html",
        status=200 if problem is None else 400,
        letters=shown,
        further=further,
        is_first=after is None,
        search=looked_for,
        given=dict(given) if problem else looked_for.given,
        problem=problem,
        done=done,
        counts={
            name: sum(count for state, count in counts.items() if states is None or state in states)
            for name, states in STATES.items()
        },
        consumers=list(dict.fromkeys(consumer for consumer, _ in names)),
        categories=list(dict.fromkeys(category for _, category in names)),
        reasons=REASONS,
        address_of=address_of,
    )


def show_letter(request: Request) -> Response:
    """Show everything about one letter; the message's data only if it is asked for."""
    console = console_of(request)
    try:
        key = key_in(request.query_params)
    except SearchError as error:
        return console.problem(request, 404, str(error))
    with_data = request.query_params.get("data") == "shown"
    with console.reading() as connection:
        letter = search.by_keys(connection, [key]).get(key)
        if letter is None:
            return console.problem(
                request,
                404,
                "There is no such dead letter",
                f"{key.consumer} of {key.category} has none at global position "
                f"{key.global_position}.",
            )
        content = administration.content(connection, letter)
        correction = administration.correction(connection, letter)
        queue = search.queue_of(letter)
        values: dict[str, Any] = {
            "content": content,
            "metadata": formatted(content.metadata) if content and content.metadata else None,
            "data": formatted(content.data) if content and content.data and with_data else None,
            "corrected": formatted(correction.data) if correction and with_data else None,
            "raised": administration.raised(connection, letter) if with_data else Raised(),
            "done": _done(connection, request),
            "decisions": history.of_letter(connection, letter),
            "of_queue": search.page(connection, queue, _OF_QUEUE, key=_BEFORE_ALL, backward=True),
            "in_queue": search.extent(connection, queue).count,
        }
    return console.page(
        request,
        "dead_letter.html",
        letter=letter,
        with_data=with_data,
        address=address_of(letter),
        address_of=address_of,
        queue_given=_queue_given(letter),
        **values,
    )


def _done(connection: Connection[Any], request: Request) -> str | None:
    """Return what the request has done that led to this page, in a sentence."""
    try:
        done = history.of_request(connection, UUID(request.query_params.get("done", "")))
    except ValueError:
        return None
    if done is None:
        return None
    letters = "1 dead letter" if done.letters == 1 else f"{done.letters:,} dead letters"
    if done.decision == "discard":
        return f"{letters} discarded."
    return f"{letters} will be retried. {_WHEN_RETRIED}"


def _queue_given(letter: Letter) -> dict[str, str]:
    """Return the parameters that search for the queue of a letter's entity."""
    return {
        "consumer": letter.consumer,
        "category": letter.category,
        "entity": letter.entity or "",
    }


ROUTES = [Route(PATH, show), Route(LETTER, show_letter)]
