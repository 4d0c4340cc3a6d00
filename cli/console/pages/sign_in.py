"""The page at which people sign in, and the form that signs them out."""

import getpass
import secrets

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import action, actor_of, console_of, see
from cli.console.security import SIGN_IN_PATH, SignIn, TokenSignIn

_LONGEST_NAME = 60

# Who acted where nobody has given a name.
NAMELESS = "console"


def routes(sign_in: SignIn) -> list[Route]:
    """Return the routes of the pages; none where people sign in at a proxy."""
    if not isinstance(sign_in, TokenSignIn):
        return []

    def show(request: Request) -> Response:
        to = request.query_params.get("next", "")
        token = request.query_params.get("token")
        if sign_in.in_address and token is not None:
            return _try(request, token, "", "/")
        return _form(request, to) if actor_of(request) is None else see(target(to))

    def enter(request: Request, form: FormData) -> Response:
        token, name, to = (str(form.get(field, "")).strip() for field in ("token", "name", "next"))
        return _try(request, token, name, to)

    def _try(request: Request, token: str, name: str, to: str) -> Response:
        if not sign_in.accepts(token):
            return _form(request, to, "That is not the token.", 403)
        if len(name) > _LONGEST_NAME or not name.isprintable():
            problem = f"A name has at most {_LONGEST_NAME} characters, all of them visible."
            return _form(request, to, problem, 400)
        actor = name or (_user() if sign_in.in_address else NAMELESS)
        request.session.update(actor=actor, id=secrets.token_urlsafe(16))
        return see(target(to))

    def leave(request: Request, _: FormData) -> Response:
        sign_in.ended.add(request.session["id"])
        request.session.clear()
        return see(SIGN_IN_PATH)

    def _form(request: Request, to: str, problem: str | None = None, status: int = 200) -> Response:
        # A browser sends no cookie with a click on a link of another site.
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

    return [
        Route(SIGN_IN_PATH, show),
        Route(SIGN_IN_PATH, action(enter), methods=["POST"]),
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
