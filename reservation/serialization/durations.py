"""Time spans as people write them: a number, decimals allowed, and a unit.

Such as 500ms, 0.5s, 5m, 36h or 90d. The command line and declarations take them alike.
"""

import re
from datetime import timedelta
from decimal import Decimal

MICROSECOND = timedelta(microseconds=1)
# No time span is longer.
LONGEST = timedelta(days=100_000)
GRAMMAR = "write a number and ms, s, m, h or d, such as 0.5s, 5m, 36h or 90d"

_MICROSECONDS = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60 * 1_000_000,
    "h": 3_600 * 1_000_000,
    "d": 86_400 * 1_000_000,
}
_FORM = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})(ms|s|m|h|d)?")


def microseconds_of(text: str, *, plain_seconds: bool = False) -> Decimal | None:
    """Return the microseconds that a text stands for; None if it is not a time span."""
    found = _FORM.fullmatch(text.strip())
    if found is None or not (found[2] or plain_seconds):
        return None
    return Decimal(found[1]) * _MICROSECONDS[found[2] or "s"]


def time_span(value: object) -> timedelta:
    """Return the time span that a value stands for, from 0 to `LONGEST`."""
    if isinstance(value, timedelta):
        microseconds, shown = Decimal(value // MICROSECOND), written(value)
    else:
        found = microseconds_of(value.strip().removeprefix("-")) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{value!r} is not a time span; {GRAMMAR}")
        microseconds, shown = -found if str(value).strip()[0] == "-" else found, repr(value)
    if microseconds < 0:
        raise ValueError(f"{shown} is negative; {GRAMMAR}")
    if microseconds > LONGEST // MICROSECOND:
        raise ValueError(f"{shown} is longer than {written(LONGEST)}; {GRAMMAR}")
    return timedelta(microseconds=int(microseconds))


def written(span: timedelta) -> str:
    """Return a time span as `time_span` takes it, in the largest unit that divides it."""
    microseconds = span // MICROSECOND
    for unit, size in reversed(_MICROSECONDS.items()):
        if microseconds and microseconds % size == 0:
            return f"{microseconds // size}{unit}"
    return f"{microseconds / _MICROSECONDS['s']:g}s"
