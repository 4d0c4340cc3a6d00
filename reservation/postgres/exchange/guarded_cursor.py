"""A cursor that does not send what would end or change the transaction of somebody else.

What a handler commits cannot be undone, and what it rolls back is missed by the others of its
batch. So such a statement is refused before it is sent. (psycopg does the same with `commit` and
`rollback` within its `transaction` blocks.)
"""

import re
from functools import lru_cache
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.rows import Row

# What a statement within a text does not begin in.
_QUOTED = re.compile(
    r"""[eE]'(?:[^'\\]++|\\.|'')*+'|'[^']*'|"[^"]*"|(\$\w*\$).*?\1"""
    r"""|--[^\n]*|/\*.*?\*/""",
    re.DOTALL,
)

_ENDS = frozenset({"ABORT", "BEGIN", "COMMIT", "END", "START"})
# Characters of a text that is likely to be sent again; longer ones have values in them.
_LONGEST_KEPT = 10_000

_OF_SESSION = frozenset({"AUTHORIZATION", "CHARACTERISTICS"})


class GuardedCursor(psycopg.Cursor[Row]):
    """The cursor of a `KeepingConnection`."""

    # Any: what psycopg takes.
    def execute(self, query: Any, *arguments: Any, **options: Any) -> Self:
        """Execute a statement; within `transaction_of` not one that ends it or sets the session."""
        if getattr(self.connection, "begun", False):
            text = query.as_string(self) if isinstance(query, sql.Composable) else query
            refused = refused_of(text) if isinstance(text, str | bytes) else None
            if refused is not None:
                raise psycopg.ProgrammingError(
                    f"{refused} is forbidden within the consumer's transaction"
                )
        return super().execute(query, *arguments, **options)


def refused_of(text: str | bytes) -> str | None:
    """Return the statement that ends the transaction or sets the session; None if none does."""
    return _found(text) if len(text) > _LONGEST_KEPT else _known(text)


def _found(text: str | bytes) -> str | None:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    for statement in _QUOTED.sub(" ", text).split(";"):
        words = statement.upper().split(None, 4)[:4]
        if words and _is_refused(words[0], words[1:]):
            return " ".join(words[:2])
    return None


_known = lru_cache(maxsize=1024)(_found)


def _is_refused(first: str, others: list[str]) -> bool:
    match first:
        case "ROLLBACK":
            return "TO" not in others[:2]
        case "PREPARE":
            return others[:1] == ["TRANSACTION"]
        case "DEALLOCATE":
            return "ALL" in others[:2]
        case "SET":
            # Of a local setting the consumer's own statements are the next to see it.
            local = others[:1] == ["LOCAL"]
            name = others[1:2] if local else others[:1]
            if name in (["ROLE"], ["TRANSACTION"]) or _OF_SESSION.intersection(others[1:3]):
                return True
            return not local and name != ["CONSTRAINTS"]
        case "RESET" | "DISCARD":
            return True
    return first in _ENDS
