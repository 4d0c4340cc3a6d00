"""Breakers: while a provider is down messages wait instead of failing, and then are handled."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

import psycopg
import pytest

import consumers
from reservation import Breaker, Component, Rate, Reject, Retry, RetryLater
from reservation.strategies import Processed
from tests.apps.bank import address
from tests.consumers.builders import (
    TILLS,
    Pay,
    Till,
    decide,
    letters,
    reasons,
    retry_all,
    statements,
)
from tests.support.awaiting import impatient
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, logging, until

BREAKER = Breaker(failures=3, open_for="1h", on=ConnectionError)
SHORT = Breaker(failures=3, open_for="50ms", on=ConnectionError)
NAMES = [f"{number}a" for number in range(1, 11)]


def paying(connection, breaker=BREAKER, **options):
    """Return a till that asks a provider, which is down for the payments in `failing`."""
    return Till(connection, error=ConnectionError, breaker=breaker, **options)


def pass_time(connection):
    """Let the pause be over after which a message may try."""
    connection.execute("UPDATE reservation.breakers SET until = now() WHERE until IS NOT NULL")


def state(connection):
    """Return what `reservation status` says of the only breaker."""
    env = {"RESERVATION_DATABASE_URL": address(connection)}
    (found,) = json.loads(invoke_cli("status", "--json", env=env).stdout)["breakers"]
    return found


@pytest.fixture
def till(connection):
    return paying(connection)


@pytest.fixture
def down(till):
    """Return a till whose breaker is open, with a message for each till waiting."""
    till.failing = set(NAMES)
    till.send(*NAMES)
    till.drain()
    till.calls.clear()
    return till


# Open, half-open, closed


def test_after_enough_failures_messages_wait_without_a_call(till):
    """Nothing becomes a dead letter, although each may be tried once only."""
    till.failing = set(NAMES)
    till.send(*NAMES)
    assert till.drain() == {"waiting": 10}
    assert till.calls == NAMES[:3]
    till.send("1b", "11a")
    assert till.drain() == {"parked": 1, "waiting": 1}
    assert till.drain() == {}
    assert till.calls == NAMES[:3]
    assert {reason for _, reason, _ in reasons(till.connection)} == {"breaker_open", "parked"}
    assert {row["attempts"] for row in letters(till.connection)} == {0, 1}


def test_one_message_tries_after_the_pause(connection, down):
    """It takes no attempt, and the next pause begins with its failure."""
    pass_time(connection)
    down.drain()
    assert len(down.calls) == 1
    down.drain()
    assert len(down.calls) == 1
    attempts = {row["name"]: row["attempts"] for row in letters(connection)}
    assert attempts[down.calls[0]] == int(down.calls[0] in NAMES[:3])
    assert set(down.states().values()) == {"waiting"}


def test_a_success_closes_it_and_all_are_handled_in_order(connection, down):
    """What waited, what was parked behind it, and what came meanwhile."""
    down.send("1b", "2b", "1c", "11a")
    down.drain()
    down.failing = set()
    pass_time(connection)
    down.send("12a")
    until(lambda: down.drain() is not None and set(down.states().values()) == {"handled"})
    assert sorted(down.paid()) == sorted([*NAMES, "1b", "2b", "1c", "11a", "12a"])
    assert [name for name in down.paid() if name in ("1a", "1b", "1c")] == ["1a", "1b", "1c"]
    assert max(Counter(down.calls).values()) == 1
    assert state(connection)["state"] == "closed"


def test_in_an_outage_a_message_tries_after_each_pause(connection, database_url):
    """The letters of the others are not written again, and all are handled after it."""
    till = paying(connection, SHORT)
    till.failing = {f"{number}{letter}" for number in range(1, 200) for letter in "ab"}
    till.send(*sorted(till.failing))
    changed = "SELECT sum(age) FROM (SELECT 1 AS age FROM reservation.dead_letters"
    changed += " WHERE changed_at > %s) AS changed"
    with hosted(till.component, database_url) as thread:
        until(lambda: len(till.states()) == 398, thread)
        ((now,),) = connection.execute("SELECT clock_timestamp()").fetchall()
        before = len(till.calls)
        until(lambda: len(till.calls) >= before + 10, thread)
        ((count,),) = connection.execute(changed, [now]).fetchall()
        assert count <= len(till.calls) - before + 5
        till.failing = set()
        until(lambda: len(till.paid()) == 398, thread)
    assert set(till.states().values()) == {"handled"}
    paid = till.paid()
    assert all(paid.index(f"{n}a") < paid.index(f"{n}b") for n in range(1, 200))


def test_a_probe_that_fails_makes_room_for_others(connection, database_url):
    """A message that always fails does not keep the breaker open."""
    till = paying(connection, SHORT, retry=Retry(attempts=50, first="1ms", most="2ms"))
    till.failing = set(NAMES)
    till.send(*NAMES)
    with hosted(till.component, database_url) as thread:
        until(lambda: len(till.states()) == 10, thread)
        till.failing = {"1a"}
        until(lambda: len(till.paid()) == 9, thread)


def test_other_handlers_and_categories_go_on(connection, down):
    """A breaker is of one handler."""

    @dataclass(frozen=True)
    class Refund:
        pay_id: str
        till_id: str

    refunded = []
    down.component.handle(Refund, once=None)(
        lambda command, entity, context: refunded.append(command.pay_id)
    )
    down.store.write(Refund("r1", "20"), f"{TILLS}-20")
    assert down.drain() == {"handled": 1}
    assert refunded == ["r1"]


# Failures of other kinds


def test_an_error_that_is_not_named_is_a_failure_as_ever(connection, till):
    """It is not counted, and takes an attempt."""
    till.error, till.failing = ValueError, set(NAMES)
    till.send(*NAMES)
    till.drain()
    assert till.states() == dict.fromkeys(NAMES, "dead")
    assert connection.execute("SELECT failed_at FROM reservation.breakers").fetchone() == ([],)


def test_a_handler_that_asks_for_another_attempt_is_no_failure_of_the_provider(connection):
    """Even if every exception is named."""
    till = Till(
        connection, error=lambda _: RetryLater("1h"), breaker=Breaker(failures=1, on=Exception)
    )
    till.failing = set(NAMES)
    till.send(*NAMES)
    till.drain()
    assert till.calls == NAMES
    assert {reason for _, reason, _ in reasons(connection)} == {"handler"}


@pytest.mark.parametrize("error", [ValueError, lambda _: RetryLater("1h")])
def test_a_probe_that_says_nothing_of_the_provider_leaves_it_open(connection, down, error):
    """The message fails as ever, and another one tries after the next pause."""
    down.error = error
    for calls in (1, 2):
        pass_time(connection)
        down.drain()
        assert len(down.calls) == calls
    assert len(set(down.calls)) == 2
    assert state(connection)["state"] == "open"


def test_a_rejection_closes_it(connection, down):
    """The provider has answered, and the handler decided."""
    down.error = lambda _: Reject("declined")
    pass_time(connection)
    until(lambda: down.drain() is not None and set(down.states().values()) == {"handled"})
    assert state(connection)["state"] == "closed"


def test_a_message_that_alone_fails_becomes_a_dead_letter(connection):
    """Others succeed between its attempts, so it is at fault."""
    till = paying(connection, Breaker(failures=100, on=ConnectionError), attempts=3)
    till.failing = {"1a"}
    till.send("1a", "2a")
    till.drain()
    assert till.states() == {"1a": "waiting"}
    assert till.calls.count("1a") == 3  # the last of which was after no success
    till.send("3a")
    till.drain()
    till.let_next_attempts_be_due()
    till.drain()
    assert till.states() == {"1a": "dead"}
    assert till.letter("1a")["attempts"] == 3


def test_a_last_attempt_is_not_taken_while_nothing_succeeds(connection):
    """An outage that has too few calls to open the breaker makes no dead letter either."""
    till = paying(connection, Breaker(failures=100, on=ConnectionError), attempts=2)
    till.failing = {"1a", "2a"}
    till.send("1a", "2a")
    for _ in range(6):
        till.drain()
        till.let_next_attempts_be_due()
    assert till.states() == {"1a": "waiting", "2a": "waiting"}
    assert {row["attempts"] for row in letters(connection)} == {1}


# Batches, races and connections


def test_a_handler_that_used_its_connection_counts_each_call(connection, till):
    """Its batch is run again without the message, whose failure is known then."""
    connection.execute("CREATE TABLE asked (payment text)")
    till.before = lambda command, context: context.connection.execute(
        "INSERT INTO asked VALUES (%s)", [command.pay_id]
    )
    till.failing = set(NAMES)
    till.send(*NAMES)
    till.drain()
    assert set(till.states().values()) == {"waiting"}
    assert till.calls == NAMES[:3]
    assert connection.execute("SELECT FROM asked").fetchall() == []
    till.failing = set()
    pass_time(connection)
    until(lambda: till.drain() is not None and len(till.paid()) == 10)


def test_what_the_provider_did_counts_though_the_batch_is_rolled_back(connection):
    """The search for a message whose effects are refused calls others again, and counts those."""
    patient = Retry(attempts=9, on=ConnectionError)
    till = paying(connection, Breaker(failures=100, on=ConnectionError), retry=patient)
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.data->>'payId' = '4a' THEN RAISE check_violation; END IF; RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON message_store.messages DEFERRABLE"
        " INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.type = 'Paid') EXECUTE FUNCTION refuse()"
    )
    till.failing = {"1a"}
    till.send(*NAMES)
    till.drain()
    assert till.states() == {"1a": "waiting", "4a": "dead"}
    ((failed,),) = connection.execute("SELECT cardinality(failed_at) FROM reservation.breakers")
    assert failed == till.calls.count("1a") > 1


def test_a_batch_that_loses_a_race_asks_again(connection, database_url):
    """Its calls are made again; a probe that it had claimed is still its own."""
    till = paying(connection, once=Processed())
    till.failing = {"1a", "2a", "3a"}
    till.send("1a", "2a", "3a", "4a")
    till.drain()
    assert till.calls == ["1a", "2a", "3a"]
    till.failing = set()
    pass_time(connection)
    other = MessageTwice(till, database_url)
    till.before = other.handle_meanwhile
    until(lambda: till.drain() is not None and len(till.paid()) == 5)
    assert sorted(till.paid()) == ["1a", "2a", "3a", "4a", "other"]
    assert other.calls > 4


class MessageTwice:
    """Another writer to the entity's stream, while its handler is called for the first time."""

    def __init__(self, till, database_url):
        self.till = till
        self.database_url = database_url
        self.calls = 0

    def handle_meanwhile(self, command, context):
        self.calls += 1
        if self.calls == 1:
            with psycopg.connect(self.database_url, autocommit=True) as connection:
                connection.execute(
                    "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Paid',"
                    """ '{"payId": "other", "tillId": "0"}')""",
                    [f"till-{command.till_id}"],
                )


def test_a_breaker_that_opens_while_the_next_batch_is_decided_on_ahead(connection, till):
    """Calls that were made ahead are not made again, and the rest waits."""
    names = [f"{number}a" for number in range(1, 101)]
    till.failing = set(names[43:])
    till.send(*names)
    till.drain(batch_size=10)
    assert till.paid() == names[:43]
    assert sorted(till.calls) == sorted(names[:46])
    assert len(till.states()) == 57
    till.failing = set()
    pass_time(connection)
    till.drain(batch_size=10)
    assert sorted(till.paid()) == sorted(names)


def test_an_open_breaker_takes_no_call_of_a_rate(connection):
    """And a call that its rate does not allow yet is not the probe."""
    till = paying(connection, rate=Rate(1, per="1h", burst=3))
    till.failing = set(NAMES)
    till.send(*NAMES)
    till.drain()
    assert till.calls == NAMES[:3]
    made_up = "SELECT made_up_at FROM reservation.rates"
    ((before,),) = connection.execute(made_up).fetchall()
    till.send("11a", "12a")
    till.drain()
    assert connection.execute(made_up).fetchall() == [(before,)]
    till.failing = set()
    pass_time(connection)
    till.drain()
    assert till.calls == NAMES[:3]
    assert state(connection)["state"] == "half_open"
    assert "limited" in {reason for _, reason, _ in reasons(connection)}
    connection.execute("DELETE FROM reservation.rates")
    till.let_next_attempts_be_due()
    pass_time(connection)
    till.drain()
    assert len(till.paid()) >= 1
    assert state(connection)["state"] == "closed"


def test_a_lost_connection_is_no_fault_of_a_message(connection, database_url):
    """The state is in the store, so nothing of it is lost."""
    till = paying(connection, Breaker(failures=5, open_for="1h", on=ConnectionError), attempts=9)
    till.failing = set(NAMES)
    lost = []

    def lose(command, context):
        if len(till.calls) in (2, 4) and len(till.calls) not in lost:
            lost.append(len(till.calls))
            ((ended,),) = connection.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE application_name = 'reservation till limits'"
            ).fetchall()
            assert ended

    till.before = lose
    till.send(*NAMES)
    with hosted(till.component, database_url) as thread:
        until(lambda: len(till.states()) == 10, thread)
        assert len(lost) == 2
    assert state(connection)["state"] == "open"
    assert set(till.states().values()) == {"waiting"}


def test_a_letter_with_other_data_waits_for_the_breaker_too(connection, down):
    """It is handled with that data once its provider is back."""
    at = str(down.position("9a"))
    retry_all(connection)
    connection.execute(
        "UPDATE reservation.dead_letters SET state = 'dead', next_attempt_at = NULL"
        " WHERE global_position = %s",
        [down.position("9a")],
    )
    given = json.dumps({"payId": "9a", "tillId": "9", "amount": 7})
    decide(connection, "retry", at, "--data", "-", "--reason", "a typo", data=given)
    down.drain()
    assert down.states()["9a"] == "waiting"
    assert down.calls == []
    down.failing = set()
    pass_time(connection)
    until(lambda: down.drain() is not None and len(down.paid()) == 10)
    (paid,) = [
        message for message in down.store.read_category("till") if '"9a"' in (message.data or "")
    ]
    assert json.loads(paid.data)["amount"] == 7


def test_what_was_tried_by_a_person_waits_again(connection, down):
    """A retry does not go past an open breaker."""
    down.retry("5a")
    down.drain()
    assert down.calls == []
    assert down.states()["5a"] == "waiting"


def test_a_breaker_that_is_not_declared_any_more_holds_nothing(connection, down):
    """Its messages are handled, and it is not shown."""
    plain = Till(connection)
    until(lambda: plain.drain() is not None and len(plain.paid()) == 10)
    env = {"RESERVATION_DATABASE_URL": address(connection)}
    assert json.loads(invoke_cli("status", "--json", env=env).stdout)["breakers"] == []


# Async handlers


class Asking:
    """A component whose async handler asks a provider that is down, or not."""

    def __init__(self, breaker, concurrency, pause=0.0):
        self.down, self.calls, self.times, self.running, self.most = True, [], [], 0, 0
        self.pause = pause
        self.component = Component("till", id="till_id", attempts=1)
        self.component.handle(Pay, once=None, breaker=breaker, concurrency=concurrency)(self.handle)

    async def handle(self, command, entity, context):
        self.calls.append(command.pay_id)
        self.times.append(time.monotonic())
        self.running += 1
        self.most = max(self.most, self.running)
        is_down = self.down
        try:
            await asyncio.sleep(self.pause)
        finally:
            self.running -= 1
        if is_down:
            raise ConnectionError


@pytest.mark.parametrize("outlasts", [False, True])
def test_calls_of_async_handlers_add_no_more_than_go_on(
    connection, database_url, monkeypatch, outlasts
):
    """Those that go on when it opens fail too, then one is made at a time, then all."""
    till, asking = paying(connection), Asking(SHORT, 5, 0.01)
    if outlasts:
        impatient(monkeypatch)
    names = [f"{number}a" for number in range(1, 101)]
    till.send(*names)
    with hosted(asking.component, database_url) as thread:
        until(lambda: len(till.states()) == 100, thread)
        opened = len(asking.calls)
        pauses = (asking.times[opened - 1] - asking.times[0]) / SHORT.open_for.total_seconds()
        assert opened <= 3 + 5 - 1 + pauses + 1
        asking.most = 0
        until(lambda: len(asking.calls) >= opened + 5, thread)
        assert asking.most == 1
        asking.down = False
        until(lambda: set(till.states().values()) == {"handled"}, thread)
    assert set(asking.calls) == set(names)


# What is shown, and what it costs


def test_status_and_log_say_why_messages_wait(connection, down, database_url):
    """The class of the exception is shown, and never its text."""
    seen = state(connection)
    assert (seen["consumer"], seen["category"], seen["type"]) == ("till", TILLS, "Pay")
    assert (seen["state"], seen["errorType"]) == ("open", "ConnectionError")
    assert seen["since"] < seen["until"]
    env = {"RESERVATION_DATABASE_URL": address(connection), "COLUMNS": "300"}
    (partition,) = json.loads(invoke_cli("status", "--json", env=env).stdout)["partitions"]
    assert (partition["waiting"], partition["nextAttemptAt"]) == (10, seen["until"])
    shown = invoke_cli("status", env=env).stdout
    assert "Breaker open: Pay in till:command since 20" in shown
    assert "after ConnectionError; a message may try from 20" in shown
    assert "secret" not in shown
    connection.execute("UPDATE reservation.breakers SET is_probing = true")
    assert state(connection)["state"] == "half_open"
    assert "; a message tries" in invoke_cli("status", env=env).stdout


def test_opening_and_closing_are_logged_once(connection, database_url):
    """By the process whose call did so."""
    till = paying(connection, SHORT)
    till.failing = set(NAMES)
    till.send(*NAMES)
    with logging(till.component, database_url) as log:
        opened = log.wait_for("breaker_opened")
        assert (opened["log_level"], opened["type"]) == ("warning", "Pay")
        assert (opened["failures"], opened["open_for"]) == (3, 0.05)
        assert opened["error"] == "ConnectionError"
        till.failing = set()
        closed = log.wait_for("breaker_closed", type="Pay")
        assert closed["seconds"] > 0
        until(lambda: len(till.paid()) == 10)
        assert len(log.named("breaker_opened")) == len(log.named("breaker_closed")) == 1
    assert "secret" not in str(log.events)


def test_a_closed_breaker_costs_a_statement_a_batch(connection, monkeypatch):
    """However many messages it has; one with nothing to do costs none."""
    plain, till = Till(connection), paying(connection)
    counted = []
    for one in (plain, till):
        work = partial(consumers.drain, one.component, address(connection), batch_size=10)
        one.send(*[f"{number}a" for number in range(100)])
        idle = statements(monkeypatch, work) - statements(monkeypatch, work)
        counted.append(idle)
    assert counted[1] - counted[0] <= 10 + 10


def test_without_a_breaker_there_is_no_further_connection(connection, database_url):
    """Nor is there one for a category whose messages are only reserved."""
    names = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reservation till limits'"
    )
    for options, connections in (({}, 0), ({"key": "pay_id", "breaker": BREAKER}, 1)):
        till = Till(connection, **options)
        till.send("1a", "2a")
        with hosted(till.component, database_url):
            until(lambda till=till: len(till.calls) == 2)
            until(lambda: connection.execute(names).fetchone() == (connections,))  # noqa: B023
