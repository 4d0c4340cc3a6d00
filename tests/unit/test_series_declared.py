"""Recurring commands as they are declared, and the ticks that their functions get."""

import uuid
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from reservation import Component, Tick
from reservation.declaration.table import declarations
from reservation.errors import DeclarationError
from tests.apps.nightly import CloseDay, DayClosed, close_day, hotels


def declare(function=close_day, expression="0 2 * * *", **options):
    """Declare a series of a new component, and return the component."""
    hotel = hotels(recurs=False)
    hotel.every(expression, **options)(function)
    return hotel


async def later(tick):
    return close_day(tick)


def several(tick):
    yield close_day(tick)


def nothing():
    return None


def wrong(tick: int) -> CloseDay:
    return CloseDay("berlin", str(tick))


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        ("no parentheses; write @hotel.every", {"expression": close_day}),
        ("'0 0 31 2 \\*' never fires", {"expression": "0 0 31 2 *"}),
        ("there are no seconds", {"expression": "0 0 2 * * *"}),
        ("'Mars' is no known time zone", {"zone": "Mars"}),
        ("missed='first' .* not one of 'latest', 'all', 'none'", {"missed": "first"}),
        ("missed=None .* not one of", {"missed": None}),
        ("cannot be the name of a series", {"name": "a\nb"}),
        ("cannot be the name of a series", {"name": " night"}),
        ("cannot be the name of a series", {"name": "x" * 300}),
        ("cannot be the name of a series", {"name": 7}),
        ("has no name; give the series one with name=", {"function": lambda tick: None}),
        ("has no name; give the series one with name=", {"name": ""}),
        ("is async; declare it with def", {"function": later}),
        ("is a generator", {"function": several}),
        ("cannot be called with tick", {"function": nothing}),
        ("annotated to take tick: int, and the tick is Tick", {"function": wrong}),
        ("is not a function", {"function": 5, "name": "night"}),
    ],
)
def test_a_wrong_series_is_refused_in_one_line(problem, options):
    """What is wrong is named when it is declared, with the way out."""
    with pytest.raises(DeclarationError, match=problem) as refused:
        declare(**options)
    assert "\n" not in str(refused.value)


def test_two_series_have_two_names():
    """A function may be declared twice, under another name."""
    hotel = declare()
    with pytest.raises(DeclarationError, match=r"two series 'close_day'.* name="):
        hotel.every("0 3 * * *")(close_day)
    hotel.every("0 3 * * *", name="later")(close_day)
    assert [*declarations(hotel).series] == ["close_day", "later"]


@pytest.mark.parametrize(
    ("returned", "is_command"),
    [
        (CloseDay, True),
        (CloseDay | None, True),
        (object, True),
        (DayClosed, False),
        (str, False),
        (None, False),
        (list[CloseDay], False),
    ],
)
def test_what_is_annotated_to_be_no_command_is_refused(returned, is_command):
    """A function returns a command of the component, which may be declared after it."""

    def function(tick):
        return None

    function.__annotations__["return"] = returned
    hotel = Component("hotel", id="hotel_id")
    hotel.every("0 2 * * *")(function)
    hotel.handle(CloseDay, key="close_id")(lambda command, entity, context: None)
    if is_command:
        hotel.check()
        return
    with pytest.raises(DeclarationError, match=r"series 'function' is annotated to return"):
        hotel.check()


def test_a_tick_has_one_key_and_one_id_in_every_process():
    """They are made of the names and the time in UTC, and differ from those of all others."""
    zone = ZoneInfo("Europe/Berlin")
    first, second = (datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=zone) for fold in (0, 1))
    ticks = [Tick("night", first), Tick("night", second), Tick("day", first)]
    assert ticks[0].key == Tick("night", first.astimezone(UTC)).key == "night-2026-10-25T00:30:00Z"
    (series,) = declarations(declare(name="night")).series.values()
    assert series.tick(first.astimezone(UTC)).time.isoformat() == first.astimezone(UTC).isoformat()
    ids = [series.message_id(tick) for tick in ticks]
    assert len({*ids, *(tick.key for tick in ticks)}) == 6
    assert ids[0] == uuid.UUID("27596c38-b16b-56a2-a5e7-dc8e7e22dcf4")


def test_a_function_stays_callable():
    """It is tested by calling it with a tick."""
    hotel = hotels(recurs=False)
    declared = hotel.every("0 2 * * *")(close_day)
    assert declared is close_day
    tick = Tick("night", datetime(2026, 1, 1, tzinfo=UTC))
    assert declared(tick) == CloseDay("berlin", "night-2026-01-01T00:00:00Z")
