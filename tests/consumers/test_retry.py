"""Attempts that wait: policies, `RetryLater`, and messages that hold up their entity alone."""

import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from structlog.testing import capture_logs

from reservation import Component, Retry, RetryLater
from reservation.strategies import Processed, Revisions, StateBased
from tests.consumers.builders import (
    TILLS,
    Paid,
    Pay,
    Till,
    dead_letters,
    decide,
    reasons,
    statements,
    write_raw,
)
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.started import PATIENCE

PATIENT = Retry(attempts=5, first="1h", on=ConnectionError)
SOON = Retry(attempts=1000, first="1ms", most="2ms", on=ConnectionError)


def asking(connection, retry=PATIENT, **options):
    """Return a till that asks a provider, which has no connection for the payments in `failing`."""
    return Till(connection, error=ConnectionError, retry=retry, **options)


@pytest.fixture
def till(connection):
    return asking(connection)


# Waiting


def test_a_message_that_waits_holds_up_its_own_entity_alone(till):
    """Others are handled while a message waits, and later ones of its entity wait behind it."""
    till.failing = {"1a"}
    till.send("1a", "2a", "1b", "3a", "1c")
    assert till.drain() == {"handled": 2, "waiting": 1, "parked": 2}
    till.send("1d", "2b")
    assert till.drain() == {"handled": 1, "parked": 1}
    assert till.states() == {"1a": "waiting", "1b": "parked", "1c": "parked", "1d": "parked"}
    assert till.calls == ["1a", "2a", "3a", "2b"]


def test_what_cannot_be_decoded_is_parked_behind_a_message_that_waits(connection, till):
    """All of a batch is decoded first, and still each message waits for those before it."""
    till.failing = {"1a"}
    till.send("1a")
    write_raw(connection, f"{TILLS}-1", "Odd", {})
    till.send("1b")
    assert till.drain() == {"waiting": 1, "parked": 2}
    till.failing = set()
    till.retry()
    till.drain()
    assert reasons(connection) == [
        ("handled", "handler", 0),
        ("dead", "unknown_type", 1),
        ("parked", "parked", 0),
    ]


def test_once_the_provider_is_back_all_take_effect_in_order(connection, database_url):
    """What waited, and what was parked behind it, is handled by itself, and nothing waits then."""
    till = asking(connection, SOON)
    till.failing = {"1a", "2b"}
    till.send("1a", "2a", "1b", "2b", "1c", "2c")
    with hosted(till.component, database_url) as thread:
        until(lambda: till.calls.count("1a") > 2, thread)
        till.failing = set()
        until(lambda: len(till.paid()) == 6, thread)
    assert [name for name in till.paid() if name[0] == "1"] == ["1a", "1b", "1c"]
    assert [name for name in till.paid() if name[0] == "2"] == ["2a", "2b", "2c"]
    assert set(till.states().values()) == {"handled"}


def test_the_wait_is_in_the_database_and_outlasts_the_process(till):
    """Another process makes the next attempt when it is due, and not before."""
    till.failing = {"1a"}
    till.send("1a", "1b")
    till.drain()
    till.failing = set()
    assert till.drain() == {}
    assert till.calls == ["1a"]
    till.let_next_attempts_be_due()
    till.drain()
    assert till.paid() == ["1a", "1b"]


def test_after_its_last_attempt_a_message_is_a_plain_dead_letter(till):
    """Its entity waits for people, and all attempts are counted."""
    till.failing = {"1a"}
    till.send("1a", "1b", "2a")
    for batch_size in (1, 1000, 1, 1000, 1000):
        assert till.states().get("1a") != "dead"
        till.drain(batch_size=batch_size)
        till.let_next_attempts_be_due()
    letter = till.letter("1a")
    assert (letter["reason"], letter["attempts"], letter["next_attempt_at"]) == ("handler", 5, None)
    assert "raised ConnectionError in Till.handle (tests/consumers/" in letter["error"]
    assert "secret" not in str(letter)
    assert Counter(till.calls) == {"1a": 5, "2a": 1}
    assert till.states() == {"1a": "dead", "1b": "parked"}


def test_another_exception_fails_a_message_as_without_a_policy(till):
    """What `on=` does not name is tried as often as the component says, directly."""
    till.error, till.failing = ValueError, {"1a"}
    till.send("1a")
    till.drain()
    assert till.states() == {"1a": "dead"}


@pytest.mark.parametrize(
    ("policy", "uses_connection"),
    [(None, False), (None, True), (Retry(attempts=9, on=ValueError), True)],
)
def test_a_handler_asks_for_another_attempt_itself(connection, policy, uses_connection):
    """`RetryLater` makes a message wait so long, with a policy and without, and undoes the call."""
    connection.execute("CREATE TABLE asked (payment text)")
    till = asking(connection, policy)
    till.error, till.failing = (lambda text: RetryLater("90s", text)), {"1a", "2a"}
    if uses_connection:
        till.before = lambda command, context: context.connection.execute(
            "INSERT INTO asked VALUES (%s)", [command.pay_id]
        )
    till.send("1a", "2a", "3a")
    began = datetime.now(UTC)
    assert till.drain() == {"waiting": 2, "handled": 1}
    for name in ("1a", "2a"):
        letter = till.letter(name)
        wait = datetime.fromisoformat(letter["next_attempt_at"]) - began
        assert timedelta(seconds=90) <= wait < timedelta(seconds=90 + PATIENCE)
        assert letter["attempts"] == (1 if policy else 0)
    asked = connection.execute("SELECT payment FROM asked").fetchall()
    assert asked == [("3a",)] * uses_connection


@pytest.mark.parametrize(("policy", "end"), [(None, "waiting"), (PATIENT, "dead")])
def test_a_handler_with_a_policy_may_ask_as_often_as_that_says(connection, policy, end):
    """`RetryLater` counts as one of the policy's attempts; without one there is no last."""
    till = asking(connection, policy)
    till.error, till.failing = (lambda text: RetryLater("1h")), {"1a"}
    till.send("1a")
    for _ in range(6):
        till.drain()
        till.let_next_attempts_be_due()
    assert till.states() == {"1a": end}
    assert len(till.calls) == (5 if policy else 6)


def test_what_a_failed_handler_did_in_the_database_is_undone(connection, till):
    """Of a handler that fails nothing stays, even after a statement that failed; others' stays."""
    connection.execute("CREATE TABLE asked (payment text NOT NULL)")

    def note(command, context):
        context.connection.execute("INSERT INTO asked VALUES (%s)", [command.pay_id])
        if command.pay_id == "2a" in till.failing:
            with contextlib.suppress(psycopg.errors.NotNullViolation):
                context.connection.execute("INSERT INTO asked VALUES (NULL)")

    till.before, till.failing = note, {"1a", "2a"}
    till.send("3a", "1a", "4a", "2a", "5a")

    def asked():
        return [name for (name,) in connection.execute("SELECT payment FROM asked ORDER BY 1")]

    till.drain()
    assert asked() == till.paid() == ["3a", "4a", "5a"]
    till.failing = set()
    till.let_next_attempts_be_due()
    till.drain()
    assert asked() == ["1a", "2a", "3a", "4a", "5a"]


def test_an_idle_consumer_wakes_up_for_the_next_attempt(connection, database_url):
    """It is made in time, and not before, although nothing else happens."""
    till = asking(connection, Retry(attempts=2, first="2s", most="2s"))
    till.failing = {"1a"}
    # Back after the first call, so that the second one is not too early on a slow machine.
    till.error = lambda text: till.failing.clear() or ConnectionError(text)
    till.send("1a")
    with hosted(till.component, database_url) as thread:
        due = until(lambda: till.states() and till.letter("1a")["next_attempt_at"], thread)
        until(lambda: till.states() == {"1a": "handled"}, thread)
    ((is_early,),) = connection.execute(
        "SELECT time AT TIME ZONE 'UTC' < %s::timestamptz FROM message_store.messages"
        " WHERE type = 'Paid'",
        [due],
    ).fetchall()
    assert not is_early
    assert till.calls == ["1a", "1a"]


# Every kind of handler


def back(till):
    """Let the provider be back, and handle what waits."""
    till.failing = set()
    till.let_next_attempts_be_due()
    till.drain()


def initiating(till):
    till.component = Component("till", id="till_id")
    till.component.initiate(Pay, retry=PATIENT)(
        lambda command, context: till.handle(command, None, context)
    )


def revised(till):
    @dataclass(frozen=True)
    class Revised(Pay):
        revision: int = 0

    Revised.__name__ = "Pay"
    till.component = Component("till", id="till_id")
    once = Revisions("revision", source=None)
    till.component.handle(Revised, once=once, retry=PATIENT)(till.handle)


@dataclass
class Total:
    payments: int = 0


def stateful(till):
    def handle(command, entity, context):
        entity.payments += 1
        return till.handle(command, entity, context)

    till.component = Component("till", entity=Total, id="till_id")
    till.component.handle(Pay, once=StateBased(), retry=PATIENT)(handle)


@pytest.mark.parametrize(
    "options",
    [{"once": Processed(key="pay_id")}, {"once": Processed()}, stateful],
    ids=["by key", "by id", "state"],
)
def test_a_message_that_waits_is_not_taken_for_handled(connection, options):
    """A strategy forgets a message whose handler failed, and knows it once it is handled."""
    till = asking(connection, **({} if callable(options) else options))
    if callable(options):
        options(till)
    till.failing = {"1a", "2a"}
    till.send("1a", "2a", "3a", "1b")
    assert till.drain() == {"waiting": 2, "handled": 1, "parked": 1}
    back(till)
    assert sorted(till.paid()) == ["1a", "1b", "2a", "3a"]
    assert set(till.states().values()) == {"handled"}


def test_a_revision_that_waits_is_not_taken_for_handled(connection):
    """The later revisions of its entity wait behind it."""
    till = asking(connection)
    revised(till)
    till.failing = {"1a"}
    for revision, name in enumerate(["1a", "1b"]):
        data = {"payId": name, "tillId": "1", "amount": 1, "revision": revision}
        write_raw(connection, f"{TILLS}-1", "Pay", data)
    assert till.drain() == {"waiting": 1, "parked": 1}
    back(till)
    assert till.paid() == ["1a", "1b"]


@pytest.mark.parametrize("kind", ["processed", "initiating"])
def test_of_a_reissue_in_the_batch_in_which_the_first_failed_one_takes_effect(connection, kind):
    """A reissue beside its first issue, which failed, is not taken for a duplicate of it."""
    till = asking(connection, once=Processed(key="pay_id"))
    if kind == "initiating":
        initiating(till)
    till.failing = {"1a"}
    till.send("1a", "2a", "1a", "1a")
    till.drain()
    back(till)
    assert till.paid() == ["2a", "1a"]


def test_a_message_of_a_subscribed_category_waits_too(connection, till):
    """A handler of another component's events is tried again later like any other."""
    till.component = Component("ledger", id="till_id")
    till.component.handle(Paid, category="till", retry=PATIENT)(
        lambda event, entity, context: till.handle(event, None, context)
    )
    till.failing = {"1a"}
    for name in ("1a", "2a", "1b"):
        till.store.write(Paid(name, name[0]), f"till-{name[0]}")
    assert till.drain() == {"handled": 1, "waiting": 1, "parked": 1}
    back(till)
    handled = [event.decode(Paid).pay_id for event in till.store.read_category("ledger")]
    assert handled == ["2a", "1a", "1b"]


def test_failing_messages_take_no_statement_of_their_own(till, monkeypatch):
    """A batch and its retry have about as many statements for 200 failing messages as for two."""
    counted = []
    for names in (["1a", "2a"], [f"{n}b" for n in range(3, 203)]):
        till.failing |= set(names)
        till.send(*names)
        for _ in range(2):
            counted.append(statements(monkeypatch, till.drain))
            till.let_next_attempts_be_due()
    assert till.states() == dict.fromkeys(till.failing, "waiting")
    few, few_again, many, many_again = counted
    # Each look for new messages, which takes place after a time, is a statement too.
    assert many < few + 20
    assert many_again < few_again + 20


# What people do


def test_people_retry_discard_and_correct_what_waits(till):
    """A message that waits can be retried now, discarded or corrected, as a dead letter can."""
    till.failing = {"1a", "2a", "3a"}
    till.send("1a", "2a", "3a", "1b", "2b")
    till.drain()
    till.retry("1a")
    till.discard("2a")
    named = ["retry", str(till.position("3a")), "--data", "-", "--reason", "a typing error"]
    data = json.dumps({"payId": "3c", "tillId": "3", "amount": 1})
    dead_letters(till.connection, *named, data=data)
    till.failing = {"2a", "3a"}
    till.drain()
    assert sorted(till.paid()) == ["1a", "1b", "2b", "3c"]
    assert [name for name in till.paid() if name[0] == "1"] == ["1a", "1b"]
    assert till.states()["2a"] == "discarded"


def test_a_retry_that_people_asked_for_begins_the_policy_anew(till):
    """After it a message has all attempts of its policy again."""
    till.failing = {"1a"}
    till.send("1a")
    for _ in range(4):
        till.drain()
        till.let_next_attempts_be_due()
    assert till.letter("1a")["attempts"] == 4
    till.retry()
    till.drain()
    assert till.states() == {"1a": "waiting"}
    assert till.letter("1a")["attempts"] == 1


def test_an_operator_retries_what_waits(connection, database_url, till):
    """The rights of an operator are enough."""
    till.failing = {"1a"}
    till.send("1a")
    till.drain()
    try:
        given = invoke_cli(
            *("store", "grants", "operator", "retrying_operator"),
            env={"RESERVATION_DATABASE_URL": database_url},
        )
        assert given.returncode == 0, given.stderr
        as_operator = psycopg.conninfo.make_conninfo(
            database_url, options="-c role=retrying_operator"
        )
        done = invoke_cli("dead-letters", "retry", "--all", "--database-url", as_operator)
        assert done.returncode == 0, done.stderr
    finally:
        connection.execute("DROP OWNED BY retrying_operator")
        connection.execute("DROP ROLE retrying_operator")
    till.failing = set()
    till.drain()
    assert till.paid() == ["1a"]


# What is shown


def test_status_and_list_show_when_the_next_attempt_is_due(connection, database_url, till):
    """The number of waiting messages and the time of the next attempt are shown, and in JSON."""
    till.failing = {"1a", "2a"}
    till.send("1a", "2a", "1b")
    till.drain()
    due = min(datetime.fromisoformat(till.letter(name)["next_attempt_at"]) for name in ("1a", "2a"))
    env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "300"}
    (partition,) = json.loads(invoke_cli("status", "--json", env=env).stdout)["partitions"]
    assert (partition["dead"], partition["waiting"], partition["parked"]) == (0, 2, 1)
    assert datetime.fromisoformat(partition["nextAttemptAt"]) == due
    shown = " ".join(invoke_cli("status", env=env).stdout.split())
    assert "2 retry; 1 parked; no consumer; next attempt" in shown
    assert dead_letters(connection, "list") == "There are no dead letters.\n"
    states = ("--state", "waiting", "--state", "parked")
    table = dead_letters(connection, "list", *states)
    assert table.endswith("For more: reservation dead-letters show POSITION\n")
    assert f"{due.astimezone():%Y-%m-%d %H:%M}" in table
    times = [
        letter["nextAttemptAt"] for letter in decide(connection, "list", *states)["deadLetters"]
    ]
    assert [moment is None for moment in times] == [False, False, True]
    assert min(datetime.fromisoformat(moment) for moment in times[:2]) == due


def test_the_log_has_one_event_for_those_that_failed_alike(till):
    """Messages of a batch that failed at the same place are one event, with the first attempt."""
    till.failing = {"1a", "2a", "3a"}
    till.send("1a", "2a", "3a")
    with capture_logs() as logged:
        till.drain()
    (event,) = [one for one in logged if one["event"] == "message_waiting"]
    assert (event["count"], event["type"], event["attempts"]) == (3, "Pay", 1)
    assert 1800 <= event["next_attempt_in"] <= 3600
    assert "secret" not in str(event)
