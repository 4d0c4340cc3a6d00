"""Detection of credentials in Spark's properties, which Spark shows to many.

A text is refused if it may hold one: a connection string or URL with a secret of libpq, a URL with
a password between user and host, or an assignment to a name such as ``password``. The name may be
percent-encoded, as libpq decodes it too.
"""

import re
from urllib.parse import unquote

import psycopg
from psycopg import pq

from spark_jobs.common.address import is_secret

_NAMES_A_SECRET = re.compile(
    r"passw(or)?d|passphrase|pwd|secret|token|credential|(access|account|api|private|client).?key",
    re.IGNORECASE,
)
# The place of a secret, or what handles it: a Kubernetes secret, a file, a class.
_NAMES_A_PLACE = re.compile(
    r"\.secrets\.|\.secretKeyRef\.|(file|path|dir|provider|class|enabled|url|uri)$", re.IGNORECASE
)
_ASSIGNMENT = re.compile(r"""([\w.-]+)["']?\s*[=:]\s*["']?[^\s"'&;]""")
_USER_AND_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@")
# A password may contain characters that should be encoded in a URL.
_POSTGRES = re.compile(r"postgres(?:ql)?://[^@\s:]*:[^@\s]+@", re.IGNORECASE)
_POSTGRES_URL = re.compile(r"""postgres(?:ql)?://[^\s"']+""")


def is_credential(key: str, value: str) -> bool:
    """Return whether a property is a credential, or holds one."""
    return _names_a_secret(key) or holds_a_credential(value)


def holds_a_credential(text: str) -> bool:
    """Return whether a text holds a credential."""
    decoded = unquote(text)
    return (
        any(pattern.search(text) for pattern in (_USER_AND_PASSWORD, _POSTGRES))
        or any(_names_a_secret(found[1]) for found in _ASSIGNMENT.finditer(decoded))
        or any(_is_secret_to_libpq(candidate) for candidate in (text, *_POSTGRES_URL.findall(text)))
    )


def _names_a_secret(name: str) -> bool:
    return bool(_NAMES_A_SECRET.search(name)) and not _NAMES_A_PLACE.search(name)


def _is_secret_to_libpq(address: str) -> bool:
    try:
        return any(
            option.val and is_secret(option) for option in pq.Conninfo.parse(address.encode())
        )
    except (psycopg.Error, ValueError):
        return False  # it is not an address
