"""Pausing what a consumer does, for a reason, and resuming it."""

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import action, actor_of, console_of, see
from cli.console.pages.letter_decisions import LONGEST_REASON, reason_of
from consumers.pauses import administration
from consumers.pauses.pause import PauseError, Scope

PATH = "/pauses"

_NAMES = ("component", "category", "type", "entity")


def ask(request: Request) -> Response:
    """Ask what to pause of a component, and why."""
    return _asked(request, request.query_params)


def pause(request: Request, form: FormData) -> Response:
    """Pause it."""
    reason = reason_of(form)
    if reason is None:
        problem = f"Give a reason of at most {LONGEST_REASON:,} characters; it is shown to others."
        return _asked(request, form, problem=problem, status=422)
    with console_of(request).acting() as connection:
        try:
            actor = actor_of(request)
            administration.pause(connection, _scope(form), reason, on_behalf_of=actor)
        except PauseError as error:
            return _asked(request, form, problem=str(error), status=409)
    return see("/consumers")


def resume(request: Request, form: FormData) -> Response:
    """Resume what was paused under the names in a form."""
    with console_of(request).acting() as connection:
        try:
            administration.resume(connection, _scope(form))
        except PauseError as error:
            return console_of(request).problem(request, 409, "Nothing was changed", str(error))
    return see("/consumers")


def _asked(
    request: Request,
    parameters: QueryParams | FormData,
    *,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    """Return the page that asks."""
    return console_of(request).page(
        request,
        "pause.html",
        status=status,
        given={name: str(parameters.get(name, "")) for name in (*_NAMES, "why")},
        longest=LONGEST_REASON,
        problem=problem,
    )


def _scope(form: FormData) -> Scope:
    """Return what a form names; an empty field does not narrow it."""
    component, *narrowing = (str(form.get(name, "")).strip() for name in _NAMES)
    return Scope(component, *(name or None for name in narrowing))


ROUTES = [
    Route(PATH, ask, methods=["GET"]),
    Route(PATH, action(pause), methods=["POST"]),
    Route(f"{PATH}/resume", action(resume), methods=["POST"]),
]
