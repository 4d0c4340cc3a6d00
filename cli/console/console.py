"""What every page is given: the store, the components, the templates, and who is acting."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from cli.console.security.guard import LONGEST_BODY, session_of
from reservation.component import Component

# What the forms of the console need at most: a reason, some marked rows, a message's data.
_MOST_FIELDS = 1_100

FORM_TOKEN = "form_token"  # noqa: S105  the name of the field


class NotAllowedError(Exception):
    """A form is not accepted, or the console may not act."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A page in the navigation.

    Attributes:
        name: its name, by which a page marks itself as the current one.
        title: what it is called.
        path: its address.
        key: the key that leads there after ``g``.
    """

    name: str
    title: str
    path: str
    key: str


@dataclass(frozen=True, slots=True)
class Console:
    """What every page is given.

    Attributes:
        store: the store, which this only reads.
        operator: the same with the rights of an operator; None where the console only reads.
        components: those that were named when the console was started, by their names.
        apps: the app paths of these, by the components' names.
        entries: the pages in the navigation.
        can_sign_out: whether people sign in at the console itself.
    """

    store: Database
    operator: Database | None
    components: Mapping[str, Component[Any]]
    apps: Mapping[str, str]
    entries: Sequence[Entry]
    can_sign_out: bool = True

    @property
    def may_act(self) -> bool:
        """Whether the console has the rights of an operator."""
        return self.operator is not None

    @contextmanager
    def reading(self) -> Iterator[Connection[Any]]:
        """Give a connection in a transaction that only reads, all of it from one snapshot.

        Raises:
            DatabaseUnavailableError: there is no connection; the answer is then a page that says
                so, which no page has to see to.
            StoreError: the database refuses; likewise.
        """
        with self.store.snapshot() as connection:
            yield connection

    @contextmanager
    def acting(self) -> Iterator[Connection[Any]]:
        """Give a connection of an operator, in autocommit, for functions that begin a transaction.

        Raises:
            NotAllowedError: the console only reads.
            DatabaseUnavailableError: there is no connection.
        """
        if self.operator is None:
            raise NotAllowedError(
                "This console only reads; start it with --operator-database-url to act"
            )
        with self.operator.session() as connection:
            yield connection

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page.

        Args:
            request: what it answers.
            template: the name of the file in ``templates``.
            status: the status of HTTP.
            values: what the template shows, beside `console`, `session` and `request`.
        """
        text = render(
            template, console=self, session=session_of(request), request=request, **values
        )
        return HTMLResponse(text, status)


def console_of(request: Request) -> Console:
    """Return the console that a request is for."""
    console: Console = request.app.state.console
    return console


def actor_of(request: Request) -> str:
    """Return who acts, as it is recorded with what is done."""
    session = session_of(request)
    return session.actor if session else ""


def action(
    handler: Callable[[Request, FormData], Response],
) -> Callable[[Request], Any]:
    """Return an endpoint that accepts a form of the console, and then calls a function in a thread.

    Args:
        handler: takes the request and the form. It should answer with `see`.
    """

    async def endpoint(request: Request) -> Response:
        async with request.form(
            max_files=0, max_fields=_MOST_FIELDS, max_part_size=LONGEST_BODY
        ) as form:
            session = session_of(request)
            if session is None or not session.has_form_token(form.get(FORM_TOKEN)):
                raise NotAllowedError(
                    "The form is outdated; go back, reload the page and try again"
                )
            return await run_in_threadpool(handler, request, form)

    return endpoint


def see(path: str) -> RedirectResponse:
    """Return the answer to a form: look at a page, so that a reload does not send it again."""
    return RedirectResponse(path, 303)
