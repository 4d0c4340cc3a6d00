"""When a process tries again to write scheduled messages."""

import time

from psycopg.errors import SerializationFailure

from consumers.loop.schedule import Schedule
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import Telemetry


class Busy:
    """A connection on which somebody else is always faster."""

    def __getattr__(self, name):
        raise SerializationFailure


def test_a_process_leaves_a_schedule_alone_that_it_cannot_write(monkeypatch):
    """The next attempts come later and later, up to a second."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    schedule = Schedule(Log("order", "order:command"), Telemetry())
    schedule.next_in(-1)
    pauses = []
    for _ in range(7):
        assert schedule.is_due
        assert not schedule.write(Busy())
        assert not schedule.is_due
        pauses.append(round(schedule.limit(60), 3))
        now[0] += pauses[-1]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
