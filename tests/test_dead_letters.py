"""Dead letters: what is recorded, what is parked behind them, and what people can do with them."""

import json
import os
import pty
import subprocess
import threading

import pytest
from psycopg import Cursor
from psycopg.types.json import Jsonb

import consumers
from consumers.dead_letters import administration
from consumers.dead_letters.failure import Failure, Reason, digest_of
from consumers.dead_letters.letters import DeadLetters, LettersChanged
from consumers.dead_letters.stored_letters import LetterError, Selection
from consumers.decisions.blocking import FailurePolicy
from consumers.loop.consumer import Consumer
from consumers.runtime.backoff import Backoff
from consumers.runtime.stopping import Stop
from reservation import Component, follow
from reservation.errors import DeclarationError, PositionLostError
from reservation.messages.message import followed_id
from reservation.postgres.connection import connect
from tests.bank import claim, drain, new_batch, session
from tests.commands import invoke_cli
from tests.controls import deposit
from tests.processes import PATIENCE, command_line

CATEGORY = "till:command"


class Till:
    """A component that handles deposits directly and fails at those in `failing`."""

    def __init__(self, connection, attempts=3):
        self.connection = connection
        self.failing = set()
        self.calls = []
        self.before = lambda command: None
        self.component = Component("till", id="account_id", attempts=attempts)
        self.component.handle(type(deposit()))(self.handle)

    def handle(self, command, entity, context):
        self.calls.append(command.deposit_id)
        self.before(command)
        if command.deposit_id in self.failing:
            raise ValueError(f"secret {command.amount}")
        return follow(command, Paid)

    def send(self, store, *deposits):
        """Write deposits, each named by its account's number and a letter, as in 1a."""
        for name in deposits:
            store.write(deposit(name, account=name[0]), f"{CATEGORY}-{name[0]}")

    def run(self, database_url, done, **options):
        """Run the consumer until something is done."""
        stop = Stop()
        with session(database_url) as opened:
            consumer = Consumer(opened, self.component, CATEGORY, **options)
            running = threading.Thread(target=consumer.run, args=[stop])
            running.start()
            try:
                while not done():
                    assert running.is_alive()
                    running.join(0.02)
            finally:
                stop.request()
                running.join(PATIENCE)

    def drain(self, database_url, **options):
        """Handle all messages and retries."""
        consumers.drain(self.component, database_url, **options)

    def paid(self, store):
        """Return the deposits that were paid, in order."""
        return [json.loads(event.data)["depositId"] for event in store.read_category("till")]

    def states(self):
        """Return the state of each letter, by its deposit."""
        rows = self.connection.execute(
            "SELECT m.data->>'depositId', l.state FROM reservation.dead_letters l "
            "JOIN message_store.messages m USING (global_position) ORDER BY global_position"
        )
        return dict(rows.fetchall())

    def position(self, name):
        """Return the global position of a deposit's command."""
        (position,) = self.connection.execute(
            "SELECT global_position FROM message_store.messages "
            "WHERE message_store.category(stream_name) = 'till:command' "
            "AND data->>'depositId' = %s",
            [name],
        ).fetchone()
        return position


class Paid(type(deposit())):
    """The event of a deposit."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let no test wait between two attempts."""
    monkeypatch.setattr(Backoff, "next", lambda self: 0.0)


@pytest.fixture
def till(connection):
    return Till(connection)


def retry(connection, *positions, **selection):
    return administration.retry(connection, Selection(**selection), positions)


def discard(connection, *positions):
    return administration.discard(connection, Selection(), positions)


def test_a_letter_records_the_fault_and_no_payload(connection, store, till, database_url):
    """A letter records the fault, with one digest for each place, and nothing of the payload."""
    till.failing = {"1a", "2a"}
    till.send(store, "1a", "2a")
    till.drain(database_url)
    letter, other = administration.find(connection, Selection())
    assert (letter.consumer, letter.category, letter.entity, letter.state) == (
        "till",
        CATEGORY,
        "till-1",
        "dead",
    )
    assert (letter.reason, letter.attempts, letter.type) == ("handler", 3, "Deposit")
    assert letter.process.endswith(f":{os.getpid()}")
    assert "raised ValueError in Till.handle (tests/test_dead_letters.py:" in letter.error
    assert "secret" not in f"{letter}{other}"
    assert letter.digest == other.digest
    assert till.calls.count("1a") == 4  # once in a batch with the other


def test_two_places_have_different_digests():
    """The digest depends on the kind of the exception and the frames it passed."""

    def failed(kind):
        try:
            raise kind("text")
        except (ValueError, KeyError) as error:
            return error

    digests = {digest_of(failed(kind)) for kind in (ValueError, KeyError, ValueError)}
    assert len(digests) == 2


def test_a_component_declares_the_number_of_attempts(connection, store, database_url):
    """A component declares the number of attempts, at least one."""
    till = Till(connection, attempts=1)
    till.failing = {"1a"}
    till.send(store, "1a")
    till.drain(database_url)
    (letter,) = administration.find(connection, Selection())
    assert letter.attempts == 1
    with pytest.raises(DeclarationError, match="tried at least once"):
        Component("till", id="account_id", attempts=0)


class Counting(Cursor):
    """A cursor that counts the statements of its connection."""

    counted = 0

    def execute(self, *arguments, **options):
        """Count and execute."""
        type(self).counted += 1
        return super().execute(*arguments, **options)


def test_parking_holds_within_a_batch_in_a_constant_number_of_statements(
    connection, store, till, monkeypatch
):
    """Parking takes a constant number of statements, and none where nothing is dead."""
    counts = []
    monkeypatch.setattr(Counting, "counted", 0)
    positions = claim(connection, "till", CATEGORY)
    batch = new_batch(connection, till.component, CATEGORY)
    till.send(store, "y1")
    batch.run(positions, 100)
    for round_, accounts in enumerate(["1", "23456789"]):
        for account in accounts:
            till.send(store, f"{account}{round_}")
            connection.execute(
                "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Odd', '{}')",
                [f"{CATEGORY}-{account}"],
            )
            till.send(store, *[f"{account}{letter}" for letter in "abc"])
        connection.cursor_factory, Counting.counted = Counting, 0
        result = batch.run(positions, 100, policy=FailurePolicy(set()))
        counts.append(Counting.counted)
        connection.cursor_factory = Cursor
        each = len(accounts)
        assert result.counts == {"handled": each, "dead": each, "parked": 3 * each}
        assert result.blocked == {f"till-{account}" for account in accounts}
    till.send(store, "x1")
    connection.cursor_factory, Counting.counted = Counting, 0
    batch.run(positions, 100, policy=FailurePolicy(set(result.blocked)))
    assert counts == [Counting.counted + 3] * 2


def test_parked_messages_follow_in_order_with_those_that_arrived_meanwhile(
    connection, store, till, database_url
):
    """After a retry the parked messages follow in order, with those that arrived meanwhile."""
    till.failing = {"1a"}
    till.send(store, "1a", "2a", "1b", "2b")
    till.drain(database_url)
    assert till.states() == {"1a": "dead", "1b": "parked"}
    assert till.paid(store) == ["2a", "2b"]
    till.failing = set()
    sent = ["1a", "1b"]

    def more(command):  # whenever one is handled, another one of the entity arrives
        if len(sent) < 30:
            sent.append(f"1{len(sent)}")
            with connect(database_url, autocommit=True) as other:
                type(store)(other).write(deposit(sent[-1], account="1"), f"{CATEGORY}-1")

    till.before = more
    assert len(retry(connection, till.position("1a")).letters) == 1
    till.run(database_url, lambda: len(till.paid(store)) == 32, batch_size=3)
    assert till.paid(store)[2:] == sent
    assert set(till.states().values()) == {"handled"}


def test_a_letter_is_dead_again_after_another_failure(connection, store, till, database_url):
    """A retry that fails again is dead with its new reason; those parked before it are handled."""
    till.failing = {"1a", "2a"}
    till.send(store, "1a", "1b", "1c", "2a", "2b")
    till.drain(database_url)
    till.failing = {"1b", "2a"}
    assert retry(connection).waiting == 3
    till.drain(database_url)
    assert till.states() == {
        "1a": "handled",
        "1b": "dead",
        "1c": "parked",
        "2a": "dead",
        "2b": "parked",
    }
    assert till.paid(store) == ["1a"]
    letters = {
        letter.global_position: letter for letter in administration.find(connection, Selection())
    }
    assert letters[till.position("1b")].reason == "handler"
    assert letters[till.position("1b")].attempts == 3


def test_a_discard_unblocks_the_entity(connection, store, till, database_url):
    """A discard is recorded, and what was parked behind the letter is handled."""
    till.failing = {"1a"}
    till.send(store, "1a", "1b", "1c")
    till.drain(database_url)
    assert discard(connection, till.position("1a")).waiting == 2
    till.drain(database_url)
    assert till.states() == {"1a": "discarded", "1b": "handled", "1c": "handled"}
    assert till.paid(store) == ["1b", "1c"]


def test_a_discard_while_a_batch_parks_leaves_nothing_behind_that_nobody_handles(
    connection, store, till, database_url
):
    """What a batch parks while a discard commits is handled all the same."""
    till.failing = {"1a"}
    till.send(store, "1a")
    positions = claim(connection, "till", CATEGORY)
    batch = new_batch(connection, till.component, CATEGORY)
    gone = (Failure(Reason.HANDLER, "it failed"), 3)
    dead = batch.run(positions, 1, policy=FailurePolicy(given_up={till.position("1a"): gone}))
    discard(connection, till.position("1a"))
    till.send(store, "1b", "1c")
    parked = batch.run(positions, 2, policy=FailurePolicy(blocked=set(dead.blocked)))
    assert parked.counts["parked"] == 2
    assert till.states() == {"1a": "discarded", "1b": "retry", "1c": "parked"}
    till.drain(database_url)
    assert till.paid(store) == ["1b", "1c"]


def due(connection, positions):
    return DeadLetters("till", CATEGORY).line_up(
        connection, positions.partitions, positions.size, 10
    )


def test_a_letter_that_is_discarded_while_it_is_retried_has_no_effect(
    connection, store, till, database_url
):
    """Of a discard and a retry at the same time, the first to commit decides."""
    till.failing = {"1a"}
    till.send(store, "1a", "1b")
    till.drain(database_url)
    till.failing = set()
    retry(connection, till.position("1a"))
    positions = claim(connection, "till", CATEGORY)
    letters = due(connection, positions)

    def somebody(command):
        with connect(database_url, autocommit=True) as other:
            administration.discard(other, Selection(), [till.position("1a")])
        till.before = lambda command: None

    till.before = somebody
    with pytest.raises(LettersChanged):
        new_batch(connection, till.component, CATEGORY).retry_transaction.run(positions, letters)
    assert till.paid(store) == []
    till.drain(database_url)
    assert till.paid(store) == ["1b"]
    with pytest.raises(LetterError, match="discarded already"):
        discard(connection, till.position("1a"))


def test_a_partition_that_moved_takes_its_letters_along(connection, store, till, database_url):
    """A former holder that wakes up in the middle of a retry commits nothing."""
    till.failing = {"1a"}
    till.send(store, "1a", "1b")
    till.drain(database_url)
    till.failing = set()
    retry(connection, till.position("1a"))
    former = claim(connection, "till", CATEGORY)
    letters = due(connection, former)
    assert [letter.entity for letter in letters] == ["till-1"] * 2
    claim(connection, "till", CATEGORY)
    with pytest.raises(PositionLostError):
        new_batch(connection, till.component, CATEGORY).retry_transaction.run(former, letters)
    assert till.paid(store) == []
    till.drain(database_url)
    assert till.paid(store) == ["1a", "1b"]


def test_a_redelivered_message_keeps_its_letter(connection, store, till, database_url):
    """After a position is set back, blocked entities stay blocked and letters stay as they are."""
    till.failing = {"1a", "2a"}
    till.send(store, "1a", "1b", "2a")
    till.drain(database_url)
    till.failing = {"1a"}
    retry(connection, entity="till-2")
    till.drain(database_url)
    before = till.states()
    connection.execute("UPDATE reservation.positions SET position = 0")
    till.drain(database_url)
    assert till.states() == before == {"1a": "dead", "1b": "parked", "2a": "handled"}
    assert till.paid(store) == ["2a"]


def test_an_id_that_is_in_use_is_a_dead_letter_and_no_endless_race(
    connection, store, till, database_url
):
    """An id that is in use becomes a dead letter instead of an endless retry."""
    till.send(store, "1a", "2a")
    (id_,) = connection.execute("SELECT id FROM message_store.messages LIMIT 1").fetchone()
    store.write(deposit("x"), "elsewhere-1", id=followed_id(str(id_), "till-1", 0))
    till.drain(database_url)
    (letter,) = administration.find(connection, Selection())
    assert (letter.reason, letter.attempts) == ("write", 3)
    assert till.paid(store) == ["2a"]


def test_a_message_without_an_entity_blocks_nothing_and_can_be_retried(
    connection, store, till, database_url
):
    """A message that cannot be decoded and has no stream id blocks nothing and can be retried."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', '[1]')",
        [CATEGORY],
    )
    till.send(store, "1a")
    till.drain(database_url)
    (letter,) = administration.find(connection, Selection())
    assert (letter.entity, letter.reason) == (None, "undecodable")
    assert till.paid(store) == ["1a"]
    retry(connection, letter.global_position)
    till.drain(database_url)
    (again,) = administration.find(connection, Selection())
    assert (again.state, again.changed_at > letter.changed_at) == ("dead", True)


def test_a_message_that_is_gone_from_the_store_stays_dead(connection, store, till, database_url):
    """A retry of a message that was deleted from the store says so, and it can be discarded."""
    till.failing = {"1a"}
    till.send(store, "1a", "1b")
    till.drain(database_url)
    position = till.position("1a")
    connection.execute("DELETE FROM message_store.messages WHERE global_position = %s", [position])
    retry(connection, position)
    till.drain(database_url)
    letter = administration.find(connection, Selection())[0]
    assert (letter.state, letter.reason) == ("dead", "undecodable")
    assert "is no longer in the store" in letter.error
    discard(connection, position)
    till.drain(database_url)
    assert till.paid(store) == ["1b"]


def test_a_conflict_is_recorded_and_cannot_be_retried(connection, store):
    """A conflict is recorded, blocks nothing and cannot be retried."""
    store.write([deposit("d1", "1"), deposit("d1", "2"), deposit("d2")], "account:command-123")
    drain(connection)
    (letter,) = administration.find(connection, Selection())
    assert (letter.reason, letter.entity, letter.state) == ("conflict", None, "dead")
    with pytest.raises(LetterError, match="is a conflict"):
        retry(connection, letter.global_position)
    assert retry(connection).letters == []
    discard(connection, letter.global_position)
    assert administration.find(connection, Selection()) == []


# The command line.


PLANTED = "0190163d-8694-739b-aea5-966c26f8ad91"


def plant(connection, position, **columns):
    """Write a letter of the command Odd, whose names hold control characters."""
    values = {
        "consumer": "till",
        "category": CATEGORY,
        "global_position": position,
        "message_id": PLANTED,
        "stream_name": f"{CATEGORY}-1\x1b[31m",
        "type": "Odd\x07",
        "entity": "till-1",
        "state": "dead",
        "reason": "unknown_type",
        "error": "Nothing handles Odd",
        "attempts": 1,
        "process": "host:1",
    } | columns
    names = ", ".join(values)
    marks = ", ".join(f"%({name})s" for name in values)
    connection.execute(f"INSERT INTO reservation.dead_letters ({names}) VALUES ({marks})", values)


def cli(database_url, *arguments, status=0):
    done = invoke_cli(
        "dead-letters", *arguments, env={"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"}
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_list_is_for_people_and_for_machines(connection, database_url):
    """The list escapes stored text on a terminal, and is available as JSON."""
    assert "no dead letters" in cli(database_url, "list")
    plant(connection, 1)
    plant(connection, 2, state="parked", reason="parked", error=None)
    plant(connection, 3, state="handled")
    shown = cli(database_url, "list")
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "Odd\\x07" in shown.replace("\n", "")
    listed = json.loads(cli(database_url, "list", "--json"))["deadLetters"]
    assert [(row["globalPosition"], row["state"], row["behind"]) for row in listed] == [
        (1, "dead", None),
        (2, "parked", 1),
    ]
    assert len(json.loads(cli(database_url, "list", "--all", "--json"))["deadLetters"]) == 3
    assert "no dead letters" in cli(database_url, "list", "--consumer", "other")
    assert "no dead letters" in cli(database_url, "list", "--category", "other")
    assert "no dead letters" in cli(database_url, "list", "--entity", "till-2")


def test_data_is_shown_only_when_it_is_asked_for(connection, database_url):
    """A letter's metadata is always shown, its data only on request."""
    connection.execute(
        "SELECT message_store.write_message(%s, %s, 'Odd', %s, %s)",
        [
            PLANTED,
            f"{CATEGORY}-1",
            Jsonb({"a": "secret\x1b"}),
            Jsonb({"properties": {"trace": "t1"}}),
        ],
    )
    plant(connection, 1)
    for arguments in ([], ["--json"]):
        shown = cli(database_url, "show", "1", *arguments)
        assert "secret" not in shown
        assert "t1" in shown
        shown = cli(database_url, "show", "1", "--data", *arguments)
        assert "secret" in shown
        assert "\x1b" not in shown
    assert json.loads(shown)["message"]["data"] == {"a": "secret\x1b"}
    plant(connection, 99)
    assert "no longer in the store" in cli(database_url, "show", "99")


def test_a_position_with_letters_of_two_consumers_is_ambiguous(connection, database_url):
    """The error for a position with letters of two consumers names both."""
    plant(connection, 1)
    plant(connection, 1, consumer="other")
    error = cli(database_url, "retry", "1", status=2)
    assert "till of till:command, other of till:command" in error.replace("\n", " ") or (
        "other of till:command, till of till:command" in error
    )
    assert "--consumer" in error
    cli(database_url, "retry", "1", "--consumer", "other")
    states = connection.execute(
        "SELECT consumer, state FROM reservation.dead_letters ORDER BY consumer"
    ).fetchall()
    assert states == [("other", "retry"), ("till", "dead")]


def test_a_retry_prints_what_happens_next(connection, database_url):
    """A retry prints what happens next, and why a letter cannot be retried."""
    plant(connection, 1, attempts=3)
    plant(connection, 2, state="parked", reason="parked")
    assert "parked behind global position 1" in cli(database_url, "retry", "2", status=2)
    assert "no dead letter at global position 7" in cli(database_url, "retry", "7", status=2)
    assert "Give global positions" in cli(database_url, "retry", status=2)
    assert "Give global positions" in cli(database_url, "retry", "1", "--all", status=2)
    assert "has no dead letter" in cli(database_url, "retry", "--entity", "till-9", status=2)
    printed = cli(database_url, "retry", "--entity", "till-1")
    assert "1 dead letter, and 1 parked behind" in printed
    assert "within a second or two" in printed
    assert "Nothing was changed" in cli(database_url, "retry", "1")
    rows = connection.execute("SELECT state, attempts FROM reservation.dead_letters").fetchall()
    assert sorted(rows) == [("parked", 1), ("retry", 0)]


def test_a_discard_asks_first(connection, database_url):
    """Without a terminal a discard needs `--yes`."""
    plant(connection, 1)
    plant(connection, 2, state="parked", reason="parked")
    assert "--yes" in cli(database_url, "discard", "1", status=2)
    changed = json.loads(cli(database_url, "discard", "1", "--yes", "--json"))
    assert (changed["changed"][0]["state"], changed["parked"]) == ("discarded", 1)
    rows = connection.execute("SELECT state FROM reservation.dead_letters").fetchall()
    assert sorted(rows) == [("discarded",), ("retry",)]
    assert "discarded already" in cli(database_url, "discard", "1", "--yes", status=2)


def test_a_discard_that_is_not_confirmed_changes_nothing(connection, database_url):
    """On a terminal a discard asks, and changes nothing unless it is confirmed."""
    plant(connection, 1)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command_line("dead-letters", "discard", "1", "--database-url", database_url),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        os.write(ours, b"n\n")
        assert process.wait(PATIENCE) == 1
    os.close(ours)
    rows = connection.execute("SELECT state FROM reservation.dead_letters").fetchall()
    assert rows == [("dead",)]


def test_what_was_done_is_kept_with_its_reason(connection, database_url):
    """`show` prints who retried and discarded, when and why, the last one first in JSON."""
    plant(connection, 1)
    cli(database_url, "retry", "1", "--reason", "the provider\x1b[31m is back")
    cli(database_url, "discard", "1", "--yes")
    shown = json.loads(cli(database_url, "show", "1", "--json"))["decisions"]
    assert [(one["decision"], one["formerState"], one["reason"]) for one in shown] == [
        ("discard", "retry", None),
        ("retry", "dead", "the provider\x1b[31m is back"),
    ]
    user = connection.info.user
    assert {(one["decidedBy"], one["onBehalfOf"]) for one in shown} == {(user, None)}
    text = cli(database_url, "show", "1")
    assert f"retry, by {user} at " in text
    assert "\x1b" not in text
    cli(database_url, "discard", "1", "--yes", status=2)
    assert len(json.loads(cli(database_url, "show", "1", "--json"))["decisions"]) == 2
