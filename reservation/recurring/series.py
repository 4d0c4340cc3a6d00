"""A series: a function that returns the command for each tick of a timetable."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from reservation.messages.message_instance import MessageInstance
from reservation.recurring.due import Missed
from reservation.recurring.timetable import Timetable

# Of the ids that are made of components, series and ticks.
_NAMESPACE = uuid.UUID("3f5a2f4e-5d0c-4c0e-9a57-0b4d6c1f7a21")


@dataclass(frozen=True, slots=True)
class Tick:
    """One time of a series, for which its function returns the command.

    Attributes:
        series: the name of the series.
        time: when it was due, in the series's time zone.
    """

    series: str
    time: datetime

    @property
    def key(self) -> str:
        """The name of the series and the time in UTC: ``night_audit-2026-03-29T01:00:00Z``.

        It is the same in every process, and another for each tick, so it is the idempotence key of
        a command that has none of its own.
        """
        return f"{self.series}-{self.time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


TickFunction = TypeVar("TickFunction", bound=Callable[[Tick], MessageInstance | None])


@dataclass(frozen=True, slots=True)
class Series:
    """The declaration of one series.

    Attributes:
        component: the name of the component that its commands are sent to.
        name: its own name.
        timetable: when its ticks are.
        missed: which of the ticks are sent that no process was there for.
        function: returns the command for a tick, or None.
    """

    component: str
    name: str
    timetable: Timetable
    missed: Missed
    function: Callable[[Tick], MessageInstance | None]

    @property
    def shape(self) -> tuple[str, str, str]:
        """What the store knows of it: expression, time zone and what is done with missed ticks."""
        return self.timetable.expression, self.timetable.zone, self.missed

    def tick(self, time: datetime) -> Tick:
        """Return the tick at a time."""
        return Tick(self.name, self.timetable.local(time))

    def message_id(self, tick: Tick) -> uuid.UUID:
        """Return the id of a tick's command, which is the same in every process."""
        return uuid.uuid5(_NAMESPACE, f"{self.component}\n{tick.key}")
