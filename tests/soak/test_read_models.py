"""Read models under kills, switches and rebuilds at random, compared with a rebuild."""

import contextlib
import os
import random
import signal
import time

import psycopg
import pytest

from reservation import MessageStore
from reservation.errors import StoreError
from tests.apps.bank import address
from tests.apps.occupancy import BOOKINGS, FIRST, ROOT, SECOND, Booked, Cancelled, first, second
from tests.support.chance import seeds
from tests.support.consuming import until
from tests.support.read_models import remove, switch, verify
from tests.support.started import Started

SEEDS = seeds(int(os.environ.get("RESERVATION_TEST_SEEDS", "1")))
SECONDS = 60.0
EVENTS = 3_000  # two workers that change the same rows meet in deadlocks, which take a second each
APPS = {1: FIRST, 2: SECOND}
MODELS = {1: first, 2: second}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rows_are_those_of_a_rebuild_whatever_happens(connection, seed):
    """Some events fail; each version is killed, removed, made anew and shown in turns."""
    chance = random.Random(seed)
    at = address(connection)
    deadline = time.monotonic() + SECONDS
    running: dict[int, Started] = {}
    with psycopg.connect(at, autocommit=True) as other, contextlib.ExitStack() as stack:
        store = MessageStore(other)

        def start(version: int) -> None:
            options = ("--workers", str(chance.choice([1, 2])), "--batch-size", "9")
            running[version] = stack.enter_context(
                Started(at, *options, "--partitions", "4", app=APPS[version], cwd=ROOT)
            )

        def keep_running(version: int) -> bool:
            """Start it unless it runs: it ends by itself if its version is removed."""
            runs = version in running and running[version].process.poll() is None
            if not runs:
                start(version)
            return runs

        def catches_up(version: int) -> bool:
            return keep_running(version) and caught_up(connection, version)

        written = 0
        while time.monotonic() < deadline:
            sent = chance.randrange(40)
            for _ in range(min(sent, EVENTS - written)):
                event = chance.choice([Booked, Cancelled])("b", chance.randrange(9), 1)
                store.write(event, f"{BOOKINGS}-{chance.randrange(20)}")
            written += min(sent, EVENTS - written)
            if chance.random() < 0.1 and written < EVENTS:
                store.write(Booked("b", 1, 13), f"{BOOKINGS}-bad{chance.randrange(3)}")
            version = chance.choice([1, 2])
            action = chance.choice(["kill", "kill", "stop", "switch", "remove", "verify"])
            if not keep_running(version):
                continue
            if action == "kill":
                running.pop(version).__exit__()
                start(version)
            elif action == "stop":
                ended = running.pop(version).stop()
                assert ended in (0, -signal.SIGTERM)  # it may not have begun to handle signals
            else:
                with contextlib.suppress(StoreError):  # it is refused as it should be
                    act(connection, action, version)
        for version in APPS:
            until(lambda version=version: catches_up(version))
    for model in MODELS.values():
        assert verify(connection, model).is_proved


def act(connection, action, version):
    if action == "switch":
        switch(connection, version, within=1)
    elif action == "remove":
        remove(connection, version)
    else:
        assert verify(connection, MODELS[version]).is_proved


def caught_up(connection, version):
    ((behind,),) = connection.execute(
        "SELECT coalesce(min(position), 0) < reservation.category_head(%s)"
        " FROM reservation.positions WHERE consumer = %s",
        [BOOKINGS, f"occupancy_{version}"],
    ).fetchall()
    return not behind
