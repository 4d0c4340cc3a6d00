"""Sign-in, and protection against other sites.

People sign in with a token, or at a proxy that names them in a header. Sessions, host names and
what a proxy forwards are those of Starlette and uvicorn.
"""

import hmac
import ipaddress
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cli.common.errors import CommandError

SIGN_IN_PATH = "/sign-in"
STATIC_PATH = "/static/"

# Characters of the shortest token that is accepted: too many to be guessed, however often.
# A limit on wrong tokens would keep out whoever shares an address with somebody who guesses.
SHORTEST = 32
_LONGEST = 4096
_LONGEST_NAME = 200

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that, browsers send no origin with a form. Others get none.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class SignIn(Protocol):
    """A way to sign in."""

    def actor(self, request: Request) -> str | None:
        """Return who has signed in; None for nobody."""

    def ask(self, request: Request) -> Response:
        """Return the answer to a request of nobody."""


@dataclass(frozen=True, slots=True)
class TokenSignIn:
    """Sign-in with a token, which begins a session.

    Attributes:
        token: the token.
        in_address: whether it is accepted in the address that the console prints.
        ended: the ids of sessions that were signed out, whose cookies somebody may have kept.
    """

    token: str
    in_address: bool = False
    ended: set[str] = field(default_factory=set)

    def accepts(self, token: str) -> bool:
        """Return whether a token is the right one, in a time that does not depend on it."""
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())

    def actor(self, request: Request) -> str | None:
        """Return whose session it is."""
        session = request.session
        return None if session.get("id") in self.ended else session.get("actor")

    def ask(self, request: Request) -> Response:
        """Lead to the sign-in, and back afterwards to what was to be read."""
        url = request.url
        target = url.path + (f"?{url.query}" if url.query else "")
        to = target if request.method == "GET" else "/"
        return RedirectResponse(f"{SIGN_IN_PATH}?next={quote(to)}", 303)


@dataclass(frozen=True, slots=True)
class ProxySignIn:
    """Sign-in at a proxy; nobody else can connect (`OnlyProxies`).

    Attributes:
        header: the header in which it names who is signed in.
    """

    header: str

    def actor(self, request: Request) -> str | None:
        """Return whom the proxy names, if it does so exactly once."""
        values = request.headers.getlist(self.header)
        if len(values) != 1:
            return None
        try:  # some proxies name people of other alphabets in UTF-8
            actor = values[0].encode("latin-1").decode().strip()
        except UnicodeDecodeError:
            actor = values[0].strip()
        return actor if 0 < len(actor) <= _LONGEST_NAME and actor.isprintable() else None

    def ask(self, request: Request) -> Response:  # noqa: ARG002  as `SignIn` has it
        """Refuse, since nobody can sign in here."""
        return PlainTextResponse(
            "The console is behind a proxy, which did not say who you are.\n", 403
        )


class OnlyProxies:
    """Refuses connections of others than the proxies, whose header would be believed."""

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        self._app = app
        self._networks = [ipaddress.ip_network(proxy) for proxy in proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._app
        if scope["type"] == "http" and not self._is_proxy(scope):
            app = PlainTextResponse("Only the proxy may connect to the console.\n", 403)
        await app(scope, receive, send)

    def _is_proxy(self, scope: Scope) -> bool:
        try:
            address = ipaddress.ip_address(scope["client"][0])
        except (TypeError, ValueError):  # a Unix socket has none
            return False
        return any(address in network for network in self._networks)


class Guard:
    """Lets in who has signed in, and no form of another site; sets ``request.state.actor``.

    A browser sends the origin with each form. So the cookie needs no token beside it.
    """

    def __init__(self, app: ASGIApp, sign_in: SignIn) -> None:
        self._app = app
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        app = self._app
        if scope["type"] == "http" and not scope["path"].startswith(STATIC_PATH):
            app = self._answer(Request(scope)) or app
        await app(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        request.state.actor = self._sign_in.actor(request)
        own = f"{request.url.scheme}://{request.headers['host']}".lower()
        if request.method not in ("GET", "HEAD") and request.headers.get("origin", "") != own:
            return PlainTextResponse(
                "The form was sent from another site. If a proxy with TLS is before the console, "
                "name it with --proxy-address.\n",
                403,
            )
        if request.state.actor is None and request.url.path != SIGN_IN_PATH:
            return self._sign_in.ask(request)
        return None


class SecurityHeaders:
    """Adds headers to every answer, those of errors included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                is_static = scope["path"].startswith(STATIC_PATH)
                headers["Cache-Control"] = "no-cache" if is_static else "no-store"
            await send(message)

        await self._app(scope, receive, with_headers)


def token_in_file(path: Path) -> TokenSignIn:
    """Return a sign-in with the token in a file."""
    try:
        # A pipe is not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor
            status = os.fstat(file.fileno())
            content = file.read(_LONGEST + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise CommandError(
            f"The token file {path} cannot be read: {error.strerror}; make it with: "
            f"(umask 077; openssl rand -hex 32 > FILE)"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise CommandError(f"The token file {path} is not a file; name one that holds a token")
    if status.st_uid != os.geteuid():
        raise CommandError(
            f"The token file {path} belongs to another user; use a copy that belongs to the user "
            f"who runs the console"
        )
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CommandError(
            f"Other users can read the token file {path}; run `chmod 600` on it, and replace the "
            f"token if somebody may have read it"
        )
    token = content.decode("ascii", errors="replace").strip()
    is_line = token.isascii() and token.isprintable() and " " not in token
    if len(content) > _LONGEST or not is_line or len(token) < SHORTEST:
        raise CommandError(
            f"The token file {path} must hold one line of at least {SHORTEST} characters, without "
            f"spaces; make one with: (umask 077; openssl rand -hex 32 > FILE)"
        )
    return TokenSignIn(token)
