"""The middleware that gives endpoints the ``Idempotency-Key`` header.

The steps of a request, each durable before the next: its row is inserted; its command is written,
under an id made of scope and key; the command is handled; the answer is stored; the answer is sent.
A process that dies between two of them leaves what the next attempt finds, and goes on from.
"""

import inspect
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reservation.errors import DeclarationError
from reservation.http.arguments import check_arguments
from reservation.http.attempt import TRANSIENT, Attempt, unavailable
from reservation.http.identity import RequestId, fingerprint, is_key_digest
from reservation.http.keyed_request import KeyedRequest, Pending
from reservation.http.stored import stored_requests
from reservation.http.stored.connections import Connections
from reservation.http.stored.stored_requests import StoredRequest
from reservation.http.wire import incoming
from reservation.http.wire.header import idempotency_key
from reservation.http.wire.incoming import Parked
from reservation.http.wire.problems import (
    IN_PROGRESS,
    INTERRUPTED,
    KEY_MISSING,
    KEY_REUSED,
    NOT_AUTHENTICATED,
    REQUEST_UNKNOWN,
    Problem,
    ProblemKind,
)
from reservation.store.statements import Statement

Principal = Callable[[Request], str | Awaitable[str | None] | None]

_MEBIBYTE = 1 << 20


class Idempotency:
    """An ASGI middleware that answers a request once, however often it is sent.

    ``Starlette(…, middleware=[Middleware(Idempotency, database_url=…, scope=…)])``, or
    ``app.add_middleware(Idempotency, database_url=…, scope=…)`` for FastAPI. Requests with one of
    ``methods`` take part; their endpoints send commands with `KeyedRequest`.

    The status, the headers and the content of the first answer are stored, and given again, byte
    for byte, to whoever sends the same request with the same key in the same scope. A key that is
    used for another request is answered 422, one whose request is in progress 409, a missing key
    400. A failure (5xx) is not stored, nor is a refusal (4xx) before a command was sent.

    (Source: draft-ietf-httpapi-idempotency-key-header-07.)
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        database_url: str,
        scope: Principal,
        required: bool | Callable[[Request], bool] = True,
        methods: Collection[str] = ("POST", "PATCH"),
        timeout: float = 10.0,
        status_path: str = "/idempotent-requests",
        max_connections: int = 4,
        max_request_bytes: int = _MEBIBYTE,
        max_answer_bytes: int = _MEBIBYTE,
    ) -> None:
        """Prepare; nothing is asked of the database before the first request.

        Args:
            app: the application.
            database_url: a libpq URL or connection string of the message store.
            scope: takes the request and returns the authenticated principal that sends it, as a
                text that no other principal has; None if there is none, which is answered 401. May
                be async, and may raise an `HTTPException` of Starlette. Keys and answers of
                different scopes have nothing to do with each other.
            required: whether a request has to have a key, or a function of the request that says
                so. Without a key a request is passed on as if there were no middleware.
            methods: the methods of the requests that take part.
            timeout: seconds to wait for a command before the answer is 202, with a link to the
                status.
            status_path: the path, within the application, that links to the status begin with.
            max_connections: how many requests can use the database at one time without waiting.
            max_request_bytes: how long the content of a request may be, which is read as a whole.
            max_answer_bytes: how long the content of an answer may be.

        Raises:
            DeclarationError: an argument cannot be what it is for.
        """
        check_arguments(
            scope=scope,
            required=required,
            methods=methods,
            timeout=timeout,
            status_path=status_path,
            sizes={
                "max_connections": max_connections,
                "max_request_bytes": max_request_bytes,
                "max_answer_bytes": max_answer_bytes,
            },
        )
        self._app = app
        self._scope = scope
        self._required = required
        self._methods = frozenset(methods)
        self._timeout = timeout
        self._status_path = status_path + "/"
        self._max_request_bytes = max_request_bytes
        self._max_answer_bytes = max_answer_bytes
        self._connections = Connections(database_url, max_connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on; ASGI servers call this."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._closing(send))
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            key_digest = self._linked(request)
            if key_digest is not None:
                await self._answer_status(key_digest, request, receive, send)
                return
            key = self._key(request)
            if key is not None:
                await self._answer(key, request, receive, send)
                return
        except incoming.Disconnected:
            return
        except (Problem, Pending) as answer:
            await answer.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _key(self, request: Request) -> str | None:
        """Return the key of a request; None if it takes no part."""
        if request.method not in self._methods:
            return None
        key = idempotency_key(request.headers)
        required = self._required
        if key is None and (required(request) if callable(required) else required):
            raise KEY_MISSING.problem()
        return key

    async def _answer(self, key: str, request: Request, receive: Receive, send: Send) -> None:
        """Answer a request that has a key."""
        request_id = RequestId.of(await self._principal(request), key)
        content = await incoming.read_content(request, receive, self._max_request_bytes)
        parked = incoming.parked(request, content)
        asked = fingerprint(parked.method, parked.target, content)
        async with AsyncExitStack() as held:
            is_held = await self._take(request_id, held)
            stored = await self._ask(
                stored_requests.begin(request_id.uuid, asked)
                if is_held
                else stored_requests.find(request_id.uuid)
            )
            if stored is not None and stored.fingerprint != asked:
                raise KEY_REUSED.problem()
            if stored is None or stored.answer is None:
                if not is_held:
                    raise IN_PROGRESS.problem()
                attempt = await self._attempt(request_id, parked, request, held, is_polled=False)
                replayed = incoming.replayed(content, receive)
                await attempt.run(self._app, request.scope, replayed, send)
                return
        await stored.answer.send(send)

    async def _answer_status(
        self, key_digest: str, request: Request, receive: Receive, send: Send
    ) -> None:
        """Answer a client that asks what became of its request."""
        request_id = RequestId.linked(await self._principal(request), key_digest)
        async with AsyncExitStack() as held:
            is_held = await self._take(request_id, held)
            stored = await self._ask(stored_requests.find(request_id.uuid))
            if stored is None:
                raise REQUEST_UNKNOWN.problem()
            if stored.answer is None:
                if not is_held:
                    raise Pending(self._link(request, request_id))
                parked = stored.parked
                if parked is None:
                    raise INTERRUPTED.problem()
                attempt = await self._attempt(request_id, parked, request, held, is_polled=True)
                scope = incoming.scope_of(parked, request.scope)
                replayed = incoming.replayed(parked.content, receive)
                await attempt.run(self._app, scope, replayed, send)
                return
        await stored.answer.send(send)

    async def _take(self, request_id: RequestId, held: AsyncExitStack) -> bool:
        """Return whether this process may answer a request, which it may until ``held`` ends."""
        try:
            _, in_progress = await self._connections.open()
            is_held = await in_progress.take(request_id)
        except TRANSIENT as error:
            raise unavailable(error) from error
        if is_held:
            held.push_async_callback(in_progress.release, request_id)
        return is_held

    async def _ask(self, statement: Statement[StoredRequest | None]) -> StoredRequest | None:
        try:
            store, _ = await self._connections.open()
            return await stored_requests.ask(store, statement)
        except TRANSIENT as error:
            raise unavailable(error) from error

    async def _attempt(
        self,
        request_id: RequestId,
        parked: Parked,
        request: Request,
        held: AsyncExitStack,
        *,
        is_polled: bool,
    ) -> Attempt:
        store, _ = await self._connections.open()
        link = self._link(request, request_id)
        keyed = KeyedRequest(request_id, store, self._timeout, link, is_polled=is_polled)
        return Attempt(request_id, parked, store, keyed, self._max_answer_bytes, held.aclose)

    async def _principal(self, request: Request) -> str:
        try:
            found = self._scope(request)
            principal = await found if inspect.isawaitable(found) else found
        except HTTPException as error:
            kind = ProblemKind(error.status_code, "scope-refused", "The request is refused")
            raise kind.with_headers(error.headers or {}).problem(error.detail) from error
        if principal is None:
            raise NOT_AUTHENTICATED.problem()
        if not isinstance(principal, str) or not principal:
            raise DeclarationError(
                f"The scope of a request is a str that is not empty, or None, and scope= returned "
                f"{'an empty str' if principal == '' else f'a {type(principal).__name__}'}"
            )
        return principal

    def _linked(self, request: Request) -> str | None:
        """Return the digest of the key at the end of a link to a status; None for other paths."""
        if request.method not in ("GET", "HEAD"):
            return None
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        text = path.removeprefix(self._status_path)
        return text if text != path and is_key_digest(text) else None

    def _link(self, request: Request, request_id: RequestId) -> str:
        return f"{request.scope.get('root_path', '')}{self._status_path}{request_id.key_digest}"

    def _closing(self, send: Send) -> Send:
        """Return what closes the connections once the application has shut down."""

        async def closing(message: Message) -> None:
            if message["type"].startswith("lifespan.shutdown."):
                await self._connections.close()
            await send(message)

        return closing
