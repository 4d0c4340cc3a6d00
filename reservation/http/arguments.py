"""Checks of the middleware's arguments when it is made."""

import math
import re
from collections.abc import Collection, Mapping

from reservation.errors import DeclarationError

# A method is a token of RFC 9110; the names that are in use are of capital letters.
_METHOD = re.compile(r"[A-Z][A-Z-]*")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_SAFE = {"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"}


def check_arguments(
    *,
    scope: object,
    required: object,
    methods: Collection[str],
    timeout: float,
    status_path: str,
    sizes: Mapping[str, int],
) -> None:
    """Make sure that the arguments of an `Idempotency` can be what they are for."""
    if not callable(scope):
        raise DeclarationError(
            f"Idempotency: scope= is a function that takes the request and returns the "
            f"authenticated principal, not a {type(scope).__name__}"
        )
    if not isinstance(required, bool) and not callable(required):
        raise DeclarationError(
            f"Idempotency: required= is True, False or a function of the request, not a "
            f"{type(required).__name__}"
        )
    if isinstance(methods, str) or not methods:
        raise DeclarationError("Idempotency: methods= is a list of methods, such as ['POST']")
    for method in methods:
        if not _METHOD.fullmatch(method) or method in _SAFE:
            raise DeclarationError(
                f"Idempotency: methods= holds {method!r}, and takes methods that change something, "
                f"in capital letters, such as POST"
            )
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise DeclarationError(f"Idempotency: timeout= is a number of seconds, not {timeout!r}")
    if math.isinf(timeout):
        raise DeclarationError("Idempotency: timeout= is infinite; give a number of seconds")
    if not _PATH.fullmatch(status_path):
        raise DeclarationError(
            f"Idempotency: status_path= is a path such as /idempotent-requests, not {status_path!r}"
        )
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DeclarationError(f"Idempotency: {name}= is a whole number from 1, not {value!r}")
