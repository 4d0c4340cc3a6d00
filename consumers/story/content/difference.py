"""Where two JSON texts differ, field by field, and how they are shown."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
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
_sorting_encoder = msgspec.json.Encoder(decimal_format="number", order="sorted")


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
    before: str | None,
    after: str | None,
    volatile: Collection[str] = (),
    *,
    exact: bool = False,
    longest: int = LONGEST,
) -> tuple[Difference, ...]:
    """Return where the second JSON text differs from the first; at most `MOST` fields.

    Numbers are compared by their value, as in jsonb: 1 is 1.0, and is not true.

    Args:
        before: a JSON text, such as the data of a message; None for none.
        after: another one.
        volatile: the fields, as they are stored, in which a reissue may differ.
        exact: whether 1 and 1.0 differ too.
        longest: how many characters of a value to keep.
    """
    is_same = _is_same_text if exact else _is_same
    roots = tuple(_member("", name) for name in volatile)
    return tuple(
        Difference(
            path,
            _change(one, other),
            None if one is _ABSENT else _value(one, longest),
            None if other is _ABSENT else _value(other, longest),
            may_differ=re.split(r"[.\[]", path)[0] in roots,
        )
        for path, one, other in islice(
            (
                found
                for found in _compared("", _decoded(before), _decoded(after), 0)
                if not is_same(*found[1:])
            ),
            MOST,
        )
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


def formatted(text: str) -> str:
    """Return a JSON text with a line for each field; what is no JSON as it is.

    Args:
        text: the JSON text, as the store gives it.
    """
    try:
        return msgspec.json.format(text, indent=2)
    except (msgspec.MsgspecError, RecursionError):
        return text


def pretty(text: str, longest: int) -> Shown:
    """Return a JSON text on several lines, as `visible` shows it; what is no JSON as it is.

    Args:
        text: the JSON text, as the store gives it.
        longest: how many characters to keep.
    """
    return visible(formatted(text), longest, keep="\n")


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


# Any: what JSON holds, or `_ABSENT`.
def _compared(path: str, before: Any, after: Any, depth: int) -> Iterator[tuple[str, Any, Any]]:
    """Give the pairs of values that have to be compared, each with its path."""
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
    else:
        yield path, before, after


def _change(before: Any, after: Any) -> Change:
    if before is _ABSENT:
        return Change.ADDED
    return Change.REMOVED if after is _ABSENT else Change.CHANGED


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


def _is_same_text(before: Any, after: Any) -> bool:
    """Return whether two values are equal to the last digit."""
    if before is _ABSENT or after is _ABSENT:
        return False
    return _encoded(before, _sorting_encoder) == _encoded(after, _sorting_encoder)


def _value(value: Any, longest: int = LONGEST) -> Shown:
    return visible(_encoded(value), longest)


def _encoded(value: Any, encoder: msgspec.json.Encoder = _encoder) -> str:
    if isinstance(value, Decimal):
        return str(value)
    try:
        return encoder.encode(value).decode()
    except (TypeError, RecursionError):
        return str(value)
