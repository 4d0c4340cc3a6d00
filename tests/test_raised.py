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
    """Tell whether a log has neither a traceback nor the text of what was raised."""
    return "Traceback" not in log and "secret" not in log


def others_are_handled(connection, store):
    assert event_types(store) == ["Opened", "Deposited"]
    assert event_types(store, "456") == ["Opened", "Deposited"]
    assert broken(connection) == {}


@pytest.mark.parametrize("fault", RAISED)
def test_whatever_a_handler_raises_is_counted_and_becomes_a_dead_letter(
    connection, store, database_url, tmp_path, fault
):
    """Also what is not derived from Exception; the process goes on."""
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
    """As what a handler raises, so the process goes on."""
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
def test_a_handler_that_closes_what_its_process_lives_by_is_counted(
    connection, store, database_url, tmp_path, fault
):
    """The process ends before it writes to a file that took the number of its connection."""
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
    """The first death is that of a batch; then each is an attempt, by whichever process."""
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
    """Each process ends as if it had been asked to, and the next one counts the failure."""
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


def test_what_is_not_raised_by_a_handler_ends_the_process_and_is_counted_too(
    connection, store, database_url, tmp_path
):
    """Such as an exception of a projector that is not derived from Exception."""
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
    """Without --debug nothing of what the exception says is shown."""
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
def test_a_copy_of_the_process_that_comes_back_from_a_handler_ends(
    connection, store, database_url, tmp_path, fault
):
    """It is no second consumer on the same connection, and the handler's own process goes on."""
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
def test_a_copy_that_a_class_or_a_key_function_forks_ends_as_it_is_told(
    connection, store, database_url, tmp_path, monkeypatch, code
):
    """Its SystemExit is no fault of the message."""
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
    """The batch is committed, and whoever is started next goes on behind it."""
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
