"""The application: the pages, the guard before them, and what is shown if something fails."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from cli.console.console import Console, NotAllowedError, console_of
from cli.console.pages import (
    consumers,
    findings,
    overview,
    reconciliations,
    signing_in,
    story,
)
from cli.console.pages.letters import dead_letters, letter_correction, letter_decisions
from cli.console.rendering import STATIC
from cli.console.security.guard import Access, Guard
from cli.console.security.sessions import Sessions
from reservation.errors import (
    DatabaseUnavailableError,
    MissingRightError,
    ReservationError,
    SchemaError,
    StatementCanceledError,
)

PAGES = (overview, consumers, dead_letters, story, reconciliations)

ENTRIES = tuple(page.ENTRY for page in PAGES)


def application(console: Console, access: Access) -> Guard:
    """Return the application.

    Args:
        console: what every page is given; its pools are opened and closed with the application.
        access: who may come in.
    """
    sessions = Sessions(access.sign_in.secret)

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
            *(route for page in PAGES for route in page.ROUTES),
            *letter_decisions.ROUTES,
            *letter_correction.ROUTES,
            *findings.ROUTES,
            *signing_in.routes(access, sessions),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        exception_handlers={
            ReservationError: _failed,
            NotAllowedError: _not_allowed,
            HTTPException: _http_error,
            500: _unexpected,
        },
        lifespan=lifespan,
    )
    app.state.console = console
    return Guard(app, access, sessions)


def _failed(request: Request, error: Exception) -> Response:
    """Say what is wrong with the store; nobody has to restart the console when it is well again."""
    if isinstance(error, DatabaseUnavailableError):
        return _problem(
            request, 503, "The database cannot be reached", "The console goes on by itself."
        )
    if isinstance(error, StatementCanceledError):
        return _problem(request, 503, "The database took too long", str(error))
    if isinstance(error, MissingRightError | SchemaError):
        return _problem(request, 503, "The store is not as the console needs it", str(error))
    return _problem(request, 400, "That did not work", str(error))


def _not_allowed(request: Request, error: Exception) -> Response:
    return _problem(request, 403, "That is not allowed", str(error))


def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 404:
        return _problem(request, 404, "There is no such page", "Choose one above.")
    return _problem(request, status, "That did not work", f"HTTP {status}")


def _unexpected(request: Request, error: Exception) -> Response:
    """Say that something is wrong with the console; its log says what, the answer does not."""
    return _problem(
        request, 500, f"Unexpected {type(error).__name__}", "The console's log has the traceback."
    )


def _problem(request: Request, status: int, title: str, text: str) -> Response:
    return console_of(request).page(
        request, "problem.html", status=status, title=title, text=text, retry=status == 503
    )
