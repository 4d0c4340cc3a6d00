"""The text of a message's content, and its digest, of archived data as the server makes them.

An archive holds the digests of the server. Where they do not hold any more, messages get new ones
when they are read (`spark_jobs.archive.remade`); `columns.sql` defines them.
"""

import hashlib
import json
import re
from collections.abc import Sequence

import msgspec

_DIGITS = 32  # 128 bits

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TRAILING_ZEROS = re.compile(r'("(?:[^"\\]|\\.)*+")|(\.[0-9]*[1-9])0+(?![0-9])|\.0+(?![0-9])')


def digest(data: str | None, ignoring: Sequence[str]) -> str:
    """Return the digest of a message's data without its ignored fields."""
    if data is None:
        return ""
    text = canonical(data, ignoring)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def canonical(data: str | None, ignoring: Sequence[str]) -> str:
    """Return the text of a message's data without its ignored fields, equal for equal data."""
    if data is None:
        return ""
    if ignoring and data.startswith("{"):
        fields = _OBJECT.decode(data)
        kept = (
            f"{json.dumps(name, ensure_ascii=False)}: {bytes(value).decode()}"
            for name, value in fields.items()
            if name not in ignoring
        )
        data = "{" + ", ".join(kept) + "}"
    if "." in data:
        data = _TRAILING_ZEROS.sub(lambda found: found[1] or found[2] or "", data)
    return data
