"""The ``Idempotency-Key`` header of a request.

The draft makes it a structured header whose value is a string, in quotes. Clients that are older
than the draft, such as Stripe's, send the key without them. A key is the same key either way.

(Source: draft-ietf-httpapi-idempotency-key-header-07, RFC 8941, and Stripe's limit of 255.)
"""

import re

from starlette.datastructures import Headers

from reservation.http.wire.problems import KEY_INVALID

HEADER = "Idempotency-Key"
LONGEST = 255

# RFC 8941: a string, and the parameters that may follow, which mean nothing here.
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE_ITEM = r"-?\d+(?:\.\d+)?|[A-Za-z*][!#$%&'*+.^_`|~:/\w-]*|:[A-Za-z\d+/=]*:|\?[01]"
_PARAMETERS = re.compile(
    rf'(?:; *[a-z*][a-z\d_.*-]*(?:=(?:{_BARE_ITEM}|"(?:[ !#-\[\]-~]|\\["\\])*"))?)*',
    re.ASCII,
)
# What a client sends that knows nothing of structured headers.
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")


def idempotency_key(headers: Headers) -> str | None:
    """Return the key of a request; None if it has none."""
    values = headers.getlist(HEADER)
    if not values:
        return None
    if len(values) > 1:
        raise KEY_INVALID.problem(f"The request has {len(values)} {HEADER} headers; send one")
    value = values[0].strip(" ")
    key = _bare(value) if not value.startswith('"') else _string(value)
    if not key:
        raise KEY_INVALID.problem(
            f'The value of {HEADER} is not a string in quotes, such as "8e03978e-40d5-43dd-bc93"'
        )
    if len(key) > LONGEST:
        raise KEY_INVALID.problem(
            f"The key is {len(key)} characters long; at most {LONGEST} are allowed"
        )
    return key


def _string(value: str) -> str | None:
    found = _STRING.match(value)
    if found is None or not _PARAMETERS.fullmatch(value, found.end()):
        return None
    return re.sub(r"\\(.)", r"\1", found[1])


def _bare(value: str) -> str | None:
    return value if _BARE.fullmatch(value) else None
