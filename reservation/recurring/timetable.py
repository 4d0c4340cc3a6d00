"""The times of a cron expression in a time zone.

cronsim parses the expression and counts by the clock on the wall, which knows no zone. What time
that is in UTC is decided here, where the clock is changed: an expression that names hours has each
of its times once a day. One that is skipped is where the clock goes on, one that is repeated is the
first of the two. An expression of all hours names none, and has every time that the clock
shows.
"""

import contextlib
import heapq
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

# A change of the clock by less leaves the times of an expression without hours in their order.
_LONGEST_CHANGE = timedelta(hours=3)
_SECOND = timedelta(seconds=1)
_ANY = datetime(2000, 1, 1)  # noqa: DTZ001  a time on the wall


class Timetable:
    """The times of one expression.

    Attributes:
        expression: its five fields, with one space between two.
        zone: the name of the time zone.
    """

    def __init__(self, expression: str, zone: str) -> None:
        """Parse both, and raise ValueError if one is not one, or there is no such time."""
        if not isinstance(expression, str):
            raise ValueError(  # noqa: TRY004  as for a text that is none
                f"{_shown(expression)} is no cron expression; give a text such as '0 2 * * *'"
            )
        shown, fields = _shown(expression), expression.split()
        if len(fields) == 6:
            raise ValueError(
                f"{shown} has six fields, and there are no seconds; give minute, hour, day, month "
                f"and weekday"
            )
        self.expression = " ".join(fields)
        self.zone = zone
        self._zone = _zone(zone)
        try:
            self._names_hours = len(_parsed(fields).hours) < 24
        except ValueError as error:
            problem = f"is no cron expression: {error}; give minute, hour, day, month and weekday"
            with contextlib.suppress(ValueError):
                _parsed([*fields[:3], "*", *fields[4:]])
                problem = "never fires: no such month has that day; give another day or month"
            raise ValueError(f"{shown} {problem}") from None
        if next(self.after(datetime.now(UTC)), None) is None:
            raise ValueError(f"{shown} never fires: there is no such day; give another")

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times after a moment, in UTC and in their order."""
        moment = moment.astimezone(UTC)
        ahead = timedelta(0) if self._names_hours else _LONGEST_CHANGE
        start = (moment - ahead).astimezone(self._zone).replace(tzinfo=None)
        found: list[datetime] = []
        last = moment
        for wall in CronSim(self.expression, start):
            for time in self._moments(wall):
                heapq.heappush(found, time)
            while found and found[0] + ahead <= self._first(wall):
                time = heapq.heappop(found)
                if time > last:
                    last = time
                    yield time

    def local(self, time: datetime) -> datetime:
        """Return a time in the time zone."""
        return time.astimezone(self._zone)

    def _moments(self, wall: datetime) -> Iterator[datetime]:
        """Yield the moments of a time on the wall, in UTC."""
        first, second = self._first(wall), self._moment(wall, fold=1)
        if first.astimezone(self._zone).replace(tzinfo=None) != wall:
            if self._names_hours:
                yield self._change(second, first)
        else:
            yield first
            if second != first and not self._names_hours:
                yield second

    def _first(self, wall: datetime) -> datetime:
        return self._moment(wall, fold=0)

    def _moment(self, wall: datetime, fold: int) -> datetime:
        return wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)

    def _change(self, before: datetime, after: datetime) -> datetime:
        """Return the moment between two at which the clock was changed."""
        offset = after.astimezone(self._zone).utcoffset()
        while after - before > _SECOND:
            middle = before + (after - before) // _SECOND // 2 * _SECOND
            if middle.astimezone(self._zone).utcoffset() == offset:
                after = middle
            else:
                before = middle
        return after


def _parsed(fields: list[str]) -> CronSim:
    """Return the expression of five fields, unless it is none, or no month has its day."""
    try:
        return CronSim(" ".join(fields), _ANY)
    except CronSimError as error:
        raise ValueError(str(error).lower()) from None
    except ValueError:  # Python reads numbers of up to 4,300 digits
        raise ValueError("a number is too large") from None


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, TypeError, ValueError):  # not found, or a folder of zones
        raise ValueError(
            f"{_shown(name)} is no known time zone; name one such as 'Europe/Berlin', and install "
            f"the package tzdata where the system has no zones"
        ) from None
