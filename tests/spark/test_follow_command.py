"""``reservation reconcile --follow`` as a process: lines, signals, and a server that is away."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from contextlib import closing

import pytest

from reservation import MessageStore, install
from reservation.postgres.connection import connect
from tests.commands import invoke_cli
from tests.controls import COMMANDS, deposit, open_
from tests.processes import EXAMPLES, PATIENCE, command_line
from tests.servers import OwnServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

LONG = 3 * PATIENCE  # Spark starts in it, or a round comes to its end


class Following:
    """A process that follows, whose lines can be waited for."""

    def __init__(self, database_url, *arguments):
        self.process = subprocess.Popen(
            command_line("reconcile", "bank:account", "--follow", "--grace", "0s", *arguments),
            env={**os.environ, "RESERVATION_DATABASE_URL": database_url},
            cwd=EXAMPLES,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=[pipe], daemon=True)
            for pipe in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _read(self, pipe):
        with pipe:
            for line in pipe:
                self._lines.put(line.rstrip("\n"))

    def line(self):
        """Return the next line, of either output."""
        return self._lines.get(timeout=LONG)

    def stop(self, number):
        """Send a signal; return the exit status and what was said until the end."""
        self.process.send_signal(number)
        status = self.process.wait(LONG)
        for reader in self._readers:
            reader.join()
        return status, [self._lines.get() for _ in range(self._lines.qsize())]


def orphan(store, name):
    """Write a reservation without a command."""
    store.write(deposit(name), f"accountTransaction-123+{name}")


def stream(line):
    """Return what a JSON line says, and the stream that it says it of."""
    told = json.loads(line)
    return told["event"], told["violation"]["streamName"].partition("+")[2]


@pytest.fixture
def server(server_folder):
    """Give an embedded server of this test's own."""
    own = OwnServer(server_folder / "postgres")
    yield own
    own.close()


@pytest.mark.faults
def test_a_follower_waits_for_a_database_that_goes_away(server, tmp_path):
    """It prints an object a line, says once that it waits, goes on, and ends on SIGTERM."""
    with closing(connect(server.address, autocommit=True)) as connection:
        install(connection)
        store = MessageStore(connection)
        store.write(open_(), COMMANDS)
        orphan(store, "o1")
    metrics = tmp_path / "metrics.prom"
    with Following(server.address, "--json", "--prometheus", str(metrics)) as following:
        assert json.loads(following.line()) == {
            "event": "following",
            "component": "account",
            "categories": ["account:command", "accountTransaction", "account"],
            "graceSeconds": 0,
        }
        assert stream(following.line()) == ("reported", "o1")
        server.crash()
        assert following.line().startswith("Waiting to continue: Cannot reach the database")
        server.start()
        with closing(connect(server.address, autocommit=True)) as connection:
            orphan(MessageStore(connection), "o2")
        assert stream(following.line()) == ("reported", "o2")
        status, said = following.stop(signal.SIGTERM)
    assert status == 1, said
    (ended,) = map(json.loads, said)
    assert ended == {
        "event": "ended",
        "reported": 2,
        "mended": 0,
        "standing": {"orphan": 2},
        "inOrder": False,
    }
    assert "reservation_reconcile_orphans" in metrics.read_text()


@pytest.mark.faults
def test_a_follower_that_is_killed_goes_on_where_it_was(database_url, store, tmp_path):
    """After a round has read, and before it ends; what is new is reported."""
    orphan(store, "o1\u202e")
    state = tmp_path / "state"
    with Following(database_url, "--state", str(state)) as following:
        assert following.line().startswith(
            "Following account:command, accountTransaction, account;"
        )
        line = following.line()
        assert "  orphan         accountTransaction-123+o1\\u202e  Deposit  1  " in line
        store.write(deposit("d1"), COMMANDS)
        orphan(store, "o2")
        read = state / "run-000002" / "effects" / "rows" / "_SUCCESS"
        deadline = time.monotonic() + LONG
        while not read.exists():
            assert time.monotonic() < deadline
            assert following.process.poll() is None, following.stop(signal.SIGTERM)
            time.sleep(0.02)
        following.stop(signal.SIGKILL)
    assert (state / "CURRENT").read_text().split()[0] == "run-000001"
    arguments = ["--state", str(state), "--fail-on", "missing", "--warn", "orphan"]
    with Following(database_url, *arguments) as following:
        following.line()
        assert "+o2  " in following.line()
        status, said = following.stop(signal.SIGINT)
    assert status == 0, said
    assert said == [
        "Warning: 2 orphans (allowed: 0)",
        "1 reported, 0 mended, still open: 2 orphan.",
    ]


def test_a_round_is_broken_off_when_it_is_to_stop(database_url, store, tmp_path):
    """Cleanly, with nothing told of it, and a state that holds nothing of it."""
    orphan(store, "o1")
    state = tmp_path / "state"
    with Following(database_url, "--json", "--state", str(state)) as following:
        assert json.loads(following.line())["event"] == "following"
        status, said = following.stop(signal.SIGTERM)
    assert status == 0, said
    (ended,) = map(json.loads, said)
    assert (ended["reported"], ended["standing"], ended["inOrder"]) == (0, {}, True)
    assert not (state / "CURRENT").exists()


def test_what_makes_no_sense_together_is_refused(tmp_path):
    """Before anything is looked for, in one sentence."""
    done = invoke_cli(
        "reconcile", "bank:account", "--follow", "--details", "--html", str(tmp_path / "page.html")
    )
    assert done.returncode == 2
    assert "leave out --details, --html" in " ".join(done.stderr.split())
