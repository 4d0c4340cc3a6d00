"""``reservation start``: the consumers as real processes, from their start to their end."""

import json
import os
import pty
import signal
import subprocess

import psutil

from tests.apps.bank import RESERVED, broken, event_types, holder, lengthen_leases
from tests.apps.holding import HELD, Holding
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import EXAMPLES, PATIENCE, Started, command_line, wait_until_gone
from tests.support.watching import Watched, until

DEATHS = 5  # in a row, after which it starts a consumer once more


def test_a_signal_ends_the_consumers_once_the_batch_in_hand_is_committed(
    connection, store, database_url, tmp_path
):
    """A signal to the whole group, as Ctrl-C sends, is one request; the log holds no payload."""
    app = Holding(tmp_path)
    secret = open_(customer="secret-customer"), deposit(amount="31415.92"), deposit(HELD)
    store.write([*secret, deposit(amount="27182.81")], COMMANDS)
    with app.start(database_url) as started:
        app.wait()
        os.killpg(started.process.pid, signal.SIGINT)
        app.let_go()
        assert started.process.wait(PATIENCE) == 0
        started.wait_for("command_conflict", key_stream="accountTransaction-123+d1")
        started.wait_for("batch_committed", category=RESERVED, handled=2)
        for category in ("account:command", RESERVED):
            started.wait_for("consumer_stopped", category=category)
        assert all(json.loads(line)["event"] != "batch_abandoned" for line in started.lines)
        assert not [text for text in ("secret", "31415", "27182") if text in started.log]
    assert event_types(store) == ["Opened", "Deposited", "Deposited"]
    assert broken(connection) == {}


def test_a_signal_while_the_consumers_start_is_a_clean_stop_too(database_url):
    """They end with status 0, and print no traceback."""
    with Started(database_url) as started:
        host = psutil.Process(started.process.pid)
        while not host.children():
            assert started.process.poll() is None
        assert started.stop_group(signal.SIGTERM) == 0, started.log
        assert "Traceback" not in started.log


def test_a_dead_process_is_restarted_a_limited_number_of_times(
    admin, connection, store, database_url
):
    """What a killed process did counts once; after several deaths in a row the command ends."""
    store.write([open_(), deposit()], COMMANDS)
    handled = ("reservation_messages_total", "account", RESERVED, "handled")
    with Watched(database_url) as started:
        started.wait_for("consumer_started", category=RESERVED)
        until(lambda: started.figure(*handled) == 1)
        for n in range(DEATHS):
            os.kill(holder(connection, RESERVED), signal.SIGKILL if n else signal.SIGTERM)
            how = "by signal 9" if n else "status 0"
            assert started.wait_for("process_died", how=how)["in_flight"] == []
            started.wait_for("consumer_started", category=RESERVED)
        assert started.figure(*handled) == 1
        store.write(deposit("d2"), COMMANDS)
        until(lambda: started.figure(*handled) == 2)
        started.ready()
        os.kill(holder(connection, RESERVED), signal.SIGKILL)
        assert started.process.wait(PATIENCE) == 1
        assert "ended unexpectedly (by signal 9)" in started.log
    assert wait_until_gone(admin, database_url)
    assert event_types(store) == ["Opened", "Deposited", "Deposited"]


# What is run before anything else: nothing may import a package that only an extra installs.
BLOCKING = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("opentelemetry", "prometheus_client"):
            raise AssertionError(name + " is imported")

sys.meta_path.insert(0, Blocked())
"""


def test_the_same_consumer_started_twice_stands_by_and_takes_over(
    connection, store, database_url, tmp_path
):
    """The second begins where the first one was killed; neither imports what extras install."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKING)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    lengthen_leases(connection)
    with Started(database_url, "--only", "commands", env=env) as first:
        first.wait_for("consumer_started", epoch=1)
        with Started(database_url, "--only", "commands", env=env) as second:
            second.wait_for("standing_by")
            store.write([open_(), deposit()], COMMANDS)
            first.wait_for("batch_committed", reserved=1, handled=1)
            assert first.stop(signal.SIGKILL) == -signal.SIGKILL
            second.wait_for("consumer_started", epoch=2, position=2)
            store.write([deposit("d2")], COMMANDS)
            second.wait_for("batch_committed", reserved=1, read=1)
            assert second.stop() == 0
    assert event_types(store) == ["Opened"]  # nobody handled what was reserved


def test_with_stop_on_error_a_failed_message_stops_with_one_line(connection, store, database_url):
    """The position is before that message, and the line is short, however long its type is."""
    store.write([open_(), deposit()], COMMANDS)
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, '{}')",
        [COMMANDS, "T" * 200_000],
    )
    store.write(deposit("d2"), COMMANDS)
    with Started(database_url, "--stop-on-error") as started:
        assert started.process.wait(PATIENCE) == 1
        (error,) = [line for line in started.log.splitlines() if line.startswith("Error: ")]
        assert "Nothing handles TTTT" in error
        assert "Traceback" not in started.log
        assert len(started.log) < 10_000
    rows = connection.execute(
        "SELECT position FROM reservation.positions WHERE category = 'account:command'"
    ).fetchall()
    assert rows == [(2,)]
    assert store.stream_version("accountTransaction-123+d1") == 0
    assert store.stream_version("accountTransaction-123+d2") == -1


def test_logs_are_lines_for_people_on_a_terminal_whose_end_stops_nothing(store, database_url):
    """Consumers go on when nobody can read their log any more."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command_line("start", "bank:account"),
        env={**os.environ, "RESERVATION_DATABASE_URL": database_url},
        cwd=EXAMPLES,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        text = b""
        while text.count(b"consumer_started") < 2:
            text += os.read(ours, 4096)
        os.close(ours)
        assert b"{" not in text
        store.write([open_(), deposit()], COMMANDS)
        while event_types(store) != ["Opened", "Deposited"]:
            assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE) == 0
