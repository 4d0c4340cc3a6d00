"""Messages that cannot be handled, met by real processes, and what becomes of the others."""

import json
import signal
from dataclasses import dataclass
from decimal import Decimal

import pytest
from psycopg.types.json import Jsonb

from consumers.dead_letters.failure import process_died
from consumers.decisions.blocking import FailurePolicy
from reservation import Component, StateBased
from tests.bank import READS, RESERVED, batch, broken, event_types
from tests.controls import COMMANDS, deposit, open_
from tests.idempotence import Purse
from tests.poison import Poison
from tests.processes import PATIENCE, run_cli
from tests.two_accounts import OTHER, drained, drained_commands, letters, start, write_two_accounts
from tests.watching import until

pytestmark = pytest.mark.faults


def retry(database_url, *arguments):
    done = run_cli("dead-letters", *arguments, "--database-url", database_url)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.check
def test_a_message_that_always_fails_blocks_only_its_entity(
    connection, store, database_url, tmp_path
):
    """After three attempts the message is a dead letter and only its entity waits."""
    poison = Poison(tmp_path, bad="raise")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        dead = started.wait_for("message_dead", reason="handler")
        started.wait_for("message_parked", count=1, entities=1)
        drained(connection, started)
        assert (dead["attempts"], dead["type"]) == (3, "Deposit")
        assert "raised ValueError in poisoned (poisoned.py:" in dead["error"]
        assert event_types(store) == ["Opened", "Deposited"]
        assert event_types(store, "456") == ["Opened", "Deposited"]
        assert letters(connection) == [("bad", "dead", "handler", 3), ("d3", "parked", "parked", 0)]
        assert broken(connection) == {}
        store.write(deposit("d4"), COMMANDS)
        started.wait_for("message_parked", count=1)
        poison.set()
        retry(database_url, "retry", str(dead["global_position"]))
        started.wait_for("dead_letters_retried", handled=3, dead=0)
        store.write(deposit("d5"), COMMANDS)
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        drained(connection, started)
        assert started.stop() == 0
        assert "secret" not in started.log
    deposited = [
        json.loads(event.data).get("depositId") for event in store.read_stream("account-123")
    ]
    assert deposited == [None, "d1", "bad", "d3", "d4", "d5"]
    assert {state for _, state, *_ in letters(connection)} == {"handled"}
    assert broken(connection) == {}


def test_a_handler_that_fails_twice_is_tried_a_third_time(
    connection, store, database_url, tmp_path
):
    """A handler that fails twice succeeds at the third attempt without a dead letter."""
    poison = Poison(tmp_path, bad="twice")
    write_two_accounts(store)
    with start(database_url, poison, "--only", "commands") as started:
        drained_commands(connection, started)
        assert started.stop() == 0
    with start(database_url, poison, "--only", "reserved") as started:
        drained(connection, started)
        assert started.stop() == 0
    assert poison.calls("bad") == 3
    assert letters(connection) == []
    assert broken(connection) == {}


@pytest.mark.parametrize("fault", ["exit", "kill", "segfault"])
def test_a_handler_that_kills_its_process_is_counted_whichever_process_tries(
    connection, store, database_url, tmp_path, fault
):
    """A message that kills its process is a dead letter after three deaths of its own."""
    poison = Poison(tmp_path, bad=fault)
    write_two_accounts(store)
    with start(database_url, poison) as started:
        dead = started.wait_for("message_dead")
        drained(connection, started)
        assert started.stop() == 0
    assert (dead["reason"], dead["attempts"]) == ("process_died", 3)
    assert poison.calls("bad") == 4
    assert letters(connection) == [
        ("bad", "dead", "process_died", 3),
        ("d3", "parked", "parked", 0),
    ]
    assert event_types(store, "456") == ["Opened", "Deposited"]
    assert broken(connection) == {}


@pytest.mark.parametrize(
    ("code", "category"),
    [("class", READS[1]), ("key", READS[0]), ("formerly", READS[0])],
)
def test_a_process_that_dies_before_the_handler_is_called_is_counted_too(
    connection, store, database_url, tmp_path, monkeypatch, code, category
):
    """A message that kills its process while it is decoded is given up unread."""
    monkeypatch.setenv("POISON_CODE", code)
    poison = Poison(tmp_path, bad=f"{code}_exits")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        dead = started.wait_for("message_dead", category=category)
        drained(connection, started)
        assert started.stop() == 0
    assert (dead["reason"], dead["attempts"]) == ("process_died", 3)
    assert poison.calls("bad") == 4
    assert [letter[1:] for letter in letters(connection)] == [
        ("dead", "process_died", 3),
        ("parked", "parked", 0),
    ]
    assert event_types(store) == ["Opened", "Deposited"]
    assert event_types(store, "456") == ["Opened", "Deposited"]
    assert broken(connection) == {}


@dataclass(frozen=True)
class Checked:
    check_id: str
    account_id: str
    amount: Decimal

    def __post_init__(self):
        seen.append(self)


seen: list[Checked] = []


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize("once", [None, StateBased()])
def test_a_message_that_ended_processes_is_given_up_undecoded(connection, store, careful, once):
    """A message that ended processes is given up undecoded, however it would be handled."""
    component = Component("purse", entity=Purse, id="account_id")
    component.reserve(Checked, key="check_id")
    component.handle(Checked, once=once)(lambda *_: None)
    data = {"accountId": "123", "checkId": "c1", "amount": 1}
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Checked', %s)",
        ["purse:command-random", Jsonb(data)],
    )
    claimed = batch(connection, component.command_category, component)
    given_up = {1: (process_died("it", 3), 3)}
    seen.clear()
    result = claimed.run(1, careful=careful, policy=FailurePolicy(given_up=given_up))
    (letter,) = result.letters
    assert (letter.failure.reason, letter.attempts) == ("process_died", 3)
    assert letter.entity == "purse-123"
    assert seen == []


def test_the_count_goes_on_in_another_process(connection, store, database_url, tmp_path):
    """Attempts are counted across processes."""
    poison = Poison(tmp_path, bad="kill")
    write_two_accounts(store)
    with start(database_url, poison, "--only", "commands") as started:
        drained_commands(connection, started)
        assert started.stop() == 0
    for _ in range(4):
        with start(database_url, poison, "--only", "reserved") as started:
            assert started.process.wait(PATIENCE) == -signal.SIGKILL
    with start(database_url, poison, "--only", "reserved") as started:
        started.wait_for("message_dead", reason="process_died", attempts=3)
        drained(connection, started)
        assert started.stop() == 0
    assert poison.calls("bad") == 4
    assert broken(connection) == {}


def test_a_process_that_dies_in_a_retry_is_counted_too(connection, store, database_url, tmp_path):
    """A process that dies in a retry counts, and the parked messages stay in order."""
    poison = Poison(tmp_path, bad="raise")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        started.wait_for("message_dead", reason="handler")
        drained(connection, started)
        poison.set(d3="kill")
        retry(database_url, "retry", "--all")
        started.wait_for("message_dead", reason="process_died", attempts=3)
        assert [letter[:3] for letter in letters(connection)] == [
            ("bad", "handled", "handler"),
            ("d3", "dead", "process_died"),
        ]
        poison.set()
        started.forget()  # the retry of "bad" may have been logged by itself
        retry(database_url, "retry", "--entity", "account-123")
        started.wait_for("dead_letters_retried", handled=1)
        assert started.stop() == 0
    assert event_types(store) == ["Opened", *["Deposited"] * 3]
    assert broken(connection) == {}


BAD = [
    ("Deposit", None, "undecodable"),
    ("Deposit", [1], "undecodable"),
    ("Rename", {}, "unknown_type"),
    (
        "Close",
        {"accountId": "", "time": "2026-01-01T00:00:00Z"},
        "key",
    ),
]


@pytest.mark.parametrize(("type_", "data", "reason"), BAD)
def test_a_message_that_can_never_be_handled_is_dead_at_once(
    connection, store, database_url, tmp_path, type_, data, reason
):
    """A message that can never be handled is dead at once, without splitting its batch."""
    store.write([open_(), deposit("d1")], COMMANDS)
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s)",
        [COMMANDS, type_, None if data is None else Jsonb(data)],
    )
    store.write([open_("456"), deposit("e1", account="456")], OTHER)
    store.write(deposit("d3"), COMMANDS)
    with start(database_url, Poison(tmp_path)) as started:
        dead = started.wait_for("message_dead", category=READS[0])
        committed = started.wait_for("batch_committed", category=READS[0])
        drained(connection, started)
        assert started.stop() == 0
        assert "batch_failed" not in started.log
    assert (dead["reason"], dead["attempts"]) == (reason, 1)
    assert (committed["dead"], committed["parked"]) == (1, 1)
    assert event_types(store) == ["Opened", "Deposited"]
    assert event_types(store, "456") == ["Opened", "Deposited"]
    assert broken(connection) == {}


def test_parked_messages_stay_parked_over_a_restart(connection, store, database_url, tmp_path):
    """Parked messages stay parked over a restart."""
    poison = Poison(tmp_path, bad="raise")
    write_two_accounts(store)
    with start(database_url, poison) as started:
        started.wait_for("message_dead")
        drained(connection, started)
        assert started.stop() == 0
    poison.set()
    store.write(deposit("d4"), COMMANDS)
    store.write(deposit("e2", account="456"), OTHER)
    with start(database_url, poison) as started:
        started.wait_for("batch_committed", parked=1, handled=1)
        assert started.stop() == 0
    assert event_types(store) == ["Opened", "Deposited"]
    assert event_types(store, "456") == ["Opened", *["Deposited"] * 2]
    assert broken(connection) == {}


def test_the_others_of_a_group_retry_what_its_dead_member_held(
    connection, store, database_url, tmp_path
):
    """Another member retries the letters of a dead member's partition."""
    poison = Poison(tmp_path, bad="raise")
    write_two_accounts(store)
    with start(database_url, poison, "--only", "commands") as commands:
        drained_commands(connection, commands)
        assert commands.stop() == 0
    with start(database_url, poison, "--only", "reserved", "--partitions", "4") as first:
        first.wait_for("message_dead")
        drained(connection, first)
        with start(database_url, poison, "--only", "reserved") as second:
            second.wait_for("consumer_started")
            poison.set()
            first.process.kill()
            retry(database_url, "retry", "--all")
            until(lambda: {state for _, state, *_ in letters(connection)} == {"handled"})
            assert second.stop() == 0
    assert event_types(store) == ["Opened", *["Deposited"] * 3]


def test_a_consumer_can_stop_at_a_message(connection, store, database_url, tmp_path):
    """With `--stop-on-error` the consumer passes nothing and exits with status 1."""
    poison = Poison(tmp_path, bad="raise")
    write_two_accounts(store)
    with start(database_url, poison, "--stop-on-error") as started:
        assert started.process.wait(PATIENCE) == 1
        assert "raised ValueError in poisoned" in started.log
    assert letters(connection) == []
    assert event_types(store) == ["Opened", "Deposited"]
