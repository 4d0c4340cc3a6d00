"""The consumer of a subscribed category, run without the others, whose process a message kills."""

import os
import time

from reservation import Write
from tests.apps.orders import APP, PAYMENTS, ROOT, Failed, Place, capture, passes, payments_of
from tests.support.started import PATIENCE, Started


def start(database_url, *arguments, env=()):
    return Started(
        database_url,
        *("--app-dir", str(ROOT), *arguments),
        app=APP,
        env={**os.environ, **dict(env)},
    )


def follow(connection, started, to):
    """Wait until the subscribed category is read to a position."""
    deadline = time.monotonic() + PATIENCE
    read = "SELECT FROM reservation.positions WHERE category = %s AND position >= %s"
    while not connection.execute(read, [PAYMENTS, to]).fetchall():
        assert started.process.poll() is None, started.log
        assert time.monotonic() < deadline, started.lines
        time.sleep(0.02)


def test_a_message_that_kills_its_consumer_takes_effect_once(
    connection, store, database_url, tmp_path
):
    """Another process handles everything once; commands are left to others."""
    kills = tmp_path / "kills"
    kills.touch()
    store.write_batch(
        [capture("p1"), capture("p2", amount=0), capture("p3", amount=99), capture("p4", amount=1)]
    )
    store.write_batch([Write(Failed("p5", "o1"), "payment-p5")])
    store.write(Place("o2"), "order:command-o2")
    only = ("--only", "subscribed")
    with start(database_url, *only, env={"KILLS": str(kills)}) as started:
        started.wait_for("process_died", how="by signal 9")
        follow(connection, started, 5)
        assert started.stop() == 0
    assert payments_of(store) == ["p1", "p3"]
    assert passes(connection) == [("p2", "nothing"), ("p4", "written")]
    assert len(list(store.read_category("shipping:command"))) == 1
    assert list(store.read_stream("order-o2")) == []
