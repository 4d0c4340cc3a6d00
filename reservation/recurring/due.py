"""The tick of a series that is to be sent next."""

from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from reservation.recurring.timetable import Timetable

Missed = Literal["latest", "all", "none"]
MISSED: tuple[Missed, ...] = ("latest", "all", "none")

# A tick is missed that no process has seen for so long.
LATE = timedelta(minutes=1)

# The last tick is looked for from here on first, and not from what may be a year ago.
_RECENT = timedelta(days=2)


class DueTick(NamedTuple):
    """What is due of a series.

    Attributes:
        time: the tick up to which it is; None if nothing is due.
        is_sent: whether its command is sent.
        missed: the first tick that is left out; None without one.
        next: the first tick that is not due, or is due after this one; None without one.
    """

    time: datetime | None
    is_sent: bool
    missed: datetime | None
    next: datetime | None


def due_tick(
    timetable: Timetable,
    missed: Missed,
    reached: datetime,
    now: datetime,
    attempted: datetime | None = None,
    seen: datetime | None = None,
) -> DueTick:
    """Return what is due now of a series, whose ticks are done with up to what it has reached.

    A tick that was attempted is not missed any more. Nor is one after the time up to which the
    process has seen to the ticks: it runs since then, and was only busy.
    """
    first = next(timetable.after(reached), None)
    if first is None or first > now:
        return DueTick(None, False, None, first)
    if missed == "all":
        return DueTick(first, True, None, first)
    unseen = seen and next(timetable.after(max(reached, seen)), None)
    if unseen is not None and unseen <= now:
        return DueTick(unseen, True, first if first != unseen else None, unseen)
    recent = max(first, now - _RECENT)
    last, coming = _around(timetable, recent, now)
    if last is None:
        last, coming = _around(timetable, first, now)
    last = last or first  # which is the only one
    is_sent = missed == "latest" or last == attempted or now - last <= LATE
    left_out = first if first != last or not is_sent else None
    return DueTick(last, is_sent, left_out, coming)


def _around(
    timetable: Timetable, since: datetime, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return the last tick after a time that is due, and the first that is not."""
    last = None
    for time in timetable.after(since):
        if time > now:
            return last, time
        last = time
    return last, None
