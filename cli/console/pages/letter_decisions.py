"""Retrying and discarding dead letters: what would be done, the reason, and what was done."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlencode
from uuid import UUID, uuid4

from psycopg import Connection
from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import action, actor_of, console_of, see
from cli.console.pages.letter_search import Search, SearchError, address_of
from cli.console.pages.letters import LETTER, PATH
from consumers.dead_letters import administration, bulk, history, search
from consumers.dead_letters.letter import StateChange
from consumers.dead_letters.search import Extent, Filter

DECIDE = f"{PATH}/decide"

# How many of the letters are shown.
_SHOWN = 20

LONGEST_REASON = 2_000


class _Action(NamedTuple):
    """An action on letters: which of those that are found it is about, and what does it."""

    picks: Callable[[Filter], Filter]
    does: Callable[[Connection[Any], Filter, history.LetterRequest, Extent], StateChange]


_ACTIONS: Mapping[str, _Action] = {
    "retry": _Action(bulk.to_retry, bulk.retry_found),
    "discard": _Action(bulk.to_discard, bulk.discard_found),
}


def ask(request: Request) -> Response:
    """Show what would be done with letters, and ask for the reason."""
    return _asked(request, request.query_params)


def reason_of(form: FormData) -> str | None:
    """Return the reason that a form gives; None if it gives none that can be stored."""
    reason = str(form.get("why", "")).strip()
    return reason if 0 < len(reason) <= LONGEST_REASON and "\0" not in reason else None


def decide(request: Request, form: FormData) -> Response:
    """Do what was confirmed, once, with the letters that were there when it was shown."""
    reason = reason_of(form)
    if reason is None:
        problem = f"Give a reason of at most {LONGEST_REASON:,} characters; it is stored."
        return _asked(request, form, problem=problem, status=422)
    try:
        do = _ACTIONS[str(form.get("action"))].does
        asked = history.LetterRequest(reason, actor_of(request), UUID(str(form.get("request"))))
        wanted, seen = _any_state(Search.of(form)), Extent(0, int(str(form.get("last"))[:18]))
    except (KeyError, ValueError, SearchError):
        return _asked(request, form, problem="The form is not complete.", status=400)
    with console_of(request).acting() as connection:
        if history.of_request(connection, asked.id) is None:
            do(connection, wanted, asked, seen)
        done = history.of_request(connection, asked.id)
    if done is None:
        nothing = "Nothing was changed: none of the letters is dead any more."
        return _asked(request, form, problem=nothing, status=409)
    if done.letters > 1:
        return see(f"{PATH}?{urlencode({'done': str(asked.id)})}")
    named = {"consumer": done.consumer, "category": done.category}
    position = str(done.global_position)
    return see(f"{LETTER}?{urlencode({**named, 'position': position, 'done': str(asked.id)})}")


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
        looked_for = Search.of(parameters)
        wanted = _ACTIONS[name].picks(_any_state(looked_for))
    except (KeyError, SearchError) as error:
        text = str(error) if isinstance(error, SearchError) else "Choose letters from the list."
        return console.problem(request, 400, "Nothing was changed", text)
    with console.reading() as connection:
        extent = search.extent(connection, wanted)
        letters = search.page(connection, wanted, _SHOWN)
        waiting = administration.count_waiting(connection, letters)
    return console.page(
        request,
        "letter_decision.html",
        status=status,
        name=name,
        search=looked_for,
        letters=letters,
        extent=extent,
        waiting=waiting,
        why=str(parameters.get("why", "")),
        longest=LONGEST_REASON,
        request_id=uuid4(),
        problem=problem,
        address_of=address_of,
    )


def _any_state(looked_for: Search) -> Filter:
    """Return what is looked for in any state; the action says in which it changes letters."""
    return replace(looked_for.wanted, states=None)


ROUTES = [
    Route(DECIDE, ask, methods=["GET"]),
    Route(DECIDE, action(decide), methods=["POST"]),
]
