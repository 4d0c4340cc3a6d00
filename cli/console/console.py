"""Every page's context: the store, the components, the templates, and who is acting."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import Connection
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cli.console.reading.database import Database
from cli.console.rendering import render
from reservation.component import Component


class NotAllowedError(Exception):
    """The console may not act."""


@dataclass(frozen=True, slots=True)
class Console:
    """Every page's context.

    Attributes:
        store: the store, which this only reads.
        operator: the same with the rights of an operator; None where the console only reads.
        components: those that were named when the console was started, by their names.
        apps: the app paths of these, by the components' names.
        can_sign_out: whether people sign in at the console itself.
    """

    store: Database
    operator: Database | None
    components: Mapping[str, Component[Any]]
    apps: Mapping[str, str]
    can_sign_out: bool = True

    @property
    def may_act(self) -> bool:
        """Whether the console has the rights of an operator."""
        return self.operator is not None

    @contextmanager
    def reading(self) -> Iterator[Connection[Any]]:
        """Give a connection in a transaction that only reads, all of it from one snapshot."""
        with self.store.snapshot() as connection:
            yield connection

    @contextmanager
    def acting(self) -> Iterator[Connection[Any]]:
        """Give a connection of an operator, in autocommit."""
        if self.operator is None:
            raise NotAllowedError(
                "This console only reads; start it with --operator-database-url to act"
            )
        with self.operator.session() as connection:
            yield connection

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page: a template, filled in with values."""
        text = render(template, console=self, actor=actor_of(request), request=request, **values)
        return HTMLResponse(text, status)

    def problem(
        self, request: Request, status: int, title: str, text: str = "", *, retry: bool = False
    ) -> HTMLResponse:
        """Return a page that says what is wrong."""
        return self.page(
            request, "problem.html", status=status, title=title, text=text, retry=retry
        )


def console_of(request: Request) -> Console:
    """Return the console that a request is for."""
    console: Console = request.app.state.console
    return console


def actor_of(request: Request) -> str | None:
    """Return who acts, as it is recorded with what is done; None before the sign-in."""
    return getattr(request.state, "actor", None)


def action(handler: Callable[[Request, FormData], Response]) -> Callable[[Request], Any]:
    """Return an endpoint that reads a form, and then calls a function in a thread."""

    async def endpoint(request: Request) -> Response:
        async with request.form(max_files=0, max_fields=100) as form:
            return await run_in_threadpool(handler, request, form)

    return endpoint


def see(path: str) -> RedirectResponse:
    """Return the answer to a form: look at a page, so that a reload does not send it again."""
    return RedirectResponse(path, 303)
