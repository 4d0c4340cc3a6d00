"""Time spans and points in time, as the options of all commands take them.

A time span is a number, decimals allowed, and a unit: 500ms, 0.5s, 5m, 36h or 90d.
"""

from datetime import UTC, datetime, timedelta

import click

from reservation.serialization.durations import (
    GRAMMAR,
    LONGEST,
    MICROSECOND,
    microseconds_of,
    written,
)


class DurationType(click.ParamType[timedelta]):
    """A time span, such as 500ms, 0.5s, 5m, 36h or 90d."""

    name = "duration"

    def __init__(
        self,
        *,
        at_least: timedelta = timedelta(0),
        at_most: timedelta = LONGEST,
        plain_seconds: bool = False,
    ) -> None:
        self._at_least = at_least
        self._at_most = at_most
        self._plain_seconds = plain_seconds

    def convert(
        self,
        value: str | timedelta,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> timedelta:
        """Return the time span that a text stands for."""
        if isinstance(value, timedelta):
            return value
        microseconds = microseconds_of(value, plain_seconds=self._plain_seconds)
        if microseconds is None:
            self.fail(f"{value!r} is not a time span; {GRAMMAR}", param, ctx)
        shortest, longest = self._at_least // MICROSECOND, self._at_most // MICROSECOND
        if not shortest <= microseconds <= longest:
            self.fail(
                f"{value!r} is out of range; write a time span from {written(self._at_least)} to "
                f"{written(self._at_most)}",
                param,
                ctx,
            )
        return timedelta(microseconds=int(microseconds))


_AGE = DurationType(at_least=timedelta(milliseconds=1))


class TimestampType(click.ParamType[datetime]):
    """A date or time in UTC, such as 2026-01-31, or how long ago, such as 90d or 36h."""

    name = "timestamp"

    def convert(
        self,
        value: str | datetime,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> datetime:
        """Return the point in time, in UTC."""
        if isinstance(value, datetime):
            return value
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            pass
        else:
            return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        if microseconds_of(value, plain_seconds=True) is not None:
            return datetime.now(UTC) - _AGE.convert(value, param, ctx)
        return self.fail(
            f"{value!r} is neither a date nor a time span; write 2026-01-31, or how long ago, such "
            f"as 90d or 36h",
            param,
            ctx,
        )


class SinceType(click.ParamType[int | datetime]):
    """A global position, such as 120000, or a point in time as `TimestampType` takes it."""

    name = "since"

    def convert(
        self,
        value: str | int | datetime,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int | datetime:
        """Return the global position or the point in time, in UTC."""
        if isinstance(value, (int, datetime)):
            return value
        if value.isascii() and value.isdigit():
            position = int(value)
            if not 1 <= position < 2**63:
                self.fail(f"{value} is not a global position; the first one is 1", param, ctx)
            return position
        return _TIMESTAMP.convert(value, param, ctx)


_TIMESTAMP = TimestampType()

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def in_two_units(seconds: float) -> str:
    """Return a time span in its two largest units, for people."""
    left = max(int(seconds), 0)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
