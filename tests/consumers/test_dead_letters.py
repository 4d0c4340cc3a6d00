"""Dead letters: what is recorded, what is parked behind them, and what a retry brings about."""

from collections import Counter

import pytest

from reservation import Component
from reservation.errors import DeclarationError
from tests.apps.bank import drain
from tests.consumers.builders import (
    TILLS,
    Till,
    dead_letters,
    decide,
    letters,
    read_again,
    reasons,
    statements,
    write_raw,
)
from tests.support.consuming import hosted, until
from tests.support.controls import deposit


@pytest.fixture
def till(connection):
    return Till(connection)


def test_a_letter_records_the_fault_and_no_payload(connection):
    """A letter has the place and a digest of the fault, and nothing of the message or its error."""
    till = Till(connection, attempts=2)
    till.failing = {"1a", "2a", "3a"}
    till.error = lambda text: (KeyError if till.calls[-1] == "3a" else ValueError)(text)
    till.send("1a", "2a", "3a")
    till.drain()
    one, like_it, other = decide(connection, "list")["deadLetters"]
    assert (one["consumer"], one["category"], one["entity"]) == ("till", TILLS, "till-1")
    assert (one["state"], one["reason"], one["attempts"]) == ("dead", "handler", 2)
    assert "raised ValueError in Till.handle (tests/consumers/builders.py:" in one["error"]
    assert "secret" not in str(letters(connection))
    assert one["digest"] == like_it["digest"] != other["digest"]


def test_a_message_is_tried_at_least_once():
    """A component cannot declare no attempts."""
    with pytest.raises(DeclarationError, match="tried at least once"):
        Component("till", id="account_id", attempts=0)


def test_a_handler_that_fails_twice_is_tried_a_third_time(connection):
    """A message that succeeds at its last attempt is handled, and then those behind it."""
    till = Till(connection, attempts=3)
    till.failing = {"1a"}
    till.before = lambda command, context: till.calls.count("1a") > 2 and till.failing.clear()
    till.send("1a", "1b")
    assert till.drain() == {"handled": 2}
    assert till.calls == ["1a", "1a", "1a", "1b"]
    assert till.states() == {"1a": "handled", "1b": "handled"}


def test_letters_take_no_statement_of_their_own(connection, till, monkeypatch):
    """A batch has about as many statements for 200 dead and parked messages as for two."""
    counted = []
    for tills in (range(1), range(1, 101)):
        for n in tills:
            write_raw(connection, f"{TILLS}-{n}", "Odd", {})
        till.send(*(f"{n}a" for n in tills))
        counted.append(statements(monkeypatch, till.drain))
        assert Counter(till.states().values())["parked"] == tills.stop
    few, many = counted
    assert many < few + 20  # each look for new messages, which takes place after a time, is one


@pytest.mark.parametrize("batch_size", [1, 3, 1000])
def test_parked_messages_follow_in_order_with_those_that_arrived_meanwhile(till, batch_size):
    """After a retry an entity's messages are handled in the order of the log, new ones too."""
    till.failing = {"1a"}
    till.send("1a", "2a", "1b", "2b")
    till.drain(batch_size=batch_size)
    assert till.states() == {"1a": "dead", "1b": "parked"}
    assert till.paid() == ["2a", "2b"]
    till.failing = set()
    sent = ["1a", "1b"]

    def send_another(command, context):
        if len(sent) < 8:
            sent.append("1" + "abcdefgh"[len(sent)])
            till.send(sent[-1])

    till.before = send_another
    till.retry("1a")
    till.drain(batch_size=batch_size)
    assert till.paid()[2:] == sent
    assert set(till.states().values()) == {"handled"}


def test_a_letter_is_dead_again_after_another_failure(till):
    """A retry that fails is dead again; those before it are handled, those behind stay parked."""
    till.failing = {"1a", "2a"}
    till.send("1a", "1b", "1c", "2a", "2b")
    till.drain()
    till.failing = {"1b", "2a"}
    assert till.retry()["parked"] == 3
    till.drain()
    behind = {"1c": "parked", "2b": "parked"}
    assert till.states() == {"1a": "handled", "1b": "dead", "2a": "dead"} | behind
    assert till.paid() == ["1a"]
    assert (till.letter("1b")["reason"], till.letter("1b")["attempts"]) == ("handler", 1)


def test_a_discard_unblocks_the_entity(till):
    """What was parked behind a letter that is discarded is handled."""
    till.failing = {"1a"}
    till.send("1a", "1b", "1c")
    till.drain()
    assert till.discard("1a")["parked"] == 2
    till.drain()
    assert till.states() == {"1a": "discarded", "1b": "handled", "1c": "handled"}
    assert till.paid() == ["1b", "1c"]


def test_what_a_batch_parks_while_a_discard_commits_is_handled(till):
    """Nothing stays parked behind a letter that was discarded while the batch ran."""
    till.failing = {"1a"}
    till.send("1a")
    till.drain()
    till.send("2a", "1b", "1c")
    till.before = lambda command, context: command.pay_id == "2a" and till.discard("1a")
    till.drain()
    till.drain()
    assert till.paid() == ["2a", "1b", "1c"]


def test_large_letters_are_retried_in_several_sets(connection, till):
    """A consumer does not read all messages of many letters at once."""
    names = [f"{n}{letter}" for letter in "ab" for n in range(1, 6)]
    till.failing = set(names)
    till.send(*names)
    till.drain()
    connection.execute(
        "UPDATE message_store.messages"
        " SET metadata = jsonb_build_object('large', ("
        "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 10000) AS n))"
    )
    till.failing, transactions = set(), set()
    till.before = lambda command, context: transactions.add(
        context.connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    )
    till.retry()
    till.drain()
    assert till.paid() == names
    assert len(transactions) >= 2


def test_a_letter_that_is_discarded_while_it_is_retried_has_no_effect(till):
    """Of a discard and a retry at the same time, the first to commit decides."""
    till.failing = {"1a"}
    till.send("1a", "1b")
    till.drain()
    till.failing = set()
    till.retry("1a")
    till.before = lambda command, context: command.pay_id == "1a" and till.discard("1a")
    till.drain()
    assert till.paid() == ["1b"]
    assert till.states() == {"1a": "discarded", "1b": "handled"}


def test_a_consumer_that_lost_its_partition_during_a_retry_commits_nothing(connection, till):
    """Another consumer takes the letters over with the partition, and each is handled once."""
    till.failing = {"1a"}
    till.send("1a", "1b")
    till.drain()
    till.failing = set()
    till.retry("1a")
    other = Till(connection)

    def take_over(command, context):
        till.before = lambda command, context: None
        drain(connection, other.component)

    till.before = take_over
    till.drain()
    assert other.calls == ["1a", "1b"]
    assert till.paid() == ["1a", "1b"]


def test_a_redelivered_message_keeps_its_letter(connection, till):
    """After a position is set back, blocked entities stay blocked and letters stay as they are."""
    till.failing = {"1a", "2a"}
    till.send("1a", "1b", "2a")
    till.drain()
    till.failing = {"1a"}
    till.retry("2a")
    till.drain()
    before = till.states()
    read_again(connection)
    till.drain()
    assert till.states() == before == {"1a": "dead", "1b": "parked", "2a": "handled"}
    assert till.paid() == ["2a"]


def test_ids_that_a_sender_has_taken_hold_up_no_other_message(connection, till):
    """Each message whose event id is in use is found by it, and dead at the first attempt."""
    taken = [f"{n}a" for n in range(20)]
    till.send(*taken)
    till.drain()
    # As if a sender had written messages with these ids to a stream of its own before.
    connection.execute(
        "UPDATE message_store.messages SET stream_name = 'elsewhere-' || id WHERE type = 'Paid'"
    )
    read_again(connection)
    till.send("20a", "21a")
    till.calls.clear()
    till.drain()
    assert reasons(connection) == [("dead", "id_taken", 1)] * len(taken)
    assert till.paid() == ["20a", "21a"]
    # A batch that lost the race is decided on twice, and batches grow again by doubling.
    assert max(Counter(till.calls).values()) <= 8


def test_a_message_without_an_entity_blocks_nothing_and_can_be_retried(connection, till):
    """Nothing waits behind a message that names its entity neither in its data nor its stream."""
    position = write_raw(connection, TILLS, "Pay", [1])
    till.send("1a")
    till.drain()
    (letter,) = letters(connection)
    assert (letter["entity"], letter["reason"]) == (None, "undecodable")
    assert till.paid() == ["1a"]
    decide(connection, "retry", str(position))
    till.drain()
    (again,) = letters(connection)
    assert again["state"] == "dead"
    assert again["changed_at"] > letter["changed_at"]


def test_a_message_that_is_gone_from_the_store_stays_dead(connection, till):
    """A retry of a message that was deleted says so, and its letter can be discarded."""
    till.failing = {"1a"}
    till.send("1a", "1b")
    till.drain()
    position = str(till.position("1a"))
    connection.execute("DELETE FROM message_store.messages WHERE global_position = %s", [position])
    decide(connection, "retry", position)
    till.drain()
    letter = letters(connection)[0]
    assert (letter["state"], letter["reason"]) == ("dead", "undecodable")
    assert "is no longer in the store" in letter["error"]
    decide(connection, "discard", position, "--yes")
    till.drain()
    assert till.paid() == ["1b"]


def test_a_conflict_blocks_nothing_and_cannot_be_retried(connection, store):
    """A conflict is recorded without an entity, and can only be discarded."""
    store.write([deposit("d1", "1"), deposit("d1", "2"), deposit("d2")], "account:command-123")
    assert drain(connection).counts["handled"] == 2
    (letter,) = letters(connection)
    assert (letter["reason"], letter["entity"], letter["state"]) == ("conflict", None, "dead")
    position = str(letter["global_position"])
    assert "is a conflict" in dead_letters(connection, "retry", position, status=2)
    assert decide(connection, "retry", "--all")["changed"] == []
    decide(connection, "discard", position, "--yes")
    assert reasons(connection) == [("discarded", "conflict", 1)]


@pytest.mark.parametrize("retried", [True, False])
def test_what_a_cut_connection_rolled_back_is_tried_in_smaller_sets(till, database_url, retried):
    """New messages and letters alike: the server may not bear the whole, but its parts."""
    names = [f"{n}a" for n in range(8)]
    if retried:
        till.failing = set(names)
    till.send(*names)
    if retried:
        till.drain()
        till.failing = set()
        till.retry()
    seen, cuts = Counter(), []

    def cut_at_the_third(command, context):
        query = "SELECT pg_backend_pid(), pg_current_xact_id()::text"
        ((pid, transaction),) = context.connection.execute(query).fetchall()
        seen[transaction] += 1
        if seen[transaction] == 3:
            cuts.append(pid)
            till.connection.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])

    till.before = cut_at_the_third
    with hosted(till.component, database_url) as thread:
        until(lambda: len(till.paid()) == 8, thread)
    assert len(cuts) >= 2
    assert not retried or set(till.states().values()) == {"handled"}


def test_a_message_that_can_never_be_handled_is_dead_at_once(connection, till):
    """Its batch is neither split nor rolled back, and only its entity waits."""
    bad = [
        ("Pay", None, "undecodable"),
        ("Pay", {"payId": "x", "tillId": "1", "amount": "a lot"}, "undecodable"),
        ("Rename", {}, "unknown_type"),
        ("Pay", {"payId": "x", "tillId": "", "amount": 1}, "key"),
    ]
    for n, (type_, data, _) in enumerate(bad):
        till.send(f"{n}a")
        write_raw(connection, f"{TILLS}-{n}", type_, data)
        till.send(f"{n}b")
    till.send("9a")
    assert till.drain() == {"handled": 5, "dead": 4, "parked": 4}
    found = reasons(connection)
    assert found[::2] == [("dead", reason, 1) for *_, reason in bad]
    assert found[1::2] == [("parked", "parked", 0)] * 4
    assert till.calls == till.paid() == ["0a", "1a", "2a", "3a", "9a"]


def test_a_retry_tries_as_often_as_before(connection):
    """The attempts of a letter begin anew when it is retried."""
    till = Till(connection, attempts=2)
    till.failing = {"1a"}
    till.send("1a")
    till.drain()
    till.retry("1a")
    till.drain()
    assert till.calls == ["1a"] * (2 + 2)
    assert till.letter("1a")["attempts"] == 2
