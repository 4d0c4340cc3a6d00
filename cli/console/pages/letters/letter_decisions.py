"""Retrying and discarding dead letters: what would be done, the reason, and what was done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

from psycopg import Connection
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import action, actor_of, console_of, see
from cli.console.pages.letters.dead_letters import ENTRY, LETTER
from cli.console.pages.letters.letter_search import (
    Search,
    SearchError,
    address_of,
    extent_in,
    marked,
    seen_in,
)
from consumers.dead_letters import administration, confirmed, history, search
from consumers.dead_letters.history import Done
from consumers.dead_letters.search import Extent
from consumers.dead_letters.stored_letters import LetterError, StoredLetter

DECIDE = f"{ENTRY.path}/decide"

# Letters that are changed at once at most; the lock on them is held so long.
MOST = 10_000

# How many of them are shown.
_SHOWN = 20

LONGEST_REASON = 2_000

_CHANGES: Mapping[str, tuple[confirmed.Change, confirmed.Change]] = {
    # for letters that were chosen one by one, and for those that a search has found
    "retry": (administration.retry_letters, confirmed.retry_dead),
    "discard": (administration.discard_letters, administration.discard_letters),
}


@dataclass(frozen=True, slots=True)
class _Meant:
    """The letters that a decision is about, as they are now.

    Attributes:
        letters: the first of them.
        count: how many there are.
        waiting: how many are parked behind them, and are no part of them.
        marked: all of them for the form, if they were chosen one by one.
        search: what finds them, if they were not.
        extent: how many that found, and as far as which.
    """

    letters: Sequence[StoredLetter]
    count: int
    waiting: int = 0
    marked: Sequence[str] = ()
    search: Search | None = None
    extent: Extent | None = None


def ask(request: Request) -> Response:
    """Show what would be done with letters, and ask for the reason."""
    return _asked(request, request.query_params)


def choose(request: Request, form: FormData) -> Response:
    """The same for letters that were marked in the list, too many for an address."""
    return _asked(request, form)


def decide(request: Request, form: FormData) -> Response:
    """Do what was confirmed, or show why not."""
    reason = str(form.get("why", "")).strip()
    if not reason or len(reason) > LONGEST_REASON or "\0" in reason:
        return _asked(request, form, problem="Give a reason; it is kept.", status=422)
    try:
        asked = history.Request(reason, actor_of(request), UUID(str(form.get("request"))))
        chosen, of_search = _CHANGES[str(form.get("action"))]
        with console_of(request).acting() as connection:
            if "letter" in form:
                seen = seen_in(form.getlist("letter"))
                done = confirmed.change(connection, seen, asked, chosen)
            else:
                wanted, extent = Search.of(form).wanted, extent_in(form)
                done = confirmed.change_found(connection, wanted, extent, asked, of_search)
    except (LetterError, SearchError) as error:
        return _asked(request, form, problem=f"{error}.", status=409)
    except (KeyError, ValueError):
        return _asked(request, form, problem="The form is not complete.", status=400)
    if done is None:
        nothing = "Nothing was changed: no letter is dead, or all will be retried already."
        return _asked(request, form, problem=nothing, status=409)
    return see(where(done, asked.id))


def where(done: Done, request: UUID) -> str:
    """Return the address of the page that shows what a request has done."""
    parameters = {"done": str(request)}
    if done.letters > 1:
        return f"{ENTRY.path}?{urlencode(parameters)}"
    named = {
        "consumer": done.consumer,
        "category": done.category,
        "position": str(done.global_position),
    }
    return f"{LETTER}?{urlencode({**named, **parameters})}"


def _asked(
    request: Request,
    parameters: QueryParams | FormData,
    *,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    """Return the page that asks, with the letters as they are now."""
    console = console_of(request)
    name = str(parameters.get("action", ""))
    try:
        _check_action(name)
        with console.reading() as connection:
            meant = _meant(connection, parameters)
    except SearchError as error:
        return console.page(
            request,
            "problem.html",
            status=400,
            title="Nothing was changed",
            text=str(error),
            retry=False,
        )
    return console.page(
        request,
        "letter_decision.html",
        status=status,
        page=ENTRY,
        name=name,
        meant=meant,
        most=MOST,
        why=str(parameters.get("why", "")),
        longest=LONGEST_REASON,
        request_id=uuid4(),
        problem=problem,
        address_of=address_of,
    )


def _check_action(name: str) -> None:
    if name not in _CHANGES:
        raise SearchError("The address names nothing to do; choose letters from the list")


def _meant(connection: Connection[Any], parameters: QueryParams | FormData) -> _Meant:
    """Return the letters that parameters name.

    Raises:
        SearchError: they name none.
    """
    if "letter" not in parameters:
        looked_for = Search.of(parameters)
        extent = search.extent(connection, looked_for.wanted)
        letters = search.page(connection, looked_for.wanted, _SHOWN)
        return _Meant(letters, extent.count, search=looked_for, extent=extent)
    keys = [seen.key for seen in seen_in(parameters.getlist("letter"))]
    found = list(search.by_keys(connection, keys).values())
    first = [letter for letter in found if letter.state != "parked"]
    return _Meant(
        found[:_SHOWN],
        len(found),
        administration.count_waiting(connection, first),
        marked=[marked(letter) for letter in found],
    )


ROUTES = [
    Route(DECIDE, ask, methods=["GET"]),
    Route(DECIDE, action(decide), methods=["POST"]),
    Route(f"{ENTRY.path}/choose", action(choose), methods=["POST"]),
]
