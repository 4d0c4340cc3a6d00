"""Sending the recurring commands of a component, which its command consumer does besides its work.

Every process does so, between two batches and where it waits. `sql/reservation/series.sql` explains
why each tick is sent once. A process knows from its timetables when to look next, so it asks the
server at ticks, and twice a minute.
"""

import time
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from psycopg import Connection

from consumers.calls.handler_call import unforked
from consumers.runtime.observability.logs import Log
from reservation.component import Component
from reservation.declaration.table import declarations
from reservation.effects.faults import is_interrupt
from reservation.errors import (
    LockTimeoutError,
    MessageIdConflictError,
    RefusedError,
    ReservationError,
    SerializationError,
)
from reservation.messages.metadata import Metadata
from reservation.postgres.arrays import TextArray, fetch_all
from reservation.postgres.queries import load_queries
from reservation.raised import describe
from reservation.recurring.due import DueTick, due_tick
from reservation.recurring.series import Series
from reservation.store.writing.write import Row, Write, row_of

# Seconds between two looks while no tick is due: another process may declare otherwise, and the
# server's clock may be changed.
LOOK = 30.0

# Seconds until the next look where another process has the tick, or an attempt has failed.
PAUSE = 1.0

# Seconds that a newer process has to connect again before an older one decides. That looks as
# often whether the newer one is there.
GRACE = 5.0

# How many ticks of a series are sent before messages are handled again.
MOST_TICKS = 100

_QUERIES = load_queries("consumers.loop", "recurring.sql")


class _Place(NamedTuple):
    """Where a series is; the times are in UTC."""

    now: datetime
    reached: datetime
    attempted: datetime | None
    attempt_at: datetime | None


class _Command(NamedTuple):
    """What is to be sent for a tick: a command, or None."""

    reached: datetime
    tick: datetime
    row: Row | None
    attempts: int = 0


class RecurringCommands:
    """The series of a component, as far as one consumer sends their commands."""

    def __init__(
        self, component: Component[Any], category: str, log: Log, heartbeat: Callable[[], None]
    ) -> None:
        declared = declarations(component)
        self._component = component
        self._log = log
        self._heartbeat = heartbeat
        self._series = declared.series if category == declared.command_category else {}
        self._next = time.monotonic() if self._series else float("inf")
        self._unsent: dict[str, _Command] = {}
        self._sent = False
        # Up to when ticks were seen to on this connection, by the server's clock.
        self._seen: dict[str, datetime] = {}
        self._is_replaced = False  # whether a newer process declares otherwise

    @property
    def is_due(self) -> bool:
        """Whether it is time for `run`."""
        return time.monotonic() >= self._next

    def limit(self, seconds: float) -> float:
        """Return so many seconds, or less if it is time for `run` earlier."""
        return max(0.0, min(seconds, self._next - time.monotonic()))

    def connected(self) -> None:
        """Begin on another connection: ticks that were due without one are missed."""
        self._seen.clear()

    # Any: connections differ in what their rows are.
    def run(self, connection: Connection[Any]) -> bool:
        """Send the commands of ticks that are due; return whether there were any."""
        self._next, self._sent = time.monotonic() + PAUSE, False
        try:
            if self._is_replaced and not self._is_still_replaced(connection):
                self._is_replaced, self._next = False, time.monotonic() + GRACE
                return False
            places = self._places(connection)
            read_at = time.monotonic()  # functions may take long
            self._is_replaced = len(places) < len(self._series)
            seconds = [GRACE if self._is_replaced else LOOK]
            for name, place in places:
                seconds.append(self._advance(connection, self._series[name], place))
        except (LockTimeoutError, SerializationError):
            return self._sent
        self._next = read_at + min(seconds)
        return self._sent

    def _is_still_replaced(self, connection: Connection[Any]) -> bool:
        series = {name: one.shape for name, one in self._series.items()}
        asked = {"component": self._component.name, "series": msgspec.json.encode(series).decode()}
        return bool(fetch_all(connection, _QUERIES["is_replaced"], asked)[0][0])

    def _places(self, connection: Connection[Any]) -> list[tuple[str, _Place]]:
        """Declare the series, and return where those are that this process sends."""
        names, shapes = list(self._series), [one.shape for one in self._series.values()]
        expressions, zones, missed = zip(*shapes, strict=True)
        rows = fetch_all(
            connection,
            _QUERIES["declare_series"],
            {
                "component": self._component.name,
                "names": TextArray(names),
                "expressions": TextArray(expressions),
                "zones": TextArray(zones),
                "missed": TextArray(missed),
            },
        )
        return [
            (name, _Place(*(at and at.astimezone(UTC) for at in times))) for name, *times in rows
        ]

    def _advance(self, connection: Connection[Any], series: Series, place: _Place) -> float:
        """Send what is due of one series; return the seconds until the next look at it."""
        for _ in range(MOST_TICKS):
            due = due_tick(
                series.timetable,
                series.missed,
                place.reached,
                place.now,
                place.attempted,
                self._seen.get(series.name),
            )
            tick = due.time
            if tick is None:
                self._seen[series.name] = place.now
                return LOOK if due.next is None else (due.next - place.now).total_seconds()
            if tick == place.attempted and place.attempt_at and place.attempt_at > place.now:
                self._seen[series.name] = tick
                return (place.attempt_at - place.now).total_seconds()
            is_past = self._settle(connection, series, place, tick, due)
            self._seen[series.name] = tick
            if not is_past:
                return PAUSE
            place = _Place(place.now, tick, None, None)
        return 0.0

    def _settle(
        self,
        connection: Connection[Any],
        series: Series,
        place: _Place,
        tick: datetime,
        due: DueTick,
    ) -> bool:
        """Send one tick, or pass it; return whether the series is past it by this."""
        command = self._unsent.pop(series.name, None)
        if command is not None and (command.reached, command.tick) != (place.reached, tick):
            command = None
        if not due.is_sent:
            command = _Command(place.reached, tick, None)
        elif command is None:
            attempts = self._call(connection, "claim_tick", series, place.reached, tick)
            if attempts is None:
                return False
            former = tick if attempts == 0 else place.attempted
            if former is not None and (attempts == 0 or former < tick):
                self._log.error("tick_given_up", series=series.name, tick=former.isoformat())
            if attempts == 0:
                return True
            try:
                row = self._command(series, tick)
            except _TickFailed as error:
                failed = _Command(place.reached, tick, None, attempts)
                self._fail(connection, series, failed, str(error))
                return False
            command = _Command(place.reached, tick, row, attempts)
        return self._send(connection, series, command, due)

    def _send(
        self, connection: Connection[Any], series: Series, command: _Command, due: DueTick
    ) -> bool:
        """Send a command, and move the series on; return whether no other process has done so."""
        row = command.row
        fields = (None,) * 5 if row is None else row[:5]
        names = ("id", "stream_name", "type", "data", "metadata")
        values = dict(zip(names, fields, strict=True)) | {"is_tick": due.is_sent}
        if due.is_sent:  # what the environment keeps from being sent now is sent when it is there
            self._unsent[series.name] = command
        try:
            is_first = self._call(
                connection, "send_tick", series, command.reached, command.tick, **values
            )
        except (MessageIdConflictError, RefusedError) as error:
            del self._unsent[series.name]
            self._fail(connection, series, command, str(error))
            return False
        self._unsent.pop(series.name, None)
        if is_first and due.missed is not None:
            self._log.warning(
                "ticks_missed",
                series=series.name,
                first=due.missed.isoformat(),
                until=command.tick.isoformat(),
            )
        if is_first and due.is_sent:
            self._sent = True
            type_ = None if row is None else row.type
            tick = command.tick.isoformat()
            self._log.info("tick_sent", series=series.name, tick=tick, type=type_)
        return bool(is_first)

    def _command(self, series: Series, time: datetime) -> Row | None:
        """Return the command of a tick, encoded; None if there is none."""
        tick = series.tick(time)
        self._heartbeat()
        try:
            with unforked():
                command = copy_context().run(series.function, tick)
        except BaseException as error:  # a function can raise anything
            if is_interrupt(error):
                raise
            raise _TickFailed(f"the function raised {describe(error)}") from error
        if command is None:
            return None
        local = {"series": series.name, "tick": tick.time.isoformat()}
        try:
            stream_name = self._component.command_stream(command)
            metadata = Metadata(local_properties=local)
            return row_of(Write(command, stream_name, series.message_id(tick), metadata))
        except ReservationError as error:
            raise _TickFailed(str(error)) from error

    def _fail(
        self, connection: Connection[Any], series: Series, command: _Command, error: str
    ) -> None:
        self._log.warning(
            "tick_failed",
            series=series.name,
            tick=command.tick.isoformat(),
            attempts=command.attempts,
            error=error,
        )
        self._call(connection, "fail_tick", series, command.reached, command.tick, error=error)

    def _call(
        self,
        connection: Connection[Any],
        query: str,
        series: Series,
        reached: datetime,
        tick: datetime,
        **values: object,
    ) -> Any:
        """Return what a function of the schema returns for a tick of a series."""
        named = {"component": self._component.name, "name": series.name}
        parameters = named | {"reached": reached, "tick": tick} | values
        return fetch_all(connection, _QUERIES[query], parameters)[0][0]


class _TickFailed(ReservationError):
    """A function of a series failed, or returned what cannot be sent."""
