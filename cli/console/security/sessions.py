"""Sessions: a signed cookie that holds who signed in and when, and nothing else.

The signature is an HMAC with a secret of the process, or one made of the token, so that a restart
keeps the sessions and a new token ends them. A session that was signed out is remembered until it
would have ended.
"""

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

# Seconds that a session lasts: a working day.
LIFETIME = 12 * 3600


@dataclass(frozen=True, slots=True)
class Session:
    """One sign-in of one person.

    Attributes:
        actor: who acts, as it is recorded with what is done.
        nonce: random, different for each session.
        ends_at: when it ends, in seconds since 1970.
        form_token: what every form carries, so that no other site can send one.
    """

    actor: str
    nonce: str
    ends_at: int
    form_token: str

    def has_form_token(self, token: object) -> bool:
        """Return whether a form carries the token of this session."""
        return isinstance(token, str) and hmac.compare_digest(
            token.encode(), self.form_token.encode()
        )


class Sessions:
    """Makes sessions and recognizes their cookies."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        """Start without sessions.

        Args:
            secret: what signs the cookies.
            clock: returns the time, in seconds since 1970.
        """
        self._secret = secret
        self._clock = clock
        self._ended: dict[str, int] = {}

    def begin(self, actor: str) -> tuple[Session, str]:
        """Return a new session and its cookie."""
        session = self._session(actor, secrets.token_urlsafe(18), int(self._clock()) + LIFETIME)
        text = json.dumps([session.actor, session.nonce, session.ends_at]).encode()
        body = base64.urlsafe_b64encode(text).decode().rstrip("=")
        return session, f"{body}.{self._sign('cookie', body)}"

    def of(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None if it has ended or is not ours."""
        body, _, signature = (cookie or "").partition(".")
        expected = self._sign("cookie", body)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            return None
        try:
            text = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
            actor, nonce, ends_at = json.loads(text)
        except (binascii.Error, ValueError):
            return None
        if ends_at <= self._clock() or nonce in self._ended:
            return None
        return self._session(actor, nonce, ends_at)

    def end(self, session: Session) -> None:
        """Let a session's cookie be worth nothing from now on."""
        now = self._clock()
        self._ended = {nonce: at for nonce, at in self._ended.items() if at > now}
        self._ended[session.nonce] = session.ends_at

    def _session(self, actor: str, nonce: str, ends_at: int) -> Session:
        return Session(actor, nonce, ends_at, self._sign("form", nonce))

    def _sign(self, purpose: str, text: str) -> str:
        message = f"{purpose}\n{text}".encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()
