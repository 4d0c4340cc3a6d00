"""``reservation reconcile --follow`` as a process whose server goes away, and that is killed."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from contextlib import closing

import pytest
from psycopg import connect

from reservation import MessageStore
from reservation.admin import install
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.servers import OwnServer
from tests.support.started import EXAMPLES, PATIENCE, command_line

pytestmark = pytest.mark.timeout(600)

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
        """Send a signal; return the exit status and the output until the end."""
        self.process.send_signal(number)
        status = self.process.wait(LONG)
        for reader in self._readers:
            reader.join()
        return status, [self._lines.get() for _ in range(self._lines.qsize())]


def orphan(store, name):
    """Write a reservation without a command."""
    store.write(deposit(name), f"accountTransaction-123+{name}")


def stream(line):
    """Return the event of a JSON line, and the stream of its violation."""
    reported = json.loads(line)
    return reported["event"], reported["violation"]["streamName"].partition("+")[2]


@pytest.fixture
def server(server_folder):
    """Give an embedded server of this test's own."""
    own = OwnServer(server_folder / "postgres")
    yield own
    own.close()


def test_a_follower_waits_for_a_database_that_goes_away(server, tmp_path):
    """A follower waits for the database, prints one JSON object a line, and ends on SIGTERM."""
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
        status, printed = following.stop(signal.SIGTERM)
    assert status == 1, printed
    (ended,) = map(json.loads, printed)
    assert ended == {
        "event": "ended",
        "reported": 2,
        "mended": 0,
        "standing": {"orphan": 2},
        "inOrder": False,
    }
    assert "reservation_reconcile_orphans" in metrics.read_text()


def test_a_follower_that_is_killed_goes_on_where_it_was(database_url, store, tmp_path):
    """A follower that is killed in a round goes on where it was and reports what is new."""
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
        read = state / "run-000002" / "summaries"
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
        status, printed = following.stop(signal.SIGINT)
    assert status == 0, printed
    assert printed == [
        "Warning: 2 orphans (allowed: 0)",
        "1 reported, 0 mended, still open: 2 orphan.",
    ]


def test_a_stop_ends_a_round(database_url, store, tmp_path):
    """A stop in a round ends it without a report and without a trace in the state."""
    orphan(store, "o1")
    state = tmp_path / "state"
    with Following(database_url, "--json", "--state", str(state)) as following:
        assert json.loads(following.line())["event"] == "following"
        status, printed = following.stop(signal.SIGTERM)
    assert status == 0, printed
    (ended,) = map(json.loads, printed)
    assert (ended["reported"], ended["standing"], ended["inOrder"]) == (0, {}, True)
    assert not (state / "CURRENT").exists()
