"""A client's request: its target and content, read before the application sees it."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from reservation.http.wire.problems import TOO_LARGE

# Headers that say how content is to be read; a parked request keeps them.
_OF_CONTENT = ("content-type", "content-encoding", "content-language")


@dataclass(frozen=True, slots=True)
class Parked:
    """A request that is to be answered when its client asks again.

    Attributes:
        method: the method.
        target: the path and the query, as they were sent.
        headers: those that say how the content is to be read.
        content: the content.
    """

    method: str
    target: str
    headers: dict[str, str]
    content: bytes


class Disconnected(Exception):
    """The client went away before it had sent all of its request."""


def target_of(scope: Scope) -> str:
    """Return the path and the query of a request as they were sent, in ASCII."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"])
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


async def read_content(request: Request, receive: Receive, most_bytes: int) -> bytes:
    """Return the content of a request."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > most_bytes:
        raise _too_large(most_bytes)
    content = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        content += message.get("body", b"")
        if len(content) > most_bytes:
            raise _too_large(most_bytes)
        if not message.get("more_body", False):
            return bytes(content)


def replayed(content: bytes, receive: Receive) -> Receive:
    """Return what gives the application content that was read already, and then what follows."""
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def parked(request: Request, content: bytes) -> Parked:
    """Return a request as it is kept."""
    headers = {name: request.headers[name] for name in _OF_CONTENT if name in request.headers}
    return Parked(request.method, target_of(request.scope), headers, content)


def scope_of(parked: Parked, asking: Scope) -> Scope:
    """Return the scope of a parked request, in the name of the client that asks for it."""
    raw_path, _, query = parked.target.partition("?")
    of_content = (*_OF_CONTENT, "content-length")
    own = [(name, value) for name, value in asking["headers"] if name.decode() not in of_content]
    return {
        **asking,
        "method": parked.method,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "headers": [*own, *_encoded({**parked.headers, "content-length": len(parked.content)})],
    }


def _encoded(headers: dict[str, str | int]) -> Iterable[tuple[bytes, bytes]]:
    return ((name.encode(), str(value).encode("latin-1")) for name, value in headers.items())


def _too_large(most_bytes: int) -> Exception:
    return TOO_LARGE.problem(f"At most {most_bytes} bytes are allowed")
