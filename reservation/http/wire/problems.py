"""Problems of a request that has a key, as ``application/problem+json``.

(Source: RFC 9457.)
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

_RETRY = {"Retry-After": "1"}


class Problem(Exception):
    """A request is answered with what is wrong, and the answer is not stored."""

    def __init__(self, kind: "ProblemKind", detail: str, members: Mapping[str, Any]) -> None:
        super().__init__(f"{kind.title}: {detail}")
        self.kind = kind
        self._detail = detail
        self._members = members

    def response(self) -> Response:
        """Return the answer."""
        shown = {
            "type": f"urn:reservation:problem:{self.kind.name}",
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": self._detail,
            **self._members,
        }
        headers = {"Cache-Control": "no-store", **self.kind.headers}
        content, media_type = json.dumps(shown), "application/problem+json"
        return Response(content, self.kind.status, headers, media_type)


@dataclass(frozen=True)
class ProblemKind:
    """A kind of problem.

    Attributes:
        status: the status code of the answer.
        name: the type of the problem is ``urn:reservation:problem:<name>``.
        title: the kind in words, always the same.
        detail: what to do, where nothing else is known.
        headers: further headers of the answer.
    """

    status: int
    name: str
    title: str
    detail: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def with_headers(self, headers: Mapping[str, str]) -> "ProblemKind":
        """Return the same kind with other headers."""
        return replace(self, headers=headers)

    def problem(self, detail: str = "", **members: Any) -> Problem:
        """Return a problem of this kind, to be raised."""
        return Problem(self, detail or self.detail, members)


KEY_MISSING = ProblemKind(
    400,
    "key-missing",
    "The Idempotency-Key is missing",
    'Send the header Idempotency-Key with a new key, such as "8e03978e-40d5-43dd-bc93", and the '
    "same key with each repetition of the request.",
)
KEY_INVALID = ProblemKind(400, "key-invalid", "The Idempotency-Key is not valid")
KEY_REUSED = ProblemKind(
    422,
    "key-reused",
    "The Idempotency-Key was used for another request",
    "The first request with this key had another method, address or content; send this one with a "
    "new key.",
)
IN_PROGRESS = ProblemKind(
    409,
    "in-progress",
    "A request with this Idempotency-Key is in progress",
    "Send it again later to get its answer.",
    _RETRY,
)
NOT_AUTHENTICATED = ProblemKind(
    401, "not-authenticated", "The request is not authenticated", "An idempotency key needs it."
)
TOO_LARGE = ProblemKind(413, "request-too-large", "The content of the request is too long")
COMMAND_REFUSED = ProblemKind(
    400,
    "command-refused",
    "The request cannot become a command",
    "An id or another value in it is empty, too long, or has characters that cannot be stored.",
)
COMMAND_DEAD = ProblemKind(
    500,
    "command-dead",
    "The command could not be handled",
    "It was set aside to be looked at. Send the request again later, with the same key.",
)
COMMAND_EXPIRED = ProblemKind(
    410,
    "command-expired",
    "What became of the command is no longer known",
    "The request was answered too long ago.",
)
COMMAND_CONFLICT = ProblemKind(
    422,
    "command-conflict",
    "The idempotence key of the command was used for another command",
    "The command that was sent first stands.",
)
ANSWER_TOO_LARGE = ProblemKind(
    500, "answer-too-large", "The answer is too long to be stored, so it is not given"
)
NOT_COMMITTED = ProblemKind(
    500,
    "not-committed",
    "The request was answered before its transaction was committed",
    "Send it again later, with the same key.",
)
STORE_UNAVAILABLE = ProblemKind(
    503,
    "store-unavailable",
    "The message store cannot be reached",
    "Send the request again, with the same key.",
    _RETRY,
)
REQUEST_UNKNOWN = ProblemKind(
    404, "request-unknown", "There is no such request", "Or it is somebody else's, or was removed."
)
INTERRUPTED = ProblemKind(
    409,
    "interrupted",
    "The request was interrupted",
    "Send the request itself again, with the same key, to get its answer.",
)
