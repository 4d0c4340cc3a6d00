"""Times as numbers, which do not depend on the time zone of a session or a machine."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = 3_600_000_000


# What the source gives of a time outside of the years 1 to 9999, which Python does not have.
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)


def readable(time: str) -> Column:
    """Return a column of timestamps without those outside of the years 1 to 9999."""
    first, last = ((one - _EPOCH) // timedelta(microseconds=1) for one in (_FIRST, _LAST))
    return F.when(~F.unix_micros(time).isin(first, last), F.col(time))


def hours_since_epoch(time: str) -> Column:
    """Return the hour of a column of timestamps, in whole hours since 1970 in UTC."""
    return F.floor(F.unix_micros(time) / _HOUR)


def from_micros(microseconds: int) -> datetime:
    """Return the time that is so many microseconds after 1970, in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def from_hours(hours: int) -> datetime:
    """Return the time that is so many hours after 1970, in UTC."""
    return _EPOCH + timedelta(hours=hours)
