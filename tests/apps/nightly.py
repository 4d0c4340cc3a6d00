"""A hotel whose days are closed by a recurring command."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reservation import Component, Context, Tick

SENT = "hotel:command"
# A day with one tick, which is in the past on every other day.
YEARLY = "0 0 1 1 *"


@dataclass(frozen=True)
class CloseDay:
    hotel_id: str
    close_id: str


@dataclass(frozen=True)
class DayClosed:
    hotel_id: str
    close_id: str


@dataclass
class Hotel:
    closed: int = 0


def close_day(tick: Tick) -> CloseDay | None:
    """Return the command for a tick."""
    return CloseDay("berlin", tick.key)


def hotels(
    expression: str = YEARLY,
    function: Callable[[Tick], Any] = close_day,
    *,
    recurs: bool = True,
    **options: Any,
) -> Component[Hotel]:
    """Return the component."""
    hotel = Component("hotel", entity=Hotel, id="hotel_id")

    @hotel.handle(CloseDay, key="close_id")
    def close(command: CloseDay, entity: Hotel, context: Context) -> DayClosed:
        return context.follow(command, DayClosed)

    @hotel.project(DayClosed)
    def closed(entity: Hotel, event: DayClosed) -> None:
        entity.closed += 1

    if recurs:
        hotel.every(expression, **{"name": "night", **options})(function)
    return hotel


def close_or_die(tick: Tick) -> CloseDay | None:
    """Return the command for a tick, but end the process at the first calls."""
    calls = Path(os.environ["NIGHTLY_CALLS"])
    with calls.open("a") as file:
        file.write("called\n")
    if len(calls.read_text().splitlines()) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return close_day(tick)


deadly = hotels(function=close_or_die)
