"""The page *dead letters*: the list of those that are looked for, and each of them whole."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from psycopg import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import Entry, console_of
from cli.console.pages.letters.letter_search import (
    REASONS,
    STATES,
    Search,
    SearchError,
    address_of,
    key_in,
    marked,
)
from cli.console.reading.keyset import Cursor, slice_of
from consumers.dead_letters import administration, history, search
from consumers.dead_letters.search import LetterKey
from consumers.dead_letters.stored_letters import Raised, StoredLetter
from consumers.story.content.difference import formatted

ENTRY = Entry("dead_letters", "Dead letters", "/dead-letters", "d")
LETTER = f"{ENTRY.path}/letter"

SIZE = 50

# How many of a line are shown on the page of one of its letters.
_OF_LINE = 10

# Before every letter: global positions start at 1.
_BEFORE_ALL = LetterKey(0, "", "")

WHEN_RETRIED = (
    "The running consumer handles them within a second or two; if none runs, the next one to start "
    "does."
)

_DONE = {
    "retry": "will be retried",
    "discard": "discarded",
    "correct": "corrected, and will be retried",
}


def show(request: Request) -> Response:
    """Show the letters that are looked for."""
    console = console_of(request)
    cursor = Cursor.of(request.query_params, parts=3)
    problem = None
    try:
        looked_for = Search.of(request.query_params)
    except SearchError as error:
        problem, looked_for = str(error), Search.of({"state": "all"})
    with console.reading() as connection:
        rows = []
        if problem is None:
            rows = search.page(
                connection,
                looked_for.wanted,
                SIZE + 1,
                key=_key(cursor),
                backward=cursor.backward,
            )
        done = _done(connection, request)
        counts = search.counts(connection)
        consumers = search.consumers(connection)
        found = None
        if looked_for.narrows and problem is None:
            found = search.extent(connection, looked_for.wanted)
    shown = slice_of(rows, cursor, SIZE, key=lambda letter: list(LetterKey.of(letter)))
    return console.page(
        request,
        "dead_letters.html",
        status=200 if problem is None else 400,
        page=ENTRY,
        letters=shown,
        search=looked_for,
        given=dict(request.query_params) if problem else looked_for.given,
        problem=problem,
        done=done,
        counts={name: _count(counts, name) for name in STATES},
        consumers=list(dict.fromkeys(consumer for consumer, _ in consumers)),
        categories=list(dict.fromkeys(category for _, category in consumers)),
        reasons=REASONS,
        found=found,
        marked=marked,
        address_of=address_of,
    )


def show_letter(request: Request) -> Response:
    """Show everything about one letter; the message's data only if it is asked for."""
    console = console_of(request)
    parameters = request.query_params
    try:
        key = key_in(parameters)
    except SearchError as error:
        return console.page(
            request, "problem.html", status=404, title=str(error), text="", retry=False
        )
    with_data = parameters.get("data") == "shown"
    with console.reading() as connection:
        letter = search.by_keys(connection, [key]).get(key)
        if letter is None:
            return console.page(
                request,
                "problem.html",
                status=404,
                title="There is no such dead letter",
                text=f"{key.consumer} of {key.category} has none at global position "
                f"{key.global_position}.",
                retry=False,
            )
        content = administration.content(connection, letter)
        corrections = administration.corrections(connection, letter)
        line = search.line_of(letter)
        extent = search.extent(connection, line)
        of_line = search.page(connection, line, _OF_LINE, key=_BEFORE_ALL, backward=True)
        values: dict[str, Any] = {
            "letter": letter,
            "content": content,
            "metadata": formatted(content.metadata) if content and content.metadata else None,
            "data": formatted(content.data) if content and content.data and with_data else None,
            "raised": administration.raised(connection, letter) if with_data else Raised(),
            "corrections": corrections,
            "corrected": [formatted(one.corrected) for one in corrections] if with_data else [],
            "done": _done(connection, request),
            "decisions": history.of_letter(connection, letter),
            "line_given": _line_given(letter),
            "of_line": of_line,
            "in_line": extent,
        }
    return console.page(
        request,
        "dead_letter.html",
        page=ENTRY,
        with_data=with_data,
        address=address_of(letter),
        address_of=address_of,
        marked=marked,
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
    follow = "" if done.decision == "discard" else f" {WHEN_RETRIED}"
    return f"{letters} {_DONE[done.decision]}.{follow}"


def _line_given(letter: StoredLetter) -> dict[str, str]:
    """Return the parameters that search for the line of a letter's entity."""
    return {
        "consumer": letter.consumer,
        "category": letter.category,
        "entity": letter.entity or "",
        "state": "open",
    }


def _key(cursor: Cursor) -> LetterKey | None:
    if cursor.key is None:
        return None
    position, consumer, category = cursor.key
    if not isinstance(position, int):
        return None
    return LetterKey(position, str(consumer), str(category))


def _count(counts: Mapping[str, int], name: str) -> int:
    states = STATES[name]
    return sum(counts.get(state, 0) for state in (counts if states is None else states))


ROUTES = [Route(ENTRY.path, show), Route(LETTER, show_letter)]
