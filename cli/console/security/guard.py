"""What comes before every page: the host, the origin and the session of a request.

It is the outermost layer, so its headers are on every answer, those of errors included.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cli.console.security.sessions import LIFETIME, Session, Sessions
from cli.console.security.sign_in import Network, ProxySignIn, SignIn, is_in

SIGN_IN_PATH = "/sign-in"
STATIC_PATH = "/static/"

# Bytes of the longest form: a message has at most 16 MiB, which a form may hold percent-encoded.
LONGEST_BODY = 64 * 2**20
_LONGEST_SIGN_IN = 16 * 2**10

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


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in, and how.

    Attributes:
        sign_in: how people sign in.
        hosts: the names and addresses by which the console may be called, in lower case.
        proxies: the addresses whose headers are trusted.
        cookie: the name of the session's cookie.
    """

    sign_in: SignIn
    hosts: Collection[str]
    proxies: Sequence[Network]
    cookie: str


class Guard:
    """Answers or refuses a request before any page sees it, and puts its session into its state."""

    def __init__(self, app: ASGIApp, access: Access, sessions: Sessions) -> None:
        """Wrap an application.

        Args:
            app: the application.
            access: who may come in.
            sessions: the sessions.
        """
        self._app = app
        self._access = access
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no page speaks another protocol
            return
        cookies: list[str] = []

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if not scope["path"].startswith(STATIC_PATH):
                    headers["Cache-Control"] = "no-store"
                for cookie in cookies:
                    headers.append("Set-Cookie", cookie)
            await send(message)

        request = Request(scope)
        answer = self._answer(request, cookies)
        await (answer or self._app)(scope, receive, with_headers)

    def _answer(self, request: Request, cookies: list[str]) -> Response | None:
        """Return the answer to a request that no page is to see, None to one that is let in."""
        scope, headers = request.scope, request.headers
        if hostname(headers) not in self._access.hosts:
            return PlainTextResponse(
                "The console does not answer to this host name; name it with --allowed-host.\n", 421
            )
        behind_proxy = self._is_behind_proxy(request)
        if behind_proxy:
            _believe(scope, headers)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("Method not allowed\n", 405, {"Allow": "GET, HEAD, POST"})
        if request.method == "POST" and (refusal := _refusal(request)):
            return refusal
        if scope["path"].startswith(STATIC_PATH):
            return None
        session = self._sessions.of(request.cookies.get(self._access.cookie))
        if isinstance(self._access.sign_in, ProxySignIn):
            actor = _actor(headers, self._access.sign_in.header) if behind_proxy else None
            if actor is None:
                return PlainTextResponse(
                    "The console is behind a proxy, which did not say who you are.\n", 403
                )
            if session is None or session.actor != actor:
                session, value = self._sessions.begin(actor)
                cookies.append(cookie(request, self._access.cookie, value))
        request.state.session = session
        if session is None and scope["path"] != SIGN_IN_PATH:
            return RedirectResponse(f"{SIGN_IN_PATH}?next={quote(_target(request))}", 303)
        return None

    def _is_behind_proxy(self, request: Request) -> bool:
        return request.client is not None and is_in(request.client.host, self._access.proxies)


def _believe(scope: Scope, headers: Headers) -> None:
    """Take over what a proxy says of its client; the last address is the one that it added."""
    if headers.get("x-forwarded-proto", "").lower() == "https":
        scope["scheme"] = "https"
    # A proxy adds to what it receives, some of them in a line of its own.
    client = ",".join(headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
    if client:
        scope["client"] = (client[:_LONGEST_NAME], 0)


def session_of(request: Request) -> Session | None:
    """Return the session of a request, None where nobody has signed in yet."""
    session: Session | None = getattr(request.state, "session", None)
    return session


def hostname(headers: Headers) -> str:
    """Return the name or address that a request was sent to, in lower case and without a port."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def cookie(request: Request, name: str, value: str) -> str:
    """Return the header that sets the session's cookie, or deletes it if the value is empty."""
    parts = [
        f"{name}={value}",
        "Path=/",
        f"Max-Age={LIFETIME if value else 0}",
        "HttpOnly",
        "SameSite=Strict",
    ]
    if request.url.scheme == "https":
        parts.append("Secure")
    return "; ".join(parts)


def _refusal(request: Request) -> Response | None:
    """Return why a form is not accepted, None if it may have come from a page of the console."""
    headers = request.headers
    origin = headers.get("origin")
    own = f"{request.url.scheme}://{headers.get('host', '')}"
    if (origin is not None and origin.lower() != own.lower()) or headers.get(
        "sec-fetch-site", "same-origin"
    ) != "same-origin":
        return PlainTextResponse(
            "The form was sent from another site. If a proxy with TLS is before the console, name "
            "it with --proxy-address.\n",
            403,
        )
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in headers:
        return PlainTextResponse("The length of the form is missing.\n", 411)
    longest = _LONGEST_SIGN_IN if request.url.path == SIGN_IN_PATH else LONGEST_BODY
    if len(length) > len(str(longest)) or int(length) > longest:
        return PlainTextResponse("The form is too long.\n", 413)
    return None


def _actor(headers: Headers, name: str) -> str | None:
    """Return who is signed in at the proxy; None if it does not say so exactly once."""
    values = headers.getlist(name)
    if len(values) != 1:
        return None
    actor = _text(values[0]).strip()
    return actor if 0 < len(actor) <= _LONGEST_NAME and actor.isprintable() else None


def _text(value: str) -> str:
    """Return a header's value, which is UTF-8 where a proxy names people of other alphabets."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value


def _target(request: Request) -> str:
    """Return where a request was to lead; only what is read can be asked for again."""
    if request.method == "POST":
        return "/"
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")
