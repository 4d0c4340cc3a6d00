"""A rate over several processes, some of which are killed, as its provider sees it."""

import os
import signal
from bisect import bisect_left
from contextlib import ExitStack

import pytest

from reservation import MessageStore
from tests.apps.limited import LIMIT, TABLE, Charge, charges
from tests.support.consuming import until
from tests.support.started import EXAMPLES, Started

CHARGES = 120
# A process may be held up between the time of a call and the call, and the next one is not.
LATE = 6


def times(connection):
    """Return when the provider was called, in seconds since the first call."""
    query = "SELECT extract(epoch FROM at - min(at) OVER ())::float8 FROM calls ORDER BY at"
    return [at for (at,) in connection.execute(query).fetchall()]


def most_in_a_second(called):
    """Return how many calls were made at most in any second."""
    return max(n + 1 - bisect_left(called, at - 1.0) for n, at in enumerate(called))


@pytest.mark.parametrize("app", ["charges", "charges_async"])
def test_the_provider_is_not_called_more_often_by_several_processes(
    store: MessageStore, connection, database_url, app
):
    """Nor when processes are killed and others take over; nothing is lost, and nothing dies."""
    connection.execute(TABLE)
    for n in range(CHARGES):
        store.send(Charge(f"c{n}", f"{n}"), charges)
    arguments = ("--partitions", "6", "--log-level", "error")
    with ExitStack() as stack:

        def start():
            return stack.enter_context(
                Started(
                    database_url,
                    *arguments,
                    app=f"tests.apps.limited:{app}",
                    cwd=EXAMPLES.parent,
                )
            )

        started = [start() for _ in range(3)]
        for calls in (CHARGES // 4, CHARGES // 2):
            until(lambda calls=calls: len(times(connection)) >= calls)
            os.killpg(started.pop(0).process.pid, signal.SIGKILL)
            started.append(start())
        until(lambda: len(list(store.read_category("billing"))) == CHARGES)
        assert [one.stop() for one in started] == [0, 0, 0]
    called = times(connection)
    assert most_in_a_second(called) <= LIMIT + LATE
    assert called[-1] >= (len(called) - 1 - LATE) / LIMIT
    answered = connection.execute("SELECT count(DISTINCT charge) FROM calls").fetchone()
    assert answered == (CHARGES,)
    states = connection.execute("SELECT DISTINCT state FROM reservation.dead_letters").fetchall()
    assert states == [("handled",)]
