"""How people sign in: with a token, or at a proxy that names them in a header.

A token is in a file that only its owner can read, or is made for one run of the console, which
prints an address that holds it.
"""

import hashlib
import hmac
import ipaddress
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.common.errors import CommandError

# Characters of the shortest token that is accepted.
SHORTEST = 16

_LONGEST = 4096

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class TokenSignIn:
    """Sign-in with a token.

    Attributes:
        token: the token.
        in_address: whether it is accepted in the address that the console prints.
    """

    token: str
    in_address: bool = False

    @property
    def secret(self) -> bytes:
        """What signs the sessions: another token ends them."""
        return hashlib.sha256(b"reservation console\n" + self.token.encode()).digest()

    def accepts(self, token: str) -> bool:
        """Return whether a token is the right one, in a time that does not depend on it."""
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())


@dataclass(frozen=True, slots=True)
class ProxySignIn:
    """Sign-in at a proxy.

    Attributes:
        header: the header in which it names who is signed in.
        secret: what signs the sessions.
    """

    header: str
    secret: bytes


SignIn = TokenSignIn | ProxySignIn


def token_for_one_run() -> TokenSignIn:
    """Return a sign-in with a random token."""
    return TokenSignIn(secrets.token_urlsafe(32), in_address=True)


def at_proxy(header: str) -> ProxySignIn:
    """Return a sign-in at a proxy that names people in a header."""
    return ProxySignIn(header, secrets.token_bytes(32))


def token_in_file(path: Path) -> TokenSignIn:
    """Return a sign-in with the token in a file.

    Raises:
        CommandError: the file cannot be read, others may read or replace it, or it holds no token.
    """
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
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(content) > _LONGEST or not token.isprintable() or " " in token or len(token) < SHORTEST:
        raise CommandError(
            f"The token file {path} must hold one line of at least {SHORTEST} characters, without "
            f"spaces; make one with: (umask 077; openssl rand -hex 32 > FILE)"
        )
    return TokenSignIn(token)


def networks(addresses: Sequence[str]) -> list[Network]:
    """Return the networks that addresses such as 10.0.0.5 and 10.1.0.0/16 stand for.

    Raises:
        CommandError: one is neither an address nor a network.
    """
    found: list[Network] = []
    for address in addresses:
        try:
            found.append(ipaddress.ip_network(address))
        except ValueError as error:
            raise CommandError(
                f"{address!r} is not an address of a proxy; write one such as 10.0.0.5 or "
                f"10.1.0.0/16"
            ) from error
    return found


def is_in(address: str, among: Sequence[Network]) -> bool:
    """Return whether an address is in one of several networks."""
    try:
        one = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # a Unix socket has none
        return False
    if isinstance(one, ipaddress.IPv6Address) and one.ipv4_mapped is not None:
        one = one.ipv4_mapped
    return any(one in network for network in among)
