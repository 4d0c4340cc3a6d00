"""Where two contents of a message differ, field by field."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

# Differences that are shown; a correction of a slip has one or two.
MOST = 200

# Characters of a value that are shown.
_LONGEST = 2_000


@dataclass(frozen=True, slots=True)
class Change:
    """A field in which two contents differ.

    Attributes:
        path: where it is, such as ``lines[2].amount``.
        before: its value as JSON; None if it was not there.
        after: the same of the other content.
    """

    path: str
    before: str | None
    after: str | None


class _Number(str):
    """A number, with all the digits that are stored."""


def pretty(text: str | None) -> str | None:
    """Return JSON with a line for each field, numbers and texts as they are."""
    return None if text is None else msgspec.json.format(text.encode(), indent=2).decode()


def changes(before: str | None, after: str) -> list[Change] | None:
    """Return the fields in which two JSON texts differ, `MOST` and one of them at most.

    Args:
        before: a JSON text; None for none.
        after: another one.

    Returns:
        The differences, in the order of the fields; None if one text is nested too deeply.
    """
    try:
        of_both = [dict(_leaves(_parsed(text or "{}"))) for text in (before, after)]
    except RecursionError:
        return None
    was, becomes = of_both
    found: list[Change] = []
    for path in {**was, **becomes}:
        if was.get(path) == becomes.get(path):
            continue
        found.append(Change(path, _cut(was.get(path)), _cut(becomes.get(path))))
        if len(found) > MOST:
            break
    return found


def _parsed(text: str) -> object:
    parsed: object = json.loads(
        text, parse_int=_Number, parse_float=_Number, parse_constant=_Number
    )
    return parsed


def _leaves(value: object) -> Iterator[tuple[str, str]]:
    """Give all values that hold no others, each with its path and as JSON."""
    left: list[tuple[str, object]] = [("", value)]
    while left:
        path, one = left.pop()
        inner: list[tuple[str, object]] = []
        if isinstance(one, Mapping):
            inner = [(f"{path}.{_name(key)}" if path else _name(key), v) for key, v in one.items()]
        elif isinstance(one, list):
            inner = [(f"{path}[{number}]", v) for number, v in enumerate(one)]
        if inner:
            left.extend(reversed(inner))
        elif path or not isinstance(one, Mapping | list):
            yield path, one if isinstance(one, _Number) else json.dumps(one, ensure_ascii=False)


def _name(key: str) -> str:
    """Return the name of a field, quoted where it could be taken for a path."""
    return key if key.isidentifier() else json.dumps(key, ensure_ascii=False)


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
