"""Answers of the application, and how they are stored.

A stored answer is the status, the headers and the content, byte for byte. Headers that are about
the connection, the moment or the client's session are sent with the first answer and not stored.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Send

Header = tuple[bytes, bytes]

# RFC 9110, 7.6.1; Date is of the moment, and Set-Cookie of a session that may have ended.
_NOT_STORED = frozenset(
    {
        b"connection",
        b"date",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of the application.

    Attributes:
        status: the status code.
        headers: names and values, in their order.
        body: the content.
    """

    status: int
    headers: tuple[Header, ...]
    body: bytes

    def stored(self) -> "HttpAnswer":
        """Return the answer with those headers alone that are stored."""
        named = {
            name.strip().lower()
            for header, value in self.headers
            if header.lower() == b"connection"
            for name in value.split(b",")
        }
        left_out = _NOT_STORED | named
        kept = tuple(header for header in self.headers if header[0].lower() not in left_out)
        return HttpAnswer(self.status, kept, self.body)

    def header_texts(self) -> list[list[str]]:
        """Return the headers as JSON can hold them."""
        return [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers]

    @classmethod
    def from_texts(cls, status: int, headers: Iterable[Iterable[str]], body: bytes) -> "HttpAnswer":
        """Return the answer that was stored."""
        pairs = ((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
        return cls(status, tuple(pairs), bytes(body))

    async def send(self, send: Send) -> None:
        """Give it to the client."""
        await send(
            {"type": "http.response.start", "status": self.status, "headers": list(self.headers)}
        )
        await send({"type": "http.response.body", "body": self.body})


class Capture:
    """Holds back what an application sends, until the answer is complete.

    Attributes:
        complete: whether it is.
    """

    def __init__(
        self, most_bytes: int, finish: Callable[[HttpAnswer | None], Awaitable[None]]
    ) -> None:
        self._most_bytes = most_bytes
        self._finish = finish
        self._start: Message | None = None
        self._body = bytearray()
        self.complete = False

    async def __call__(self, message: Message) -> None:
        """Take a message of the application."""
        if self.complete:
            return
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            is_too_long = len(self._body) > self._most_bytes
            if is_too_long or not message.get("more_body", False):
                self.complete = True
                await self._finish(None if is_too_long else self._answer(self._start))

    def _answer(self, start: Message) -> HttpAnswer:
        headers: Any = start.get("headers", ())  # any iterable of pairs
        pairs = tuple((bytes(name), bytes(value)) for name, value in headers)
        return HttpAnswer(start["status"], pairs, bytes(self._body))
