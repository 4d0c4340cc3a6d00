"""Processes that are killed while they make rows: the rows are those of the events."""

import random

import psycopg
import pytest

import consumers
from reservation import MessageStore
from tests.apps.bank import address
from tests.apps.occupancy import (
    BOOKINGS,
    FIRST,
    ROOT,
    SECOND,
    Booked,
    Cancelled,
    by_sets,
    nights,
    one_by_one,
)
from tests.support.consuming import until
from tests.support.read_models import switch, verify
from tests.support.started import Started

# A host gives up on processes that die more often with nothing in flight.
KILLS = 4


@pytest.mark.parametrize(("app", "make"), [(FIRST, one_by_one), (SECOND, by_sets)])
def test_the_rows_are_right_however_often_processes_are_killed(connection, app, make):
    """Two workers share the partitions, in small batches, and one event fails."""
    chance = random.Random(app)
    model = make()
    at = address(connection)
    options = ("--workers", "2", "--partitions", "4", "--batch-size", "7")
    expected: dict[int, int] = {}
    with psycopg.connect(at, autocommit=True) as other:
        store = MessageStore(other)
        with Started(at, *options, app=app, cwd=ROOT) as started:
            for n in range(KILLS):
                handled = position(connection)
                for _ in range(60):
                    kind, sign = chance.choice([(Booked, 1), (Cancelled, -1)])
                    night = chance.randrange(5)
                    store.write(kind("b", night, 2), f"{BOOKINGS}-{chance.randrange(30)}")
                    expected[night] = expected.get(night, 0) + 2 * sign
                if n == 1:
                    store.write(Booked("b", 1, 13), f"{BOOKINGS}-bad")
                until(lambda before=handled: position(connection) > before)
                chance.choice(started.workers).kill()
            until(lambda: settled(connection, model.name, expected))
    assert connection.execute(
        "SELECT entity, state FROM reservation.dead_letters WHERE state <> 'handled'"
    ).fetchall() == [("booking-bad", "dead")]
    result = verify(connection, model)
    assert result.is_proved
    assert result.rebuilt.left_out == 1


def position(connection):
    """Return how far all partitions are together."""
    ((reached,),) = connection.execute(
        "SELECT coalesce(sum(position), 0) FROM reservation.positions"
    ).fetchall()
    return reached


def settled(connection, name, expected):
    ((there,),) = connection.execute("SELECT to_regclass(%s)", [f"{name}.nights"]).fetchall()
    ((dead,),) = connection.execute(
        "SELECT count(*) FROM reservation.dead_letters WHERE state = 'dead'"
    ).fetchall()
    return there is not None and dead == 1 and nights(connection) == expected


def test_both_versions_are_made_while_views_are_turned(connection):
    """Readers see the rows of one version or the other, at every moment."""
    at = address(connection)

    with psycopg.connect(at, autocommit=True) as other:
        store = MessageStore(other)
        store.write(Booked("b", 1), f"{BOOKINGS}-1")
        for model in (one_by_one(), by_sets()):
            consumers.drain(model, at)
        with (
            Started(at, app=FIRST, cwd=ROOT) as first,
            Started(at, app=SECOND, cwd=ROOT) as second,
        ):
            seen = 1
            for n in range(2 * KILLS):
                store.write(Booked("b", 1), f"{BOOKINGS}-{n}")
                until(lambda: (first, second)[n % 2].workers)[0].kill()  # noqa: B023
                switch(connection, 2 - n % 2)
                assert nights(connection)[1] >= seen
                seen = nights(connection)[1]
                until(lambda: nights(connection, "occupancy_1") == {1: n + 2})  # noqa: B023
                until(lambda: nights(connection, "occupancy_2") == {1: n + 2})  # noqa: B023
    for model in (one_by_one(), by_sets()):
        assert verify(connection, model).is_proved
