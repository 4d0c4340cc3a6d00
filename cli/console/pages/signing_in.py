"""The page at which people sign in, and the form that signs them out."""

import getpass
from math import ceil

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cli.console.console import action, console_of, see
from cli.console.security.attempts import Attempts
from cli.console.security.guard import SIGN_IN_PATH, Access, cookie, session_of
from cli.console.security.sessions import Sessions
from cli.console.security.sign_in import TokenSignIn

_LONGEST_NAME = 60

# Who acted where nobody has given a name.
NAMELESS = "console"


def routes(access: Access, sessions: Sessions) -> list[Route]:
    """Return the routes of the pages.

    Args:
        access: how people sign in.
        sessions: where their sessions are made and ended.
    """
    sign_in = access.sign_in
    if not isinstance(sign_in, TokenSignIn):
        return [Route(SIGN_IN_PATH, lambda _: see("/"))]
    attempts = Attempts()

    def show(request: Request) -> Response:
        if session_of(request) is not None and "token" not in request.query_params:
            return see(target(request.query_params.get("next", "")))
        # Another site that has its pages load such addresses would use up the attempts.
        is_of_another = request.headers.get("sec-fetch-site") == "cross-site"
        if sign_in.in_address and "token" in request.query_params and not is_of_another:
            return _try(request, request.query_params["token"], "", "/")
        return _form(request, sign_in, request.query_params.get("next", ""))

    async def enter(request: Request) -> Response:
        if request.method in ("GET", "HEAD"):
            return await run_in_threadpool(show, request)
        async with request.form(max_files=0, max_fields=10) as form:
            token, name, to = (_text(form, field) for field in ("token", "name", "next"))
        return _try(request, token.strip(), name.strip(), to)

    def _try(request: Request, token: str, name: str, to: str) -> Response:
        client = request.client.host if request.client else ""
        wait = ceil(attempts.wait(client))
        if wait:
            problem = f"Too many wrong tokens. Try again in {wait} seconds."
            answer = _form(request, sign_in, to, problem, 429)
            answer.headers["Retry-After"] = str(wait)
            return answer
        if not sign_in.accepts(token):
            attempts.failed(client)
            return _form(request, sign_in, to, "That is not the token.", 403)
        attempts.succeeded(client)
        if len(name) > _LONGEST_NAME or not name.isprintable():
            problem = f"A name has at most {_LONGEST_NAME} characters, all of them visible."
            return _form(request, sign_in, to, problem, 400)
        _, value = sessions.begin(name or (_user() if sign_in.in_address else NAMELESS))
        response = see(target(to))
        response.headers.append("Set-Cookie", cookie(request, access.cookie, value))
        return response

    def leave(request: Request, _: FormData) -> Response:
        session = session_of(request)
        if session is not None:
            sessions.end(session)
        response = RedirectResponse(SIGN_IN_PATH, 303)
        response.headers.append("Set-Cookie", cookie(request, access.cookie, ""))
        return response

    return [
        Route(SIGN_IN_PATH, enter, methods=["GET", "POST"]),
        Route("/sign-out", action(leave), methods=["POST"]),
    ]


def target(path: str) -> str:
    """Return where to go after the sign-in: a path of the console, or its first page."""
    inside = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if inside else "/"


def _user() -> str:
    """Return the user who runs the console, and whose own it is without a token file."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        return NAMELESS


def _form(
    request: Request,
    sign_in: TokenSignIn,
    to: str,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    # A browser sends no cookie with a click on a link of another site, so it may be signed in.
    from_elsewhere = request.headers.get("sec-fetch-site") == "cross-site"
    return console_of(request).page(
        request,
        "sign_in.html",
        status=status,
        problem=problem,
        to=target(to),
        in_address=sign_in.in_address,
        from_elsewhere=from_elsewhere and problem is None,
    )


def _text(form: FormData, name: str) -> str:
    value = form.get(name)
    return value if isinstance(value, str) else ""
