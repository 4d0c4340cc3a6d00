"""Where two JSON texts differ, field by field."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec

LONGEST = 400  # characters of a value
MOST = 100  # differences
DEEPEST = 40  # objects and lists within each other; below, values are compared as a whole

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=Decimal)
_encoder = msgspec.json.Encoder(decimal_format="number")


class Change(StrEnum):
    """How a field differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Shown:
    """A text that can be shown: what cannot be seen in it is escaped, and it is cut if it is long.

    Attributes:
        text: the text.
        cut: how many characters were left out.
    """

    text: str
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """One field in which two contents differ.

    Attributes:
        path: where, such as ``items[2].price``; empty for the whole.
        change: how.
        before: the value in the first content; None if it lacks the field.
        after: the value in the second one; None if it lacks the field.
        may_differ: whether it is in a field in which a reissue may differ.
    """

    path: str
    change: Change
    before: Shown | None
    after: Shown | None
    may_differ: bool = False


def differences(
    before: str | None, after: str | None, volatile: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Return where the second JSON text differs from the first; at most `MOST` fields.

    Numbers are compared by their value, as in jsonb: 1 is 1.0, and is not true.

    Args:
        before: a JSON text, such as the data of a message; None for none.
        after: another one.
        volatile: the fields, as they are stored, in which a reissue may differ.
    """
    one, other = _decoded(before), _decoded(after)
    found = list(islice(_compared("", one, other, 0), MOST))
    roots = tuple(_member("", name) for name in volatile)
    return tuple(
        replace(difference, may_differ=re.split(r"[.\[]", difference.path)[0] in roots)
        for difference in found
    )


def visible(text: str, longest: int = LONGEST, keep: str = "") -> Shown:
    """Return a text with control and bidirectional characters escaped, and cut if it is long.

    Args:
        text: the text.
        longest: how many of its characters to keep.
        keep: characters that are kept as they are although they cannot be seen.
    """
    kept = text[:longest]
    shown = "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in kept
    )
    return Shown(shown, len(text) - len(kept))


def pretty(text: str, longest: int) -> Shown:
    """Return a JSON text on several lines, as `visible` shows it; what is no JSON as it is.

    Args:
        text: the JSON text, as the store gives it.
        longest: how many characters to keep.
    """
    try:
        text = msgspec.json.format(text, indent=2)
    except (msgspec.MsgspecError, RecursionError):
        return visible(text, longest)
    return visible(text, longest, keep="\n")


class _Absent:
    """Stands for a field that is not there."""


_ABSENT = _Absent()


def _decoded(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text


def _compared(path: str, before: Any, after: Any, depth: int) -> Iterator[Difference]:
    if depth < DEEPEST and isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            inner = _member(path, name)
            yield from _compared(
                inner, before.get(name, _ABSENT), after.get(name, _ABSENT), depth + 1
            )
    elif depth < DEEPEST and isinstance(before, list) and isinstance(after, list):
        for n in range(max(len(before), len(after))):
            one = before[n] if n < len(before) else _ABSENT
            other = after[n] if n < len(after) else _ABSENT
            yield from _compared(f"{path}[{n}]", one, other, depth + 1)
    elif before is _ABSENT:
        yield Difference(path, Change.ADDED, None, _value(after))
    elif after is _ABSENT:
        yield Difference(path, Change.REMOVED, _value(before), None)
    elif not _is_same(before, after):
        yield Difference(path, Change.CHANGED, _value(before), _value(after))


def _member(path: str, name: str) -> str:
    """Return the path of a field; a name that could be misread is quoted."""
    plain = name.isidentifier() and name.isprintable()
    shown = name if plain else _value(name).text
    if not plain:
        return f"{path}[{shown}]"
    return f"{path}.{shown}" if path else shown


def _is_same(before: Any, after: Any) -> bool:
    """Return whether two values are equal that are not both objects or both lists."""
    if isinstance(before, bool) or isinstance(after, bool):
        return before is after
    return bool(before == after)


def _value(value: Any) -> Shown:
    return visible(_encoded(value))


def _encoded(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    try:
        return _encoder.encode(value).decode()
    except (TypeError, RecursionError):
        return str(value)
