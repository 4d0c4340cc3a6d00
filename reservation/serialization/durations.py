"""Time spans as declarations and callers write them: a `timedelta`, or a text such as ``"30m"``.

A text is a number, decimals allowed, and a unit: 500ms, 0.5s, 5m, 36h or 90d. That is what the
options of all commands take too.
"""

import re
from datetime import timedelta
from decimal import Decimal

MICROSECONDS = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60 * 1_000_000,
    "h": 3_600 * 1_000_000,
    "d": 86_400 * 1_000_000,
}
FORM = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?|\.[0-9]{1,12})(ms|s|m|h|d)?")
GRAMMAR = "write a number and ms, s, m, h or d, such as 0.5s, 5m, 36h or 90d"

LONGEST = timedelta(days=36_500)


def time_span(value: object) -> timedelta:
    """Return the time span that a value stands for, from 0 to `LONGEST`.

    Args:
        value: a `timedelta`, or a text such as ``"30m"``.

    Raises:
        ValueError: it is neither, is negative, or is longer; the message says which, and is a part
            of a sentence.
    """
    if isinstance(value, str):
        if value.strip().startswith("-"):
            raise ValueError(f"{value!r} is negative")
        found = FORM.fullmatch(value.strip())
        if found is None or not found[2]:
            raise ValueError(f"{value!r} is not a time span; {GRAMMAR}")
        microseconds = Decimal(found[1]) * MICROSECONDS[found[2]]
        if microseconds > LONGEST // timedelta(microseconds=1):
            raise ValueError(f"{value!r} is longer than {LONGEST.days} days")
        return timedelta(microseconds=int(microseconds))
    if not isinstance(value, timedelta):
        raise ValueError(  # noqa: TRY004  as for a text
            f"a {type(value).__name__} is no time span; give a timedelta, or a text such as '30m'"
        )
    if value < timedelta(0):
        raise ValueError(f"{value / timedelta(seconds=1):g} seconds is negative")
    if value > LONGEST:
        raise ValueError(f"{value.days} days is longer than {LONGEST.days} days")
    return value
