"""The request that an endpoint answers, with which it sends its command."""

import contextlib
from functools import partial
from typing import Any, overload

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response

from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.errors import (
    DeclarationError,
    EncodeError,
    IdempotenceKeyError,
    MessageIdConflictError,
    RefusedError,
    StoreError,
    StreamNameError,
)
from reservation.http.identity import RequestId
from reservation.http.stored.stored_requests import ask, send, sent
from reservation.http.wire.openapi import Dependency
from reservation.http.wire.problems import (
    COMMAND_CONFLICT,
    COMMAND_DEAD,
    COMMAND_EXPIRED,
    COMMAND_REFUSED,
    Problem,
)
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage
from reservation.messages.message_instance import MessageInstance
from reservation.postgres.error_translation import commits_at_once
from reservation.store.answers.outcome import Outcome
from reservation.store.async_client import AsyncMessageStore
from reservation.store.source import AsyncInTransaction, autocommits

IN_SCOPE = "reservation.http"
_OF_THE_REQUEST = (StreamNameError, IdempotenceKeyError, EncodeError, RefusedError)


class Pending(Exception):
    """The command is not handled yet; the request is answered with where to ask for it."""

    def __init__(self, link: str) -> None:
        super().__init__(f"The command is pending; ask at {link}")
        self._link = link

    def response(self) -> Response:
        """Return the answer."""
        return JSONResponse(
            {"state": "pending", "link": self._link},
            202,
            {"Location": self._link, "Retry-After": "1", "Cache-Control": "no-store"},
        )


class KeyedRequest:
    """A request with an idempotency key, for the endpoint that answers it.

    ``KeyedRequest.of(request)`` gives it to an endpoint. It can be a dependency of FastAPI:
    ``keyed: Annotated[KeyedRequest, Depends(KeyedRequest.of)]``.

    Attributes:
        key: the idempotence key for the command: 36 characters, made of the scope and of the key
            in the header. It is the same whenever the request is sent again, and nobody else's.
    """

    def __init__(
        self,
        request_id: RequestId,
        store: AsyncMessageStore,
        timeout: float,
        link: str,
        *,
        is_polled: bool,
    ) -> None:
        """Begin; the middleware does.

        Args:
            request_id: the identity of the request.
            store: where commands are written to.
            timeout: seconds to wait for a command.
            link: where to ask for the status.
            is_polled: whether the client asks for the status, and so is not to wait.
        """
        self.key = str(request_id.uuid)
        self._id = request_id
        self._store = store
        self._timeout = timeout
        self._link = link
        self._is_polled = is_polled
        self._commands: list[object] = []
        self._in_sessions: set[int] = set()  # which of them, by number, are sent in sessions
        self._unanswered: Problem | Pending | None = None

    @Dependency
    def of(request: HTTPConnection) -> "KeyedRequest":  # noqa: N805  it is a static method
        """Return the keyed request that belongs to a request.

        As a dependency of FastAPI it adds the header to the endpoint's parameters in OpenAPI.

        Args:
            request: the request of Starlette or FastAPI.

        Raises:
            DeclarationError: no `Idempotency` took it, or it came without a key although its
                endpoint needs one.
        """
        found = request.scope.get(IN_SCOPE)
        if not isinstance(found, KeyedRequest):
            raise DeclarationError(
                f"{request.scope['path']} is answered without an idempotency key; add the "
                f"middleware reservation.http.Idempotency, with required=True for this endpoint"
            )
        return found

    @property
    def is_sent(self) -> bool:
        """Whether a command was sent."""
        return bool(self._commands)

    @property
    def unanswered(self) -> "Problem | Pending | None":
        """The reason not to answer yet; None without one."""
        return self._unanswered

    async def is_committed(self, number: int | None = None) -> bool:
        """Return whether the last session, and that of a command, are committed.

        Args:
            number: the number of the command; None for the last session alone.
        """
        if not self._in_sessions:
            return True
        asked = {max(self._in_sessions), *self._in_sessions & {number}}
        return asked <= await ask(self._store, sent(self._id.uuid))

    @overload
    async def send(
        self, command: MessageInstance, component: Component[Any], *, timeout: float | None = None
    ) -> Outcome: ...
    @overload
    async def send(
        self,
        command: MessageInstance,
        component: Component[Any],
        *,
        session: AsyncInTransaction,
    ) -> bool: ...
    async def send(
        self,
        command: MessageInstance,
        component: Component[Any],
        *,
        session: "AsyncInTransaction | None" = None,
        timeout: float | None = None,
    ) -> Outcome | bool:
        """Send a command and return its outcome, once it is handled or rejected.

        The command is written to the command stream of its entity, under an id that is made of the
        request: when the request is sent again, it is not written twice. Where there is no outcome
        to answer with, the endpoint is ended by an exception that the middleware answers: 202 with
        a link if the command is pending, 400 if the request cannot become a command, 422 if the
        command's key was used for another command, 500 if it is a dead letter.

        With a session, the command is part of its transaction, and nothing is waited for: commit,
        then call `wait_for`. The row of the key records the command in the same transaction. When
        the request is sent again after the commit, False is returned: skip what else the endpoint
        writes in that transaction.

        Args:
            command: the command. Its idempotence key is `key`, or holds it.
            component: the component that handles it.
            session: what an `AsyncMessageStore` takes, in a transaction in the database of the
                middleware.
            timeout: seconds to wait; None for those of the middleware.

        Returns:
            The outcome; with a session whether the command is new.

        Raises:
            UnknownTypeError: the component has no such command.
            StoreError: the store refuses, or is away, or there is no transaction, or one in which
                an earlier command was sent is not committed.
        """
        number = len(self._commands)
        if session is not None:
            is_new = await self._send_within(session, command, component, number)
            self._commands.append(command)
            self._in_sessions.add(number)
            return is_new
        self._commands.append(command)
        return await self._outcome(command, component, number, timeout)

    async def wait_for(
        self, command: MessageInstance, component: Component[Any], *, timeout: float | None = None
    ) -> Outcome:
        """Return the outcome of a command that was sent in a session, which is committed.

        Where there is no outcome to answer with, the endpoint is ended as by `send`.

        Args:
            command: the command.
            component: the component that handles it.
            timeout: seconds to wait; None for those of the middleware.

        Raises:
            StoreError: the command was not sent, or its session is not committed, or the store is
                away.
        """
        if command not in self._commands:
            raise StoreError(
                "The command was not sent; send it with keyed.send(…, session=session)"
            )
        return await self._outcome(command, component, self._commands.index(command), timeout)

    async def _send_within(
        self, session: Any, command: MessageInstance, component: Component[Any], number: int
    ) -> bool:
        """Send a command in a transaction of the application's; return whether it is new."""
        in_autocommit = isinstance(session, AsyncConnection) and commits_at_once(session)
        if in_autocommit or isinstance(session, AsyncConnectionPool):
            raise autocommits()
        store, message_id = AsyncMessageStore(session), self._id.command_id(number)
        is_new = await ask(store, send(self._id.uuid, number, message_id))
        if is_new is None:
            raise StoreError(
                "The request is not stored where the session's role can see it; give the session "
                "the database and the role of the middleware"
            )
        if is_new:
            try:
                await store.send(command, component, id=message_id)
            except MessageIdConflictError as error:
                raise self._end(COMMAND_CONFLICT.problem()) from error
            except _OF_THE_REQUEST as error:
                raise self._end(COMMAND_REFUSED.problem()) from error
        return is_new

    async def _outcome(
        self,
        command: MessageInstance,
        component: Component[Any],
        number: int,
        timeout: float | None,
    ) -> Outcome:
        """Send a command, unless it is stored, and return its outcome."""
        if not await self.is_committed(number):
            raise StoreError(
                "The session in which a command was sent is not committed, so its outcome would be "
                "waited for in vain; commit first"
            )
        message_id = self._id.command_id(number)
        position = None
        try:
            entity_id = stream_name.identifier(component.entity_stream(command)) or ""
            stream = stream_name.of(declarations(component).command_category, entity_id)
            question = component.question(command, stream_name=stream, message_id=message_id)
            with contextlib.suppress(MessageIdConflictError):
                # In use if a former version of the endpoint made another command of the request.
                position = await self._store.write(command, stream, id=message_id)
        except _OF_THE_REQUEST as error:
            raise self._end(COMMAND_REFUSED.problem()) from error
        seconds = self._timeout if timeout is None else timeout
        wait_for = partial(self._store.wait_for, timeout=0.0 if self._is_polled else seconds)
        outcome = await wait_for(question)
        if outcome.message is not None:
            if not self._is_ours(outcome.message, stream, position):
                raise self._end(COMMAND_CONFLICT.problem())
            if position is None and outcome.state == "conflict":
                outcome = await wait_for(component.decode(outcome.message), component)
        return self._settled(outcome)

    def _is_ours(self, stands: StoredMessage, stream: str, position: int | None) -> bool:
        """Return whether the command that stands was sent by this request."""
        if self.key in (stands.data or ""):
            return True
        followed = stands.metadata
        return position is not None and (stream, position) in (
            (stands.stream_name, stands.position),
            (followed.causation_message_stream_name, followed.causation_message_position),
        )

    def _settled(self, outcome: Outcome) -> Outcome:
        """Return an outcome to answer with, or end the endpoint."""
        match outcome.state:
            case "handled" | "rejected":
                return outcome
            case "dead":
                raise self._end(COMMAND_DEAD.problem(link=self._link))
            case "expired":
                raise self._end(COMMAND_EXPIRED.problem())
            case "conflict":
                raise self._end(COMMAND_CONFLICT.problem())
            case _:
                raise self._end(Pending(self._link))

    def _end(self, why: "Problem | Pending") -> "Problem | Pending":
        self._unanswered = why
        return why
