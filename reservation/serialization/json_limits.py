"""Values that PostgreSQL's jsonb does not take, and the field that holds them.

Errors name the field by its path in the JSON, ``$.orderLines[...].unitPrice``, never its value;
the keys of a mapping are values too. A message is searched only if its type or its encoded text
gives reason to, so that a good message costs almost nothing.
"""

import functools
import math
import re
import types
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import accumulate
from typing import Any

import msgspec

from reservation.serialization.adapters.adapter import PLAIN
from reservation.serialization.adapters.models import plain
from reservation.serialization.fields import hints_of, is_message, keys_of
from reservation.serialization.making import shaper
from reservation.serialization.struct_types import may_hold

# Long enough for a document, short enough for a batch of them to stay in memory.
DEFAULT_MAX_BYTES = 16 * 1024 * 1024

# Half of what Python's recursion limit lets a reader decode, so that a reader that is deep in calls
# of its own can still read it. PostgreSQL takes several thousand levels.
MAX_DEPTH = 500

# PostgreSQL's numeric, of which the numbers in jsonb are made.
MAX_DIGITS_BEFORE_POINT = 131072
MAX_DIGITS_AFTER_POINT = 16383

# The longest integer that msgspec reads, with a sign; and the largest number that it reads where no
# type says that it is a Decimal, because it becomes a float.
MAX_INTEGER_DIGITS = 4299
MAX_DIGITS_WITHOUT_TYPE = 308

# Shorter texts hold no number that is too long, unless it has an exponent.
_SHORT = MAX_INTEGER_DIGITS

_TOO_LARGE_INTEGER = 10**MAX_INTEGER_DIGITS
_MINUTE = timedelta(minutes=1)
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_NOT_A_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+"|[^\[\]{}"]++')
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}

_FINITE = "a finite number"
_WITHOUT_NUL = "text without NUL characters"
_UNICODE = "text that UTF-8 can encode, without half of a surrogate pair"
_SHALLOW = f"at most {MAX_DEPTH} levels of lists and objects in each other"

encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=plain)


def check_text(message: object, text: str, size: int, max_bytes: int) -> None:
    """Refuse the JSON text of a message if jsonb would not take it."""
    if size > max_bytes:
        raise _too_long(message, size, max_bytes)
    if size > _SHORT:
        check(message, _NUMBERS)
    if size > MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(text):
        check(message, ALL)
        raise too_deep()
    if "\\" in text and _NUL.search(text):
        check(message, ALL)
        raise _refusal(_WITHOUT_NUL, "")
    # Only a Decimal is written with a large E; but all of this may stand in a text as well.
    if ("E" in text and ("E+" in text or "E-" in text)) or "NaN" in text or "Infinity" in text:
        check(message, ALL)


@dataclass(frozen=True, eq=False)
class FieldCheck:
    """The checks for a message.

    Attributes:
        checks: by the types of values, the function that returns what is wrong with a value.
        key_checks: the same for the keys of mappings.
        harmless: fields of these types are skipped.
        without_type: what to look for in fields of type `Any`, if that is more.
    """

    checks: Mapping[type, Callable[[Any], str | None]]
    key_checks: Mapping[type, Callable[[Any], str | None]]
    harmless: frozenset[Any]
    without_type: "FieldCheck | None" = None


def check(message: object, look: FieldCheck) -> None:
    """Search a message and refuse the first thing that is wrong."""
    if found := problem(message, look):
        raise found


def problem(message: object, look: FieldCheck) -> msgspec.ValidationError | None:
    """Search a message and return the error for the first thing that is wrong."""
    try:
        found = _first(message, 0, look)
    except RecursionError:
        found = (_SHALLOW, "")
    return None if found is None else _refusal(*found)


def too_deep() -> msgspec.ValidationError:
    """Return the error for lists and objects that are nested too deeply."""
    return _refusal(_SHALLOW, "")


def _first(value: object, depth: int, look: FieldCheck) -> tuple[str, str] | None:
    """Return what is expected in place of the first wrong part of a value, and its path.

    The path is made on the way back, so that a message with nothing wrong needs none.
    """
    kind: Any = type(value)
    check_one = look.checks.get(kind)
    if check_one is not None:
        wrong = check_one(value)
        return None if wrong is None else (wrong, "")
    if kind in PLAIN:
        return None
    if depth >= MAX_DEPTH:
        return _SHALLOW, ""
    if is_message(value):
        for name, look_into in fields(kind, look):
            part = getattr(value, name)
            if part is not None and (found := _first(part, depth + 1, look_into)):
                return found[0], f".{keys_of(kind)[name]}{found[1]}"
    elif isinstance(value, Mapping):
        for key, part in value.items():
            check_key = look.key_checks.get(type(key))
            if check_key is not None and (wrong := check_key(key)):
                return f"a key that is {wrong}", ""
            if found := _first(part, depth + 1, look):
                return found[0], f"[...]{found[1]}"
    elif isinstance(value, Collection) and not isinstance(value, str | bytes | bytearray):
        for part in value:
            if found := _first(part, depth + 1, look):
                return found[0], f"[...]{found[1]}"
    else:  # an enum's member, or of a class derived from a plain one
        plain = getattr(value, "value", value)
        for base, check_base in look.checks.items():
            if isinstance(plain, base) and (wrong := check_base(plain)):
                return wrong, ""
    return None


@functools.cache
def fields(type_: Any, look: FieldCheck) -> list[tuple[str, FieldCheck]]:
    """Return the names of the fields to search, and what to look for in each."""
    return [
        (name, (may_hold(hint, _TYPES) and look.without_type) or look)
        for name, hint in hints_of(type_).items()
        if may_hold(hint, look.harmless)
    ]


def _refusal(expected: str, path: str) -> msgspec.ValidationError:
    if expected is _SHALLOW:
        path = re.sub(r"(\[\.\.\.\])+", "[...]", path)
    return msgspec.ValidationError(f"Expected {expected} - at `${path}`")


def _text(value: str) -> str | None:
    if "\0" in value:
        return _WITHOUT_NUL
    if value.isascii():
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return _UNICODE
    return None


def _float(value: float) -> str | None:
    return None if math.isfinite(value) else _FINITE


def _integer(value: int) -> str | None:
    if -_TOO_LARGE_INTEGER < value < _TOO_LARGE_INTEGER:
        return None
    return f"an integer of at most {MAX_INTEGER_DIGITS} digits"


def _finite(value: Decimal) -> str | None:
    return None if value.is_finite() else _FINITE


def _decimal(value: Decimal) -> str | None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        return _FINITE
    if exponent >= -MAX_DIGITS_AFTER_POINT and value.adjusted() < MAX_DIGITS_BEFORE_POINT:
        return None
    return (
        f"a number of at most {MAX_DIGITS_BEFORE_POINT} digits before the point and "
        f"{MAX_DIGITS_AFTER_POINT} after it"
    )


def _decimal_without_type(value: Decimal) -> str | None:
    if value.is_finite() and value.adjusted() >= MAX_DIGITS_WITHOUT_TYPE:
        return (
            f"a number of at most {MAX_DIGITS_WITHOUT_TYPE} digits before the point, where no type "
            f"says that it is a Decimal"
        )
    return _decimal(value)


def _decimal_key(_: Decimal) -> str:
    return "a string or an integer, not a Decimal"  # which msgspec writes without quotes


def _time(value: datetime | time) -> str | None:
    if value.tzinfo is None or value.tzinfo is UTC:
        return None
    if not (value.utcoffset() or timedelta()) % _MINUTE:
        return None
    return "a time zone whose offset is in whole minutes"  # JSON's form has no seconds for it


CHECKS: dict[type, Callable[[Any], str | None]] = {
    str: _text,
    float: _float,
    int: _integer,
    Decimal: _decimal,
    datetime: _time,
    time: _time,
}
_CHECKS_WITHOUT_TYPE = {**CHECKS, Decimal: _decimal_without_type}
_KEY_CHECKS = {**CHECKS, Decimal: _decimal_key}

_WITHOUT_NUMBERS = frozenset({str, bool, bytes, types.NoneType, uuid.UUID, date, timedelta})
_TYPES = _WITHOUT_NUMBERS | {int, float, Decimal, datetime, time}

_ANYTHING = FieldCheck(_CHECKS_WITHOUT_TYPE, _KEY_CHECKS, frozenset())
# All that is wrong.
ALL = FieldCheck(CHECKS, _KEY_CHECKS, frozenset(), _ANYTHING)
# What the text does not show: floats that are not finite become nulls, and seconds are lost.
HIDDEN = FieldCheck(CHECKS, _KEY_CHECKS, _WITHOUT_NUMBERS | {int, Decimal}, _ANYTHING)
# Numbers that may be too long.
_NUMBERS = FieldCheck(CHECKS, _KEY_CHECKS, _WITHOUT_NUMBERS | {float, datetime, time}, _ANYTHING)
# What can be wrong in a decoded message: a JSON text read as a Decimal that is not a number.
DECODED = FieldCheck(
    {Decimal: _finite},
    {},
    _WITHOUT_NUMBERS | {int, float, datetime, time, Any, object, dict, list, tuple, set, frozenset},
)


def _is_deep(text: str) -> bool:
    brackets = _NOT_A_BRACKET.sub("", text)
    return max(accumulate(map(_STEP.__getitem__, brackets))) > MAX_DEPTH


def _too_long(message: object, size: int, max_bytes: int) -> msgspec.ValidationError:
    """Return the error for a message that is too long, with the field that takes most of it."""
    class_: Any = type(message)
    whole = shaper(class_)(message)
    sizes = {name: len(encoder.encode(getattr(whole, name))) for name in keys_of(class_)}
    largest = max(sizes, key=sizes.__getitem__)
    return _refusal(
        f"at most {max_bytes} bytes of JSON, got {size}; the largest field has {sizes[largest]}",
        f".{keys_of(class_)[largest]}",
    )
