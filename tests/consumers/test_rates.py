"""Rates of handlers: what waits, for what, and in which order; hours pass when a test says so."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import psycopg
import pytest

from consumers.testing import run_in_memory
from reservation import Component, MessageStore, Rate, Retry
from reservation.strategies import Processed, StateBased
from tests.apps.bank import address
from tests.consumers.builders import Paid, Pay, Till, dead_letters, letters, number, reasons
from tests.support.consuming import hosted, logged, members, running, until
from tests.support.proxy import Cut, Proxy
from tests.support.started import PATIENCE

HOURLY = Rate(1, per="1h")
PASS = """
WITH gone AS (DELETE FROM reservation.rates RETURNING *)
INSERT INTO reservation.rates
SELECT consumer, category, rate, made_up_at - make_interval(secs => %(seconds)s) FROM gone
"""
PASS_FOR_LETTERS = """
UPDATE reservation.dead_letters
SET next_attempt_at = next_attempt_at - make_interval(secs => %(seconds)s)
"""


def hours_pass(connection, hours=1, *, for_letters=True):
    """Let time pass for rates, and for the letters that wait for them."""
    for query in (PASS, PASS_FOR_LETTERS)[: 1 + for_letters]:
        connection.execute(query, {"seconds": hours * 3600})


def due_in(connection):
    """Return in how many hours each payment that waits is due, in the order of the log."""
    ((now,),) = connection.execute("SELECT clock_timestamp()").fetchall()
    return {
        row["name"]: round(
            (datetime.fromisoformat(row["next_attempt_at"]) - now).total_seconds() / 3600
        )
        for row in letters(connection)
        if row["state"] == "waiting"
    }


@pytest.fixture
def till(connection):
    return Till(connection, rate=HOURLY)


# What waits


def test_what_has_to_wait_is_limited_and_takes_no_attempt(till, connection):
    """One call is made, and each of the others waits for its own time."""
    till.send("1a", "2a", "3a", "4a")
    assert till.drain() == {"handled": 1, "waiting": 3}
    assert till.calls == ["1a"]
    assert reasons(connection) == [("waiting", "limited", 0)] * 3
    assert due_in(connection) == {"2a": 1, "3a": 2, "4a": 3}
    hours_pass(connection)
    till.drain()
    assert till.calls == ["1a", "2a"]
    assert due_in(connection) == {"3a": 1, "4a": 2}


def test_a_message_that_waits_holds_up_its_own_entity_alone(connection):
    """Later ones of its entity are parked, be they limited or not; others go on."""

    @dataclass(frozen=True)
    class Look:
        pay_id: str
        till_id: str

    till = Till(connection, rate=HOURLY)
    looks = till.component.handle(Look, once=None)
    looks(lambda command, entity, context: till.calls.append("look"))
    till.send("1a", "2a")
    store = MessageStore(connection)
    for n in ("2", "1", "3"):
        store.send(Look(f"look{n}", n), till.component)
    till.send("2b")
    assert till.drain() == {"handled": 3, "waiting": 1, "parked": 2}
    assert Counter(till.calls) == {"1a": 1, "look": 2}
    hours_pass(connection)
    till.drain()
    assert till.calls[-2:] == ["2a", "look"]
    assert due_in(connection) == {"2b": 1}
    hours_pass(connection)
    till.drain()
    assert till.paid() == ["1a", "2a", "2b"]


def test_nobody_overtakes_those_that_wait(till, connection):
    """A call that is free goes to who waits for it, once it looks, and not to what comes later."""
    till.send("1a", "2a", "3a")
    till.drain()
    hours_pass(connection, for_letters=False)  # the call is free before the letter is due
    till.send("4a")
    till.drain()
    assert till.calls == ["1a"]
    assert due_in(connection) == {"2a": 1, "3a": 2, "4a": 3}
    hours_pass(connection)
    till.drain()
    assert till.calls == ["1a", "2a"]


def test_an_entity_with_many_messages_is_as_others_are(till, connection):
    """What was parked comes after those that wait, once its turn has come."""
    till.send("1a", "1b", "1c", "1d", "2a", "3a")
    till.drain()
    assert due_in(connection) == {"1b": 1, "2a": 2, "3a": 3}
    for _ in range(5):
        hours_pass(connection)
        till.drain()
    assert till.calls == ["1a", "1b", "2a", "3a", "1c", "1d"]


def test_all_that_waited_while_no_process_ran_is_planned_anew(till, connection):
    """All of it is due at once, one call is made, and few times are given twice."""
    till.send(*(f"{n}a" for n in range(1, 12)))
    till.drain(batch_size=4)
    hours_pass(connection, 100)
    till.drain(batch_size=4)
    assert till.calls == ["1a", "2a"]
    times = Counter(due_in(connection).values())
    assert times.pop(1) >= 1  # of each set that was looked at one
    assert times == Counter(range(2, 2 + len(times)))
    assert {row["attempts"] for row in letters(connection)} == {0}


def test_a_burst_is_made_at_once(connection):
    """And no more, however long there was nothing."""
    till = Till(connection, rate=Rate(24, per="1d", burst=3))
    till.send(*(f"{n}a" for n in range(1, 6)))
    assert till.drain() == {"handled": 3, "waiting": 2}
    assert due_in(connection) == {"4a": 1, "5a": 2}


def test_discarded_letters_leave_no_queue(till, connection):
    """What comes after them waits for the calls that were made, and for nothing else."""
    till.send(*(f"{n}a" for n in range(1, 30)))
    till.drain()
    till.discard(*(f"{n}a" for n in range(3, 30)))
    till.send("30a")
    till.drain()
    assert due_in(connection) == {"2a": 1, "30a": 2}
    till.discard("2a", "30a")
    hours_pass(connection)
    till.send("31a")
    till.drain()
    assert till.calls == ["1a", "31a"]


def test_a_person_cannot_hurry_a_limited_message(till, connection):
    """A retry looks at it again, and finds that it has to wait."""
    till.send("1a", "2a")
    till.drain()
    till.retry("2a")
    till.drain()
    assert till.calls == ["1a"]
    assert due_in(connection) == {"2a": 1}


def test_waiting_is_logged_without_a_warning(till, connection):
    """One event for all of a batch, which says why."""
    till.send("1a", "2a", "3a")
    with logged() as log:
        till.drain()
    (held_up,) = log.named("message_held_up")
    shown = {name: held_up[name] for name in ("log_level", "type", "reason", "count")}
    assert shown == {"log_level": "info", "type": "Pay", "reason": "limited", "count": 2}
    assert 0 < held_up["next_attempt_in"] <= 3600
    assert "limited" in dead_letters(connection, "list", "--state", "waiting")


# By a field


def test_each_value_of_a_field_has_a_limit_of_its_own(connection):
    """Nothing of the values is kept in the store."""
    till = Till(connection, rate=Rate(1, per="1h", by="till_id"))
    till.send("1a", "4711a", "1b", "4711b", "2a", "1c")
    till.drain()
    assert till.calls == ["1a", "4711a", "2a"]
    assert due_in(connection) == {"1b": 1, "4711b": 1}
    kept = str(connection.execute("SELECT rate FROM reservation.rates").fetchall())
    assert kept.count("Pay ") == 3
    assert "4711" not in kept


def test_a_hot_value_starves_no_other(connection):
    """With 2,000 values, one of which has nine tenths of the messages."""

    @dataclass(frozen=True)
    class Capture:
        payment_id: str
        merchant_id: str

    component, calls = Component("payment", id="payment_id"), Counter()
    component.handle(Capture, once=None, rate=Rate(1, per="1h", by="merchant_id"))(
        lambda command, entity, context: calls.update([command.merchant_id])
    )
    values = ["hot" if n % 10 else f"m{n // 10}" for n in range(20_000)]
    fill(connection, "payment:command", "Capture", [("merchantId", values)])
    drained = Till.drain.__get__(Box(connection, component))
    assert drained() == {"handled": 2001, "waiting": 17_999}
    fill(connection, "payment:command", "Capture", [("merchantId", [f"m{n}" for n in range(2000)])])
    assert drained() == {"waiting": 2000}
    hours_pass(connection)
    drained()
    assert set(calls.values()) == {2}
    assert len(calls) == 2001


# Calls that are repeated, and faults


def test_a_repeated_call_counts(connection):
    """The provider sees it, whatever became of the transaction of the first."""
    till = Till(connection, rate=Rate(3, per="3h", burst=3))

    def lose_the_connection(command, context):
        if till.calls == ["1a"]:
            ((pid,),) = context.connection.execute("SELECT pg_backend_pid()").fetchall()
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    till.before = lose_the_connection
    till.send("1a", "2a")
    with hosted(till.component, address(connection)) as thread:
        until(lambda: till.paid() and letters(connection), thread)
    assert till.calls == ["1a", "2a", "1a"]
    assert due_in(connection) == {"2a": 1}


def test_a_failure_and_a_limit_do_not_count_for_each_other(connection):
    """A message that failed and then has to wait has the attempts that it had."""
    till = Till(connection, rate=HOURLY, retry=Retry(attempts=3, first="1ms", most="1ms"))
    till.failing = {"1a"}
    till.send("1a")
    till.drain()
    for attempts in (1, 2):
        until(lambda: till.drain() == {} and reasons(connection)[0][1] == "limited")
        assert reasons(connection) == [("waiting", "limited", attempts)]
        hours_pass(connection)
        till.drain()
    assert till.calls == ["1a"] * 3
    assert reasons(connection) == [("dead", "handler", 3)]


@pytest.mark.parametrize("cut", list(Cut))
def test_a_lost_connection_of_the_limits_is_no_fault_of_a_message(connection, cut):
    """The consumer connects again; a call whose answer was lost counts."""
    till = Till(connection, rate=Rate(10, per="10h", burst=10))
    with Proxy(address(connection)) as proxy, logged() as log:
        proxy.cut(cut, "reservation.take_calls")
        till.send("1a", "2a")
        with hosted(till.component, proxy.address) as thread:
            assert proxy.happened.wait(PATIENCE)
            until(lambda: len(till.paid()) == 2, thread)
    assert log.named("database_unavailable")
    assert till.calls == ["1a", "2a"]
    assert letters(connection) == []


def test_what_is_refused_when_it_is_written_is_found_with_fewer_calls_free(connection):
    """The search for the message at fault takes calls, and what has none waits meanwhile."""
    connection.execute("CREATE TABLE unique_payments (amount integer UNIQUE DEFERRABLE)")
    till = Till(connection, rate=Rate(6, per="6h", burst=6))
    till.before = lambda command, context: context.connection.execute(
        "INSERT INTO unique_payments VALUES (%s)", [len(command.pay_id)]
    )
    till.send("1a", "1b")
    with hosted(till.component, address(connection)) as thread:
        until(lambda: till.states() or None, thread)
        until(lambda: "waiting" not in till.states().values() or len(till.calls) >= 6, thread)
    assert till.paid() == ["1a"]
    assert len(till.calls) <= 6


# Where messages come from, and how they are handled


@pytest.mark.parametrize("once", [None, Processed(), Processed(key="pay_id")])
def test_a_message_that_is_skipped_takes_no_call(connection, once):
    """A reissue is recognized first; what waits is not remembered as processed."""
    till = Till(connection, rate=HOURLY, once=once)
    till.send("1a", "2a")
    till.drain()
    hours_pass(connection)
    till.drain()
    assert till.paid() == ["1a", "2a"]
    if once is not None and once.key is not None:
        hours_pass(connection)
        till.send("1a", "3a")
        assert till.drain() == {"duplicate": 1, "handled": 1}


def test_a_reserved_command_waits_where_its_copy_is(connection):
    """It is reserved at once, so that a reissue is a duplicate."""
    till = Till(connection, rate=HOURLY, once=None, key="pay_id")
    till.send("1a", "2a", "2a")
    assert till.drain() == {"reserved": 2, "duplicate": 1, "handled": 1, "waiting": 1}
    assert [row["category"] for row in letters(connection)] == ["tillTransaction"]


def test_commands_that_initiate_and_messages_of_others_have_rates(connection):
    """Each handler has a rate of its own."""
    till = Component("till", id="till_id")
    calls = []

    @till.initiate(Pay, rate=HOURLY)
    def pay(command, context):
        calls.append(command.pay_id)
        return context.follow(command, Paid)

    @till.handle(Paid, category="other", rate=HOURLY)
    def paid(message, entity, context):
        calls.append(f"other {message.pay_id}")

    store = MessageStore(connection)
    for n in range(3):
        store.send(Pay(f"{n}a", f"{n}"), till)
        store.write(Paid(f"{n}a", f"{n}"), f"other-{n}")
    drained = Till.drain.__get__(Box(connection, till))
    assert drained() == {"handled": 2, "waiting": 4}
    assert sorted(calls) == ["0a", "other 0a"]
    hours_pass(connection)
    drained()
    assert sorted(calls) == ["0a", "1a", "other 0a", "other 1a"]


@pytest.mark.parametrize("concurrency", [1, 10])
def test_calls_of_async_handlers_are_limited(connection, concurrency):
    """Their entities wait, and others go on."""

    async def handler(command, entity, context):
        till.calls.append(command.pay_id)
        await asyncio.sleep(0)
        return context.follow(command, Paid)

    till = Till(
        connection, handler=handler, rate=Rate(2, per="2h", burst=2), concurrency=concurrency
    )
    till.send("1a", "2a", "2b", "3a", "3b")
    assert till.drain() == {"handled": 2, "waiting": 2, "parked": 1}
    assert till.calls == ["1a", "2a"]
    assert due_in(connection) == {"2b": 1, "3a": 2}
    hours_pass(connection, 2)
    till.drain()
    assert sorted(till.paid()) == ["1a", "2a", "2b", "3a"]
    assert due_in(connection) == {"3b": 1}


def test_async_calls_that_are_taken_ahead_begin_at_their_times(connection):
    """Without a letter for a call that comes in less than a tenth of a second."""
    times = []

    async def handler(command, entity, context):
        times.append(asyncio.get_running_loop().time())

    till = Till(connection, handler=handler, rate=Rate(100, per="1s"))
    till.send(*(f"{n}a" for n in range(9)))
    assert till.drain() == {"handled": 9}
    assert letters(connection) == []
    assert times[-1] - times[0] >= 0.03  # the first may be late, by up to 0.05


def test_states_and_rates_go_together(connection):
    """A message whose handler has a state waits with the others of its entity."""

    @dataclass
    class Sum:
        paid: int = 0

    component = Component("till", entity=Sum, id="till_id")

    @component.handle(Pay, once=StateBased(), rate=HOURLY)
    def pay(command, entity, context):
        entity.paid += command.amount
        return context.follow(command, Paid, amount=entity.paid)

    component.message(Paid)
    store = MessageStore(connection)
    for name in ("1a", "1b"):
        store.send(Pay(name, number(name)), component)
    drained = Till.drain.__get__(Box(connection, component))
    assert drained() == {"handled": 1, "waiting": 1}
    hours_pass(connection)
    drained()
    assert [event.decode(Paid).amount for event in store.read_category("till")] == [1, 2]


def test_a_letter_with_other_data_waits_for_the_value_that_it_has_then(connection):
    """The limit is that of the data that the handler gets."""
    till = Till(connection, rate=Rate(1, per="1h", by="amount"))
    till.send("1a", "2a")
    till.drain()
    data = json.dumps({"payId": "2a", "tillId": "2", "amount": 7})
    position = str(till.position("2a"))
    dead_letters(connection, "retry", position, "--data", "-", "--reason", "so", data=data)
    till.drain()
    assert till.calls == ["1a", "2a"]


def test_deciding_ahead_makes_as_many_calls_as_there_are_messages(connection):
    """Each batch of a long category takes those of its own messages."""
    till = Till(connection, rate=Rate(1, per="1h", burst=600))
    till.send(*(f"{n}a" for n in range(500)))
    assert till.drain(batch_size=50) == {"handled": 500}
    assert len(till.calls) == 500
    till.send(*(f"{n}b" for n in range(200)))
    assert till.drain() == {"handled": 100, "waiting": 100}


def test_members_of_a_group_share_a_rate(connection, database_url):
    """Each has its own partitions, and all together make no more calls than one would."""
    till = Till(connection, rate=Rate(1, per="1h", burst=10))
    till.send(*(f"{n}a" for n in range(40)))
    with members(till.component, database_url, "till:command", size=3):
        until(lambda: len(till.paid()) == 10 and len(letters(connection)) == 30)
        assert sorted(due_in(connection).values()) == list(range(1, 31))
        hours_pass(connection, 5)
        connection.execute("NOTIFY nothing")
        until(lambda: len(till.paid()) == 15)
    assert len(till.calls) == 15


def test_waiting_is_no_error_to_stop_at(connection, database_url):
    """A consumer that stops on errors lets messages wait, and handles them."""
    till = Till(connection, rate=HOURLY)
    till.send("1a", "2a")
    options = {"stop_on_error": True}
    with running(till.component, database_url, "till:command", **options) as (thread, _):
        until(lambda: due_in(connection) == {"2a": 1}, thread)
        hours_pass(connection)
        until(lambda: till.paid() == ["1a", "2a"], thread)


def test_the_table_keeps_only_the_values_that_were_used_lately(connection, monkeypatch):
    """Those whose calls are made up for are removed by and by."""
    monkeypatch.setattr("consumers.limits.rates.CLEANING", 0.0)
    till = Till(connection, rate=Rate(1, per="1h", by="till_id"))
    till.send(*(f"{n}a" for n in range(50)))
    till.drain()
    hours_pass(connection)
    till.send("100a")
    till.drain()
    assert connection.execute("SELECT count(*) FROM reservation.rates").fetchone() == (1,)


def test_a_component_without_rates_opens_no_connection_for_them(connection):
    """It pays nothing."""
    name = "reservation till limits"
    opened = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
    for rate, expected in ((None, 0), (HOURLY, 1)):
        till = Till(connection, rate=rate)
        seen = []
        till.before = lambda command, context, seen=seen: seen.append(
            context.connection.execute(opened).fetchone()
        )
        till.send("1a")
        till.drain()
        assert seen == [(expected,)]


def test_a_consumer_for_tests_is_not_limited(connection, database_url):
    """As those of the crash kit, whose runs must not depend on the time."""
    till = Till(connection, rate=HOURLY)
    till.send("1a", "2a", "1b")
    with running(till.component, database_url, "till:command", limited=False) as (thread, _):
        until(lambda: len(till.paid()) == 3, thread)
    assert connection.execute("SELECT FROM reservation.rates").fetchall() == []


def test_in_memory_nothing_is_limited():
    """There is no time: everything is handled as when its time had come."""
    component = Component("till", id="till_id")
    component.handle(Pay, once=None, rate=HOURLY)(
        lambda command, entity, context: context.follow(command, Paid)
    )
    store = run_in_memory(component, [Pay("1a", "1"), Pay("2a", "2"), Pay("1b", "1")])
    assert store.counts == {"handled": 3}


@dataclass
class Box:
    """A component that `Till.drain` drains."""

    connection: psycopg.Connection
    component: Component


def fill(connection, category, type_, columns):
    """Write many messages of a type, each to a stream of its own."""
    ((key, values),) = columns
    connection.execute(
        "SELECT count(message_store.write_message(gen_random_uuid()::varchar,"
        " %s || '-' || v || '.' || n, %s,"
        " jsonb_build_object('paymentId', v || '.' || n, %s::text, v)))"
        " FROM unnest(%s::text[]) WITH ORDINALITY AS u (v, n)",
        [category, type_, key, values],
    )
