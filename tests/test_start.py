"""``reservation start``: the consumers as real processes."""

import os
import pty
import signal
import subprocess

import psutil
import pytest
from psycopg import conninfo

from consumers.supervisor.supervisor import MOST_DEATHS
from reservation.postgres.connection import connect
from tests.bank import RESERVED, broken, event_types, holder, lengthen_leases
from tests.controls import COMMANDS, deposit, open_, withdraw
from tests.processes import EXAMPLES, PATIENCE, Started, command_line, run_cli, wait_until_gone

pytestmark = pytest.mark.slow


@pytest.mark.check
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_consumers_run_until_a_signal(connection, store, database_url, number):
    """One command starts both consumers, and a signal ends them with status 0."""
    store.write([open_(), deposit(), withdraw(), deposit()], COMMANDS)
    with Started(database_url) as started:
        started.wait_for("batch_committed", category=RESERVED, handled=2)
        store.write(deposit("d2"), COMMANDS)
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        assert started.stop(number) == 0
        assert started.log.count('"consumer_stopped"') == 2
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn", "Deposited"]
    assert broken(connection) == {}


def test_each_consumer_runs_alone(store, database_url):
    """Two processes can each run one of the consumers."""
    store.write([open_(), deposit()], COMMANDS)
    with Started(database_url, "--only", "commands") as commands:
        commands.wait_for("batch_committed", category="account:command", reserved=1, handled=1)
        assert commands.stop() == 0
    assert event_types(store) == ["Opened"]
    with Started(database_url, "--only", "reserved") as reserved:
        reserved.wait_for("batch_committed", category=RESERVED, handled=1)
        assert reserved.stop() == 0
    assert event_types(store) == ["Opened", "Deposited"]


def test_a_dead_consumer_is_restarted_a_limited_number_of_times(
    admin, connection, store, database_url
):
    """A dead consumer is restarted; after several deaths in a row the command ends."""
    with Started(database_url) as started:
        for category in ("account:command", RESERVED):
            started.wait_for("consumer_started", category=category)
        for n in range(MOST_DEATHS + 1):
            os.kill(holder(connection, RESERVED), signal.SIGKILL)
            if n < MOST_DEATHS:
                started.wait_for("consumer_died", category=RESERVED, how="by signal 9")
                started.wait_for("consumer_started", category=RESERVED)
        assert started.process.wait(PATIENCE) == 1
        assert "ended unexpectedly (by signal 9)" in started.log
    assert wait_until_gone(admin, database_url)


def test_consumers_whose_supervisor_is_killed_stop_by_themselves(admin, database_url):
    """Consumers whose supervisor was killed stop by themselves."""
    with Started(database_url) as started:
        for category in ("account:command", RESERVED):
            started.wait_for("consumer_started", category=category)
        started.process.kill()
        started.process.wait()
    assert wait_until_gone(admin, database_url)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_same_consumer_started_twice_stands_by_and_takes_over(
    connection, store, database_url, number
):
    """A consumer started twice stands by and takes over when the first one ends or dies."""
    lengthen_leases(connection)
    with Started(database_url, "--only", "commands") as first:
        first.wait_for("consumer_started", epoch=1)
        with Started(database_url, "--only", "commands") as second:
            second.wait_for("standing_by")
            store.write([deposit()], COMMANDS)
            first.wait_for("batch_committed", reserved=1)
            first.stop(number)
            second.wait_for("consumer_started", epoch=2)
            store.write([deposit("d2")], COMMANDS)
            second.wait_for("batch_committed", reserved=1, read=1)
            assert second.stop() == 0


@pytest.mark.parametrize("only", [[], ["--only", "commands"]])
def test_with_stop_on_error_a_failed_message_stops_with_one_line(
    connection, store, database_url, only
):
    """With `--stop-on-error` the consumer stops before the message that failed."""
    store.write([open_(), deposit()], COMMANDS)
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', '[1]')",
        [COMMANDS],
    )
    store.write(deposit("d2"), COMMANDS)
    with Started(database_url, *only, "--stop-on-error") as started:
        assert started.process.wait(PATIENCE) == 1
        error = [line for line in started.log.splitlines() if line.startswith("Error: ")]
    assert len(error) == 1
    assert "Cannot decode Deposit at account:command-123, global position 3" in error[0]
    assert "Traceback" not in started.log
    rows = connection.execute(
        "SELECT position FROM reservation.positions WHERE category = 'account:command'"
    ).fetchall()
    assert rows == [(2,)]
    assert store.stream_version("accountTransaction-123+d1") == 0
    assert store.stream_version("accountTransaction-123+d2") == -1


def test_logs_are_json_and_hold_no_payload(store, database_url):
    """Logs are JSON and hold no payload."""
    store.write([open_(customer="secret-customer"), deposit(amount="31415.92")], COMMANDS)
    store.write(deposit(amount="27182.81"), COMMANDS)
    with Started(database_url) as started:
        started.wait_for("command_conflict", key_stream="accountTransaction-123+d1")
        started.wait_for("batch_committed", category=RESERVED)
        started.stop()
        assert all(line.startswith("{") for line in started.lines)
        for secret in ("secret-customer", "31415", "27182"):
            assert secret not in started.log


def test_logs_are_lines_for_people_on_a_terminal(database_url):
    """On a terminal logs are readable lines."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command_line("start", "bank:account", "--only", "commands"),
        env={**os.environ, "RESERVATION_DATABASE_URL": database_url},
        cwd=EXAMPLES,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        text = b""
        while b"consumer_started" not in text:
            text += os.read(ours, 4096)
        process.terminate()
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    assert not text.lstrip().startswith(b"{")


def test_a_component_without_reservations_has_no_reserved_consumer(tmp_path, database_url):
    """Asking a component without reservations for its reserved consumer is an error."""
    (tmp_path / "plain.py").write_text(
        "from dataclasses import dataclass\nfrom reservation import Component\n"
        "@dataclass\nclass Ping:\n    id: str\n"
        "ping = Component('ping', id='id')\n"
        "ping.handle(Ping)(lambda command, entity, context: None)\n"
    )
    done = run_cli(
        "start",
        "plain:ping",
        "--only",
        "reserved",
        "--app-dir",
        str(tmp_path),
        "--database-url",
        database_url,
    )
    assert done.returncode == 2
    assert "has no reservation category" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT] * 3)
def test_a_signal_to_the_whole_group_is_a_clean_stop(database_url, number):
    """A signal to the process group, which each consumer gets twice, is a clean stop."""
    with Started(database_url) as started:
        for category in ("account:command", RESERVED):
            started.wait_for("consumer_started", category=category)
        assert started.stop_group(number) == 0, started.log
        assert "Traceback" not in started.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_consumers_start_is_a_clean_stop_too(database_url, number):
    """A signal while the consumers start is a clean stop."""
    with Started(database_url) as started:
        supervisor = psutil.Process(started.process.pid)
        while len(supervisor.children()) < 2:
            assert started.process.poll() is None
        assert started.stop_group(number) == 0, started.log
        assert "Traceback" not in started.log


def test_a_consumer_that_stops_alone_is_started_again(database_url):
    """A single consumer that was asked to stop is started again."""
    with Started(database_url) as started:
        for category in ("account:command", RESERVED):
            started.wait_for("consumer_started", category=category)
        psutil.Process(started.process.pid).children()[-1].terminate()
        started.wait_for("consumer_stopped", category=RESERVED)
        started.wait_for("consumer_died", category=RESERVED, how="status 0")
        started.wait_for("consumer_started", category=RESERVED)
        assert started.stop() == 0


def test_a_consumer_that_waits_for_a_lock_can_be_stopped(store, database_url):
    """A consumer that waits for a category's lock can be stopped."""
    with connect(database_url) as holder:
        holder.execute("SELECT message_store.acquire_lock('account-1')")
        store.write(open_(), COMMANDS)
        with Started(database_url, "--only", "commands") as started:
            started.wait_for("lock_awaited")
            assert started.stop() == 0
    assert event_types(store) == []


def test_a_long_reason_reaches_the_supervisor(connection, database_url):
    """The supervisor reports an error about a very long type, and shortens it."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, '{}')",
        [COMMANDS, "T" * 200_000],
    )
    with Started(database_url, "--stop-on-error") as started:
        assert started.process.wait(PATIENCE) == 1
        assert "Nothing handles TTTT" in started.log
        assert len(started.log) < 10_000


def test_a_log_that_nobody_reads_any_more_stops_nothing(store, database_url):
    """A log whose reader is gone stops no consumer."""
    ours, theirs = os.pipe()
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
        store.write([open_(), deposit()], COMMANDS)
        while event_types(store) != ["Opened", "Deposited"]:
            assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_a_missing_right_is_reported_in_one_line(connection, database_url):
    """A missing right ends the command with one line that names it and the grant."""
    connection.execute("REVOKE ALL ON reservation.positions FROM message_store")
    limited = conninfo.make_conninfo(database_url, options="-c role=message_store")
    with Started(limited) as started:
        assert started.process.wait(PATIENCE) == 2
        assert "lacks INSERT on reservation.positions, SELECT on" in started.log
        assert "`reservation store grants consumer message_store`" in started.log
        assert "Traceback" not in started.log
