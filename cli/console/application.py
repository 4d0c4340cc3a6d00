"""The application: the pages, what comes before them, and what is shown if something fails."""

import secrets
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from cli.console.console import Console, NotAllowedError, console_of
from cli.console.pages import (
    consumers,
    letter_decisions,
    letters,
    overview,
    pauses,
    sign_in,
    story,
)
from cli.console.rendering import STATIC
from cli.console.security import Guard, OnlyProxies, ProxySignIn, SecurityHeaders, TokenSignIn
from reservation.errors import (
    DatabaseUnavailableError,
    MissingRightError,
    ReservationError,
    SchemaError,
    StatementCanceledError,
)

# Seconds that a session lasts: a working day.
LIFETIME = 12 * 3600

# Bytes of the longest form: a search and a reason.
LONGEST_FORM = 2**18


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules of access.

    Attributes:
        sign_in: how people sign in.
        hosts: the names and addresses by which the console may be called, in lower case.
        proxies: the addresses and networks of proxies, which speak TLS with browsers.
        cookie: the name of the session's cookie.
    """

    sign_in: TokenSignIn | ProxySignIn
    hosts: Collection[str]
    proxies: Sequence[str] = ()
    cookie: str = "reservation-console"


def application(console: Console, access: AccessRules) -> SecurityHeaders:
    """Return the application; it opens and closes the pools of the console."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        pools = [pool for pool in (console.store, console.operator) if pool is not None]
        for pool in pools:
            pool.open()
        try:
            yield
        finally:
            for pool in pools:
                await run_in_threadpool(pool.close)

    app = Starlette(
        routes=[
            *(
                route
                for page in (overview, consumers, pauses, letters, letter_decisions, story)
                for route in page.ROUTES
            ),
            *sign_in.routes(access.sign_in),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=_middleware(access),
        exception_handlers={
            ReservationError: _failed,
            NotAllowedError: _not_allowed,
            HTTPException: _http_error,
            500: _unexpected,
        },
        lifespan=lifespan,
        max_body_size=LONGEST_FORM,
    )
    app.state.console = console
    return SecurityHeaders(app)


def _middleware(access: AccessRules) -> list[Middleware]:
    by_proxy = isinstance(access.sign_in, ProxySignIn)
    return [
        Middleware(TrustedHostMiddleware, allowed_hosts=list(access.hosts), www_redirect=False),
        *([Middleware(OnlyProxies, access.proxies)] if by_proxy else []),
        Middleware(ProxyHeadersMiddleware, trusted_hosts=list(access.proxies)),
        Middleware(
            SessionMiddleware,
            secret_key=secrets.token_urlsafe(32),  # a restart ends all sessions
            session_cookie=access.cookie,
            max_age=LIFETIME,
            same_site="strict",
            https_only=bool(access.proxies),
        ),
        Middleware(Guard, access.sign_in),
    ]


def _failed(request: Request, error: Exception) -> Response:
    """Say what is wrong with the store; nobody has to restart the console when it is well again."""
    problem = console_of(request).problem
    if isinstance(error, DatabaseUnavailableError):
        title = "The database cannot be reached"
        return problem(
            request, 503, title, "The console continues when the database is back.", retry=True
        )
    if isinstance(error, StatementCanceledError):
        return problem(request, 503, "The database took too long", str(error), retry=True)
    if isinstance(error, MissingRightError | SchemaError):
        title = "The console cannot use the store"
        return problem(request, 503, title, str(error), retry=True)
    return problem(request, 400, "That did not work", str(error))


def _not_allowed(request: Request, error: Exception) -> Response:
    return console_of(request).problem(request, 403, "That is not allowed", str(error))


def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return console_of(request).problem(
            request, 404, "There is no such page", "Choose one above."
        )
    return console_of(request).problem(request, status, "That did not work", f"HTTP {status}")


def _unexpected(request: Request, error: Exception) -> Response:
    """Say that something is wrong with the console; its log says what, the answer does not."""
    return console_of(request).problem(
        request, 500, f"Unexpected {type(error).__name__}", "The console's log has the traceback."
    )
