"""Mutants of SQL: a condition left out, a comparison turned, a lock or a guard not taken.

Left as they are: tables and indexes, the planner's settings, and orders that only keep two
transactions from waiting for each other in a circle.
"""

import re
from collections.abc import Iterator

from tests.mutation.mutant import Mutant

# Queries and functions; nothing else in a file is changed.
_PART = re.compile(
    rb"^-- name: (?P<query>\w+)\n.*?(?=^-- name: |\Z)"
    rb"|^CREATE OR REPLACE FUNCTION reservation\.(?P<function>\w+).*?^AS \$\$.*?^\$\$;",
    re.MULTILINE | re.DOTALL,
)
_HIDDEN = re.compile(rb"--[^\n]*|'(?:[^']|'')*'")
_CLAUSE = re.compile(
    rb"\b(?:WHERE|AND|OR|ON|BETWEEN|CASE|END|GROUP BY|ORDER BY|LIMIT|OFFSET|UNION|FOR|DO|RETURNING"
    rb"|SET|THEN|AS|LEFT|CROSS|JOIN|IF|ELSIF|LOOP|USING|WHEN)\b|[();]|\Z"
)
_SWAPS: tuple[tuple[re.Pattern[bytes], tuple[bytes, ...]], ...] = tuple(
    (re.compile(pattern), replacements)
    for pattern, replacements in (
        (rb"<=", (b"<", b">")),
        (rb">=", (b">", b"<")),
        (rb"<(?![=>])", (b"<=", b">=")),
        (rb"(?<![<=-])>(?![=>])", (b">=", b"<=")),
        (rb"<>", (b"=",)),
        (rb"\bIS NULL\b", (b"IS NOT NULL",)),
        (rb"\bIS NOT NULL\b", (b"IS NULL",)),
        (rb"\bIS DISTINCT FROM\b", (b"IS NOT DISTINCT FROM",)),
        (rb"\bIS NOT DISTINCT FROM\b", (b"IS DISTINCT FROM",)),
        (rb"\bNOT EXISTS\b", (b"EXISTS",)),
        (rb"(?<!NOT )(?<!IF )\bEXISTS\b", (b"NOT EXISTS",)),
        (rb"\bIF NOT FOUND\b", (b"IF FOUND",)),
        (rb"\bIF FOUND\b", (b"IF NOT FOUND",)),
        (rb"\bLEFT JOIN\b", (b"JOIN",)),
        (rb"\bDESC\b", (b"ASC",)),
        (rb"\bDISTINCT\b(?! FROM)", (b"",)),
        (rb"\bON CONFLICT DO NOTHING\b", (b"",)),
        (rb"\bFOR NO KEY UPDATE\b", (b"",)),
        (rb"\bgreatest\b", (b"least",)),
        (rb"\bleast\b", (b"greatest",)),
        (rb"\bmin(?=\()", (b"max",)),
        (rb"\bmax(?=\()", (b"min",)),
        (rb"(?<=[a-z]) \+ (?=[\w(])", (b" - ",)),
        (rb"(?<=[a-z)]) - (?=[\w%(])", (b" + ",)),
        (rb"\btrue\b", (b"false",)),
        (rb"\bfalse\b", (b"true",)),
        (rb"'-infinity'", (b"'infinity'",)),
        (rb"'infinity'", (b"'-infinity'",)),
    )
)


def mutants(path: str, content: bytes) -> list[Mutant]:
    """Return every mutant of the queries and functions of a file, in its order."""
    found: set[Mutant] = set()
    for part in _PART.finditer(content):
        name = (part["query"] or part["function"]).decode()
        start = content.index(b"AS $$", part.start()) if part["function"] else part.start()
        visible = _HIDDEN.sub(_hide, content[: part.end()])
        line = content.count(b"\n", 0, part.start()) + 1
        for first, last, text in [*_swaps(visible, start), *_dropped(visible, start)]:
            found.add(Mutant(path, first, last, text, range(line, line + 1), name))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.text))


def _hide(hidden: re.Match[bytes]) -> bytes:
    """Return a text as long as a comment or a literal, in which nothing is found."""
    if hidden[0].startswith(b"--"):
        return b" " * len(hidden[0])
    return hidden[0] if b"infinity" in hidden[0] else b"'" + b"_" * (len(hidden[0]) - 2) + b"'"


def _swaps(text: bytes, start: int) -> Iterator[tuple[int, int, bytes]]:
    for pattern, replacements in _SWAPS:
        for match in pattern.finditer(text, start):
            for replacement in replacements:
                yield match.start(), match.end(), replacement


def _dropped(text: bytes, start: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield each condition of a WHERE, an ON or an IF, to be replaced by true."""
    tokens = list(_CLAUSE.finditer(text, start))
    for n, token in enumerate(tokens):
        if not re.fullmatch(rb"WHERE|AND|OR|ON|IF|WHEN", token[0]) or _is_of_between(tokens, n):
            continue
        end = _end_of_condition(tokens, n + 1)
        condition = text[token.end() : end]
        stripped = condition.strip()
        if not stripped or stripped.startswith((b"CONFLICT", b"EXISTS reservation", b"true")):
            continue
        first = token.end() + len(condition) - len(condition.lstrip())
        value = b"false" if token[0] == b"OR" else b"true"
        yield first, first + len(stripped), value
        if token[0] in {b"IF", b"WHEN"}:
            yield first, first + len(stripped), b"false"
        elif b"=" in stripped and re.search(rb"(?<![<>:])=", stripped) and stripped[:1] != b"(":
            where = first + re.search(rb"(?<![<>:])=", stripped).start()  # type: ignore[union-attr]
            yield where, where + 1, b"<>"


def _end_of_condition(tokens: list[re.Match[bytes]], n: int) -> int:
    """Return where the condition ends that the token before `n` begins."""
    depth = between = cases = 0
    for token in tokens[n:]:
        match token[0]:
            case b"(":
                depth += 1
            case b")" if depth:
                depth -= 1
            case _ if depth:
                pass
            case b"CASE":
                cases += 1
            case b"END" if cases:
                cases -= 1
            case _ if cases:
                pass
            case b"BETWEEN":
                between += 1
            case b"AND" if between:
                between -= 1
            case _:
                return token.start()
    return tokens[-1].start()


def _is_of_between(tokens: list[re.Match[bytes]], n: int) -> bool:
    """Tell whether an AND belongs to a BETWEEN before it, at the same depth."""
    if tokens[n][0] != b"AND":
        return False
    depth = 0
    for token in reversed(tokens[:n]):
        match token[0]:
            case b")" | b"END":
                depth += 1
            case b"(" | b"CASE":
                if not depth:
                    return False
                depth -= 1
            case b"BETWEEN" if not depth:
                return True
            case b"WHERE" | b"AND" | b"OR" | b"ON" if not depth:
                return False
    return False
