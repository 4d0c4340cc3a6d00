"""The identity of a request, and its fingerprint.

A request is identified by who sends it, its *scope*, and its key. The id is a digest of both, each
hashed by itself first, so that no choice of a key makes it the id of somebody else's. It names the
row of the request, the ids of its commands and their idempotence key.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

_KEY_DIGITS = 32


@dataclass(frozen=True, slots=True)
class RequestId:
    """The identity of a request with a key.

    Attributes:
        key_digest: of the key, in hexadecimal digits; the link to the status ends with it.
        uuid: of scope and key.
    """

    key_digest: str
    uuid: UUID

    @classmethod
    def of(cls, scope: str, key: str) -> "RequestId":
        """Return the id of the request that a principal sends with a key."""
        return cls.linked(scope, digest(b"key", key.encode())[: _KEY_DIGITS // 2].hex())

    @classmethod
    def linked(cls, scope: str, key_digest: str) -> "RequestId":
        """Return the id of the request of a principal that a link to the status names."""
        parts = (b"request", scope.encode("utf-8", "surrogatepass"), key_digest.encode())
        return cls(key_digest, _uuid(digest(*parts)))

    def command_id(self, number: int) -> UUID:
        """Return the message id of a command."""
        return _uuid(digest(b"command", self.uuid.bytes, b"%d" % number))

    @property
    def lock(self) -> tuple[int, int]:
        """The two numbers of the advisory lock that stands for the request."""
        first, second = self.uuid.bytes[:4], self.uuid.bytes[12:]
        return int.from_bytes(first, signed=True), int.from_bytes(second, signed=True)


def is_key_digest(text: str) -> bool:
    """Return whether a text can be the end of a link to a status."""
    return len(text) == _KEY_DIGITS and set(text) <= set("0123456789abcdef")


def fingerprint(method: str, target: str, content: bytes) -> bytes:
    """Return a digest of all that has to be the same when a request is sent again."""
    return digest(method.encode(), target.encode(), content)


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each with its length before it."""
    return hashlib.sha256(b"".join(_with_lengths(parts))).digest()


def _with_lengths(parts: Iterable[bytes]) -> Iterable[bytes]:
    for part in parts:
        yield len(part).to_bytes(8)
        yield part


def _uuid(hashed: bytes) -> UUID:
    """Return the first bits of a digest as a UUID of version 8 (RFC 9562)."""
    return UUID(int=int.from_bytes(hashed[:16]) & ~(0xF << 76 | 0x3 << 62) | 8 << 76 | 2 << 62)
