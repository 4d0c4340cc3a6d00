"""All consumers of several components in one process: what ends it, and what goes on."""

import json
import os
import signal

import psutil
import pytest

from tests.apps.bank import holder
from tests.support.started import Started
from tests.support.watching import until

# Two components. What a message says is done with it; of "hang" and "die" the calls are counted.
APP = """
import asyncio
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from reservation import Component

FOLDER = Path(__file__).parent


@dataclass
class Do:
    thing_id: str
    what: str


@dataclass
class Done:
    thing_id: str
    what: str
    process: int
    thread: str


SECONDS = {"slow": 2, "slower": 8}


def do(command, entity, context):
    with (FOLDER / f"{command.thing_id}.calls").open("a") as calls:
        calls.write("x")
    if command.what.startswith("die"):
        time.sleep({"die late": 0.5, "dies": 0.0}.get(command.what, 0.05))
        os.kill(os.getpid(), signal.SIGKILL)
    if command.what == "hang":
        threading.Event().wait()
    if command.what in SECONDS:
        time.sleep(SECONDS[command.what])
    if command.what == "little":
        time.sleep(0.02)
    return Done(command.thing_id, command.what, os.getpid(), threading.current_thread().name)


async def await_(command, entity, context):
    if command.what in ("awaits", "dies"):
        await asyncio.sleep(2 if command.what == "awaits" else 1)
    return do(command, entity, context)


def component(name):
    attempts = int(os.environ.get("ATTEMPTS", "3"))
    declared = Component(name, entity=dict, id="thing_id", attempts=attempts)
    declared.handle(Do, once=None)(do)
    declared.message(Done)
    return declared


left, right = component("left"), component("right")
awaited = Component("awaited", entity=dict, id="thing_id", attempts=2)
awaited.handle(Do, once=None)(await_)
awaited.message(Done)
"""

NAMES = ("left", "right")


class Things:
    """The app, and what its handlers did."""

    def __init__(self, folder, connection, database_url):
        self.folder, self._connection, self._database_url = folder, connection, database_url
        (folder / "things.py").write_text(APP)

    def start(self, *arguments, other="right"):
        """Start two components."""
        return Started(
            self._database_url,
            f"things:{other}",
            "--app-dir",
            str(self.folder),
            *arguments,
            app="things:left",
        )

    def send(self, name, *what):
        """Send a command for each to a component, in one transaction; each is an entity."""
        with self._connection.transaction():
            for n, one in enumerate(what):
                self.send_one(name, n, one)

    def send_one(self, name, number, what):
        """Send one command to an entity of this number."""
        self._connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Do',"
            " jsonb_build_object('thingId', %s::text, 'what', %s::text))",
            [f"{name}:command-{name}{number}", f"{name}{number}", what],
        )

    def calls(self, thing):
        """Return how often the handler was called for a thing."""
        file = self.folder / f"{thing}.calls"
        return len(file.read_text()) if file.exists() else 0

    def done(self, name):
        """Return what a component has done, with the process and the thread."""
        return self._connection.execute(
            "SELECT data->>'thingId', (data->>'process')::integer, data->>'thread'"
            " FROM message_store.messages WHERE message_store.category(stream_name) = %s"
            " AND type = 'Done' ORDER BY 1",
            [name],
        ).fetchall()

    def dead(self):
        """Return the things whose messages are dead letters, with the reason and the attempts."""
        return self._connection.execute(
            "SELECT m.data->>'thingId', l.reason, l.attempts FROM reservation.dead_letters l"
            " JOIN message_store.messages m USING (global_position) ORDER BY 1"
        ).fetchall()

    def letters(self):
        """Return the state and the reason of each letter, by its thing."""
        rows = self._connection.execute(
            "SELECT m.data->>'thingId', l.state, l.reason FROM reservation.dead_letters l"
            " JOIN message_store.messages m USING (global_position)"
        ).fetchall()
        return {thing: (state, reason) for thing, state, reason in rows}


@pytest.fixture
def things(tmp_path, connection, database_url):
    """Give the app with two components."""
    return Things(tmp_path, connection, database_url)


SESSIONS = [
    "reservation left left:command",
    "reservation left,right leases",
    "reservation left,right notices",
    "reservation right right:command",
]


def sessions(connection):
    """Return the names of the consumers' connections."""
    names = connection.execute(
        "SELECT application_name FROM pg_stat_activity"
        " WHERE application_name LIKE 'reservation %%' AND datname = current_database()"
        " ORDER BY 1"
    ).fetchall()
    return [name for (name,) in names]


def test_one_process_runs_all_consumers_in_threads(things, connection):
    """With one connection for each, one for notices, and one for leases once a batch takes long."""
    for name in NAMES:
        things.send(name, "slow", "well")
    with things.start() as started:
        until(lambda: all(len(things.done(name)) == 2 for name in NAMES))
        (process,) = psutil.Process(started.process.pid).children()
        for name in NAMES:
            assert {row[1:] for row in things.done(name)} == {
                (process.pid, f"reservation {name}:command")
            }
        until(lambda: sessions(connection) == SESSIONS)
        assert started.stop() == 0


def test_messages_of_two_categories_that_end_the_process_do_not_stop_the_service(things):
    """Each is dead after its attempts, and all others are handled, by and by."""
    for name in NAMES:
        things.send(name, "well", "die", *["well"] * 3)
    with things.start() as started:
        until(lambda: [name for name, *_ in things.dead()] == ["left1", "right1"])
        for name in NAMES:
            until(lambda name=name: len(things.done(name)) == 4)
        assert started.stop() == 0
    assert things.dead() == [(f"{name}1", "process_died", 3) for name in NAMES]
    for name in NAMES:
        # By itself, and with its batch unless the other message ended the process before that was
        # read; each death may be that of the other message.
        assert 3 <= things.calls(f"{name}1") <= 8


def test_a_message_that_ends_the_process_late_is_found_beside_a_busy_consumer(things):
    """After a death that may be that of another message it has the process for itself."""
    things.send("left", "well", "die late", "well")
    things.send("right", *["little"] * 2000)
    with things.start("--batch-size", "10") as started:
        until(lambda: [name for name, *_ in things.dead()] == ["left1"])
        assert 0 < len(things.done("right")) < 2000
        until(lambda: len(things.done("left")) == 2)
        assert started.stop() == 0
    assert things.dead() == [("left1", "process_died", 3)]
    assert things.calls("left1") <= 8


def test_a_message_may_end_its_process_as_often_as_it_has_attempts(things, monkeypatch):
    """Its host goes on, because that has a limit."""
    monkeypatch.setenv("ATTEMPTS", "8")
    things.send("left", "well", "die", "well")
    with things.start() as started:
        until(lambda: len(things.done("left")) == 2)
        assert started.stop() == 0
    assert things.dead() == [("left1", "process_died", 8)]


def test_what_another_consumer_had_at_hand_at_a_death_is_not_counted(
    things, connection, monkeypatch
):
    """An only attempt that was counted counts no more if another message may have ended it."""
    monkeypatch.setenv("ATTEMPTS", "1")
    things.send("left", "slower")
    with things.start() as started:
        # A consumer that dies before it has read takes its next messages one by one, in turns with
        # others, so each death waits until it has.
        started.wait_for("notice_awaited", category="right:command")
        until(lambda: things.calls("left0") == 1)
        os.kill(holder(connection, "left:command"), signal.SIGKILL)
        until(lambda: things.calls("left0") == 2)
        started.wait_for("notice_awaited", category="right:command")
        things.send("right", "die")
        died = started.wait_for("process_died")
        assert [one["category"] for one in died["in_flight"]] == ["left:command"]
        died = started.wait_for("process_died")
        assert [one["category"] for one in died["in_flight"]] == ["left:command", "right:command"]
        until(lambda: len(things.done("left")) == 1)
        until(lambda: things.dead() == [("right0", "process_died", 1)])
        assert started.stop() == 0


def test_only_what_was_at_hand_is_taken_one_by_one(things):
    """The others of a backlog are handled in batches of the usual size."""
    things.send("left", "well", "die", *["well"] * 40)
    with things.start("--batch-size", "10") as started:
        died = started.wait_for("process_died", how="by signal 9")
        until(lambda: len(things.done("left")) == 41)
        assert started.stop() == 0
    (in_flight,) = died["in_flight"]
    assert (in_flight["consumer"], in_flight["category"]) == ("left", "left:command")
    assert (in_flight["first"], in_flight["last"], in_flight["global_position"]) == (1, 10, 2)
    read = [json.loads(line).get("read") for line in started.lines if "batch_committed" in line]
    assert max(read) == 10
    assert sum(one == 1 for one in read) <= 11


def test_a_handler_that_is_stuck_is_named_and_its_process_replaced(things):
    """That counts as an attempt at its message; another consumer goes on."""
    things.send("left", "well", "hang", "well")
    with things.start("--stuck-after", "1") as started:
        stuck = started.wait_for("consumer_stuck", consumer="left", category="left:command")
        assert (stuck["global_position"], stuck["seconds"]) == (2, 1)
        things.send("right", "well")
        until(lambda: len(things.done("right")) == 1)
        until(lambda: len(things.done("left")) == 2)
        assert started.stop() == 0
    assert things.dead() == [("left1", "process_died", 3)]
    assert things.calls("left1") == 3


def test_an_async_handler_that_blocks_its_loop_is_stuck(things):
    """Which of the calls that run blocks it is not known; one that only awaits does not."""
    things.send("awaited", "awaits", "hang", "awaits")
    with things.start("--stuck-after", "1", other="awaited") as started:
        stuck = started.wait_for("consumer_stuck", consumer="awaited")
        assert (stuck["first"], stuck["last"]) == (1, 3)
        assert "global_position" not in stuck
        until(lambda: len(things.done("awaited")) == 2)
        assert started.stop() == 0
    assert things.dead() == [("awaited1", "process_died", 2)]


def test_a_call_that_ends_the_process_after_its_batch_is_given_up(things):
    """Those that went on beside it are called by themselves too, and handled."""
    things.send("awaited", "awaits", "dies", "awaits", "well")
    with things.start(other="awaited") as started:
        died = started.wait_for("process_died", how="by signal 9")
        assert [one["running"] for one in died["in_flight"]] == [3]
        until(lambda: len(things.done("awaited")) == 3)
        until(lambda: ("awaited1", "process_died", 2) in things.dead())
        assert started.stop() == 0
    assert things.letters() == {
        "awaited0": ("handled", "running"),
        "awaited1": ("dead", "process_died"),
        "awaited2": ("handled", "running"),
    }
    assert things.calls("awaited1") == 1 + 2
    assert things.calls("awaited3") == 1


def test_a_slow_handler_keeps_its_lease_and_its_process(things, connection):
    """Its sign of life is that it began, so it may take up to --stuck-after."""
    things.send("left", "slow", "slow", "slow")
    with things.start("--stuck-after", "4") as started:
        started.wait_for("consumer_started", category="left:command")
        with things.start("--only", "left:command") as other:
            other.wait_for("standing_by")
            until(lambda: len(things.done("left")) == 3)
            assert (started.stop(), other.stop()) == (0, 0)
        assert "consumer_stuck" not in started.log
    assert things.dead() == []
    assert things.calls("left0") == 1


def test_after_the_death_of_the_host_what_it_had_is_taken_one_by_one(things, connection):
    """Then it is not known what was in flight."""
    things.send("left", "well", "hang", "well")
    with things.start() as started:
        until(lambda: things.calls("left1") == 1)
        os.killpg(started.process.pid, signal.SIGKILL)
    things.send("right", "well")
    with things.start("--stuck-after", "1") as started:
        started.wait_for("batch_committed", category="left:command", read=1)
        until(lambda: len(things.done("left")) == 2)
        assert started.stop() == 0


def test_who_searches_partitions_gives_none_of_them_back(things, connection):
    """Or the process that starts again would take them as a batch, and die of it uncounted."""
    code = things.folder / "things.py"
    code.write_text(f"import time\ntime.sleep(1)\n{code.read_text()}")  # the other one is faster
    name = (
        "SELECT i FROM generate_series(1, 1000) AS i"
        " WHERE reservation.partition_of('left:command-left' || i, 4) = 3 LIMIT 200"
    )
    numbers = [number for (number,) in connection.execute(name).fetchall()]
    with things.start("--workers", "2", "--partitions", "4", "--only", "left:command") as started:
        until(lambda: sum("consumer_started" in line for line in started.lines) == 2)
        with connection.transaction():
            for number in numbers:
                things.send_one("left", number, "die" if number == numbers[-1] else "little")
        until(lambda: len(things.dead()) == 1)
        assert started.stop() == 0
    assert things.dead() == [(f"left{numbers[-1]}", "process_died", 3)]
    assert things.calls(f"left{numbers[-1]}") <= 5


def test_two_components_of_one_name_are_refused(things):
    """They would share their positions."""
    with Started(
        None, "things:left", "--app-dir", str(things.folder), app="things:left"
    ) as started:
        assert started.process.wait(60) == 2
        assert "Two components are named 'left'" in started.log
