"""Named SQL queries, kept in ``.sql`` files beside the code that calls them.

A file holds queries one after another, each under a line ``-- name: the_name``. (The form is that
of procrastinate and aiosql.)
"""

import re
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def load_queries(package: str, file_name: str = "queries.sql") -> dict[str, bytes]:
    """Return the queries of a file by their names."""
    text = (files(package) / file_name).read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    names, bodies = parts[::2], parts[1::2]
    return {name: body.strip().encode() for name, body in zip(names, bodies, strict=True)}
