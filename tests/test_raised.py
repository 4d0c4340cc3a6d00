"""A handler can raise anything and do anything to its process; other messages are handled."""

import pytest

from tests.bank import RESERVED, broken, event_types, wait_until_drained
from tests.controls import COMMANDS, deposit
from tests.poison import Poison
from tests.processes import PATIENCE
from tests.two_accounts import drained, drained_commands, letters, start, write_two_accounts

pytestmark = pytest.mark.faults

RAISED = [
    "cancelled",
    "interrupt",
    "generator_exit",
    "system_exit",
    "own",
    "cycle",
    "memory",
    "recursion",
]
DEADLY = [
    "descriptors",
    "all_descriptors",
    "descriptors_then_use",
    "descriptors_to_files",
    "descriptors_to_sockets",
    "descriptors_to_nonblocking_sockets",
]


def quiet(log):
    """Return whether a log has neither a traceback nor the text of the exception."""
    return "Traceback" not in log and "secret" not in log


def others_are_handled(connection, store):
    assert event_types(store) == ["Opened", "Deposited"]
    assert event_types(store, "456") == ["Opened", "Deposited"]
    assert broken(connection) == {}


@pytest.mark.parametrize("fault", RAISED)
def test_whatever_a_handler_raises_is_counted_and_becomes_a_dead_letter(
    connection, store, database_url, tmp_path, fault
):
    """Any exception becomes a dead letter, also one that is not derived from Exception."""
    poison = Poison(tmp_path, bad=fault)
    write_two_accounts(store)
    with start(database_url, poison) as started:
        dead = started.wait_for("message_dead")
        drained(connection, started)
        assert started.stop() == 0
        assert quiet(started.log)
        assert "consumer_died" not in started.log
        assert all(line.startswith("{") for line in started.lines)
    assert (dead["reason"], dead["attempts"]) == ("handler", 3)
    if fault != "recursion":  # which calls itself
        assert poison.calls("bad") == 4
    assert letters(connection) == [("bad", "dead", "handler", 3), ("d3", "parked", "parked", 0)]
    others_are_handled(connection, store)


@pytest.mark.parametrize(
    ("code", "category", "reason", "attempts"),
    [
        ("class", RESERVED, "undecodable", 1),
        ("key", "account:command", "handler", 3),
        ("formerly", "account:command", "handler", 3),
    ],
)
def test_whatever_a_class_or_a_key_function_raises_is_a_fault_of_the_message(
    connection, store, database_url, tmp_path, monkeypatch, code, category, reason, attempts
):
    """What a message class or key function raises is a failure of the message."""
    monkeypatch.setenv("POISON_CODE", code)
    poison = Poison(tmp_path, bad=f"{code}_is_cancelled")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        dead = started.wait_for("message_dead", category=category)
        drained(connection, started)
        assert started.stop() == 0
        assert quiet(started.log)
        assert "consumer_died" not in started.log
    assert (dead["reason"], dead["attempts"]) == (reason, attempts)
    assert "CancelledError in looked (poisoned.py:" in dead["error"]
    others_are_handled(connection, store)


@pytest.mark.parametrize("fault", DEADLY)
def test_a_handler_that_closes_its_processs_files_is_counted(
    connection, store, database_url, tmp_path, fault
):
    """A handler that closes its process's files ends the process, and the death counts."""
    poison = Poison(tmp_path, bad=fault)
    write_two_accounts(store)
    with start(database_url, poison) as started:
        dead = started.wait_for("message_dead")
        drained(connection, started)
        assert started.stop() == 0
        assert quiet(started.log)
    assert (dead["reason"], dead["attempts"]) == ("process_died", 3)
    assert poison.calls("bad") == 4
    assert letters(connection) == [
        ("bad", "dead", "process_died", 3),
        ("d3", "parked", "parked", 0),
    ]
    others_are_handled(connection, store)


@pytest.mark.parametrize("fault", ["descriptors", "projector"])
def test_a_consumer_that_runs_alone_ends_with_status_1_and_the_next_one_counts(
    connection, store, database_url, tmp_path, fault
):
    """After the death of a batch each further death is an attempt, in whichever process."""
    poison = Poison(tmp_path, bad=fault)
    write_two_accounts(store)
    with start(database_url, poison, "--only", "commands") as started:
        drained_commands(connection, started)
        assert started.stop() == 0
    for _ in range(4):
        with start(database_url, poison, "--only", "reserved") as started:
            assert started.process.wait(PATIENCE) == 1
            assert quiet(started.log)
    with start(database_url, poison, "--only", "reserved") as started:
        started.wait_for("message_dead", reason="process_died", attempts=3)
        drained(connection, started)
        assert started.stop() == 0
    assert poison.calls("bad") == 4
    others_are_handled(connection, store)


def test_a_handler_that_stops_its_process_and_fails_is_counted(
    connection, store, database_url, tmp_path
):
    """A handler that asks its process to stop and fails counts as a failure."""
    poison = Poison(tmp_path, bad="terminate_and_fail")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        dead = started.wait_for("message_dead")
        drained(connection, started)
        assert started.stop() == 0
        assert quiet(started.log)
    assert (dead["reason"], dead["attempts"]) == ("handler", 3)
    assert poison.calls("bad") == 4
    others_are_handled(connection, store)


def test_an_exception_of_a_projector_ends_the_process_and_is_counted(
    connection, store, database_url, tmp_path
):
    """An exception of a projector not derived from Exception ends the process and counts."""
    poison = Poison(tmp_path, bad="projector")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        crashed = started.wait_for("consumer_crashed", category=RESERVED)
        started.wait_for("consumer_died", category=RESERVED, how="status 1")
        dead = started.wait_for("message_dead", reason="process_died", attempts=3)
        drained(connection, started)
        assert started.stop() == 0
        assert quiet(started.log)
        assert all(line.startswith("{") for line in started.lines)
    assert "was ended by Secret in deposited (poisoned.py:" in crashed["error"]
    assert "without an exception" not in dead["error"]
    assert "`consumer_crashed`" in dead["error"]
    others_are_handled(connection, store)


@pytest.mark.parametrize("debug", [False, True])
def test_the_last_line_names_the_message_and_debug_shows_the_traceback(
    connection, store, database_url, tmp_path, debug
):
    """Without `--debug` the last line shows nothing of the exception's text."""
    poison = Poison(tmp_path, bad="projector")
    store.write([deposit("d1"), deposit("bad")], COMMANDS)
    with start(database_url, poison, "--only", "commands") as started:
        drained_commands(connection, started)
        assert started.stop() == 0
    for n in range(2):
        option = ["--debug"] if debug else []
        with start(database_url, poison, "--only", "reserved", *option) as started:
            assert started.process.wait(PATIENCE) == 1
            assert ("Traceback" in started.log) == debug
            assert ("secret" in started.log) == debug
            last = started.lines[-1]
        deposits = "Deposit at accountTransaction-123+"
        position = 3 if n == 0 else 4
        assert last.startswith(f"Error: While it handled {deposits}")
        assert f"global position {position}" in last
        assert "was ended by Secret in deposited" in last


@pytest.mark.parametrize("fault", ["fork", "failing_fork"])
def test_a_fork_that_returns_from_a_handler_ends(connection, store, database_url, tmp_path, fault):
    """A fork that returns from a handler ends, and the original process goes on."""
    poison = Poison(tmp_path, bad=fault)
    write_two_accounts(store)
    with start(database_url, poison) as started:
        started.wait_for("fork_ended")
        drained(connection, started)
        assert started.stop() == 0
        assert quiet(started.log)
        assert "database_unavailable" not in started.log
        assert "consumer_died" not in started.log
        assert started.log.count('"consumer_stopped"') == 2
    assert poison.calls("bad") == 1
    assert letters(connection) == []
    assert event_types(store) == ["Opened", "Deposited", "Deposited", "Deposited"]
    assert broken(connection) == {}


@pytest.mark.parametrize("code", ["class", "key"])
def test_a_fork_of_a_class_or_a_key_function_ends_as_it_asks(
    connection, store, database_url, tmp_path, monkeypatch, code
):
    """The SystemExit of a fork is no failure of the message."""
    monkeypatch.setenv("POISON_CODE", code)
    poison = Poison(tmp_path, bad=f"{code}_forks")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        wait_until_drained(connection, started)
        assert started.stop() == 0
        assert quiet(started.log)
    assert letters(connection) == []
    assert event_types(store) == ["Opened", "Deposited", "Deposited", "Deposited"]


@pytest.mark.parametrize("arguments", [[], ["--only", "reserved"]])
def test_a_handler_that_asks_its_own_process_to_stop_is_no_fault(
    connection, store, database_url, tmp_path, arguments
):
    """A handler that asks its process to stop is no failure: its batch is committed."""
    poison = Poison(tmp_path, bad="terminate")
    write_two_accounts(store)
    with start(database_url, poison, "--only", "commands") as started:
        drained_commands(connection, started)
        assert started.stop() == 0
    with start(database_url, poison, *arguments) as started:
        if arguments:
            assert started.process.wait(PATIENCE) == 0
        else:
            started.wait_for("consumer_stopped", category=RESERVED)
            drained(connection, started)
            assert started.stop() == 0
        assert quiet(started.log)
    assert poison.calls("bad") == 1
    assert letters(connection) == []
    assert event_types(store) == ["Opened", "Deposited", "Deposited", "Deposited"]
    assert connection.execute("SELECT sum(attempts) FROM reservation.positions").fetchone() == (0,)
