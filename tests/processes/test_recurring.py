"""Recurring commands, and processes that end while they make one."""

import os

from tests.apps.bank import drain
from tests.apps.nightly import SENT, hotels
from tests.support.consuming import until
from tests.support.started import EXAMPLES, Started


def test_a_function_that_ends_its_process_is_called_again(
    store, connection, database_url, tmp_path
):
    """Each new process waits for longer, and the tick is sent once; the host goes on."""
    drain(connection, hotels())
    connection.execute("UPDATE reservation.series SET reached = reached - interval '1 year'")
    env = os.environ | {"NIGHTLY_CALLS": str(tmp_path / "calls")}
    app = "tests.apps.nightly:deadly"
    with Started(database_url, app=app, cwd=EXAMPLES.parent, env=env) as started:
        for _ in range(2):
            died = started.wait_for("process_died")
            assert "9" in died["how"] or "KILL" in died["how"]
        started.wait_for("tick_sent", series="night")
        until(lambda: [m.type for m in store.read_stream("hotel-berlin")] == ["DayClosed"])
        assert started.stop() == 0
    assert len(list(store.read_category(SENT))) == 1
    place = "SELECT attempts, given_up FROM reservation.series"
    assert connection.execute(place).fetchone() == (0, 0)
    assert connection.execute("SELECT count(*) FROM reservation.dead_letters").fetchone() == (0,)
