"""One attempt to answer a request: the application runs, and its answer is stored and then sent.

An answer is final, and stored, if it is not a failure of the server (5xx), and not a refusal (4xx)
before any command was sent. Other answers are sent and not stored, so that the application runs
again when the request is sent again, which is harmless: its command is not written twice.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from reservation.errors import (
    DatabaseUnavailableError,
    LockTimeoutError,
    ReservationError,
    SerializationError,
    StatementCanceledError,
)
from reservation.http.identity import RequestId
from reservation.http.keyed_request import IN_SCOPE, KeyedRequest, Pending
from reservation.http.stored import stored_requests
from reservation.http.stored.stored_requests import ask
from reservation.http.wire.answers import Capture, HttpAnswer
from reservation.http.wire.incoming import Parked
from reservation.http.wire.problems import (
    ANSWER_TOO_LARGE,
    NOT_COMMITTED,
    STORE_UNAVAILABLE,
    Problem,
)
from reservation.store.async_client import AsyncMessageStore

# Errors that may be gone when the request is sent again.
TRANSIENT = (
    DatabaseUnavailableError,
    LockTimeoutError,
    SerializationError,
    StatementCanceledError,
)


def unavailable(error: ReservationError) -> Problem:
    """Return the problem that the store cannot be asked, and log the error."""
    structlog.get_logger().warning("http_store_unavailable", error=str(error))
    return STORE_UNAVAILABLE.problem()


def _uncommitted() -> Response:
    """Return the answer instead of one that says that an open transaction is done."""
    structlog.get_logger().error("http_answer_before_commit")
    return NOT_COMMITTED.problem().response()


@dataclass(slots=True)
class Attempt:
    """An attempt to answer a request that this process holds.

    Attributes:
        request_id: the identity of the request.
        parked: the request, as it is kept if it cannot be answered in time.
        store: the message store.
        keyed: what the endpoint gets.
        most_bytes: how long the content of the answer may be.
        release: lets others answer the request.
    """

    request_id: RequestId
    parked: Parked
    store: AsyncMessageStore
    keyed: KeyedRequest
    most_bytes: int
    release: Callable[[], Awaitable[None]]

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Run an application for a request, and send what stands as its answer."""

        async def finish(answer: HttpAnswer | None) -> None:
            given = await self._given(answer)
            await self.release()
            await (
                given.send(send) if isinstance(given, HttpAnswer) else given(scope, receive, send)
            )

        capture = Capture(self.most_bytes, finish)
        # Without extensions: a file that the server sends itself would pass by.
        inner = {**scope, IN_SCOPE: self.keyed, "extensions": {}}
        try:
            await app(inner, receive, capture)
        except Exception as error:
            if capture.complete or not self._is_ours(error):
                raise
            response = await self._instead(error)
            await self.release()
            await response(scope, receive, send)

    async def _given(self, answer: HttpAnswer | None) -> HttpAnswer | Response:
        """Return what the client gets for the answer of the application."""
        why = self.keyed.unanswered
        if why is not None and (answer is None or answer.status >= 500):
            return await self._instead(why)
        if answer is None:
            structlog.get_logger().error("http_answer_too_large", most_bytes=self.most_bytes)
            limit = f"At most {self.most_bytes} bytes are stored"
            return ANSWER_TOO_LARGE.problem(limit).response()
        if why is not None or not self._is_final(answer):
            return answer
        try:
            if not await self.keyed.is_committed():
                return answer if answer.status >= 400 else _uncommitted()
            ours = answer.stored()
            found = await ask(self.store, stored_requests.answer(self.request_id.uuid, ours))
        except TRANSIENT as error:
            return unavailable(error).response()
        stands = ours if found is None or found.answer is None else found.answer
        return answer if stands == ours else stands

    async def _instead(self, why: Exception) -> Response:
        """Return what the client gets where the application could not answer."""
        if isinstance(why, TRANSIENT):
            return unavailable(why).response()
        try:
            if isinstance(why, Pending):
                await ask(self.store, stored_requests.park(self.request_id.uuid, self.parked))
        except TRANSIENT as error:
            return unavailable(error).response()
        assert isinstance(why, Pending | Problem)  # noqa: S101
        return why.response()

    def _is_final(self, answer: HttpAnswer) -> bool:
        return answer.status < 400 or (answer.status < 500 and self.keyed.is_sent)

    @staticmethod
    def _is_ours(error: Exception) -> bool:
        return isinstance(error, (Pending, Problem, *TRANSIENT))
