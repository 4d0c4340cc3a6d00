"""Async calls that go on when their batch has ended: what is seen meanwhile, and what follows."""

import asyncio
import json
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from consumers import Crashed
from consumers.runtime.stopping import Stop
from reservation import Component, Retry
from reservation.strategies import Processed
from tests.consumers.builders import Till, dead_letters, decide, letters
from tests.consumers.test_async_handlers import CATEGORY, Block, Customer, Notices, Notified, Notify
from tests.support.awaiting import impatient
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, logged, running, until
from tests.support.started import PATIENCE


class Gated(Notices):
    """Notices whose handler waits, at those in `slow`, until the test lets it go on."""

    def __init__(self, *arguments, **options):
        self.slow = set()
        self.cancelled = []
        self.ended_at = {}
        self._waiting = defaultdict(list)
        super().__init__(*arguments, handler=self.wait, **options)

    async def wait(self, command, customer, context):
        name = command.notice_id
        self.calls.append(name)
        if name in self.slow:
            event = asyncio.Event()
            self._waiting[name].append((asyncio.get_running_loop(), event))
            try:
                await event.wait()
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
        else:
            await asyncio.sleep(self.pause)
        self.ended_at[name] = time.monotonic()
        if name in self.failing:
            raise self.failing.pop(name)
        return context.follow(command, Notified, number=customer.notices + 1)

    def let_go(self, name):
        """Let the calls for a notice go on."""
        self.slow.discard(name)
        for loop, event in self._waiting.pop(name):
            loop.call_soon_threadsafe(event.set)

    def names(self):
        return [name for name, _ in self.notified()]

    def runs(self, *names):
        """Return whether the letters of exactly these notices are those that go on."""
        found = self.store.connection.execute(
            "SELECT m.data->>'noticeId' FROM reservation.dead_letters d"
            " JOIN message_store.messages m USING (global_position)"
            " WHERE d.state = 'waiting' AND d.reason = 'running' ORDER BY global_position"
        ).fetchall()
        return [name for (name,) in found] == list(names)


@pytest.fixture
def make(store, connection, database_url):
    """Give a function that makes gated notices in the test's store."""
    store.connection = connection

    def made(**options):
        return Gated(store, database_url, **options)

    return made


class NoticedStop(Stop):
    """Tells when the consumer has seen that it is to stop."""

    def __init__(self):
        super().__init__(takes_signals=False)
        self.noticed = threading.Event()

    @property
    def requested(self):
        if is_so := super().requested:
            self.noticed.set()
        return is_so


class End(BaseException):
    """Ends a process."""


class Ending(Gated):
    """Notices whose process ends at the first event."""

    def apply(self, customer, event):
        raise End


def customers(connection):
    """Return the number of a customer in each of two partitions."""
    rows = connection.execute(
        "SELECT reservation.partition_of(%s || n, 2), min(n) FROM generate_series(1, 50) AS n"
        " GROUP BY 1 ORDER BY 1",
        [f"{CATEGORY}-"],
    ).fetchall()
    return [number for _, number in rows]


def holders(connection):
    """Return the holder of each partition that is held, by its number."""
    rows = connection.execute(
        "SELECT partition, holder FROM reservation.leases"
        " WHERE category = %s AND holder IS NOT NULL",
        [CATEGORY],
    ).fetchall()
    return dict(rows)


def are_shared(connection):
    """Return whether two processes hold a partition each."""
    return len(set(holders(connection).values())) == 2


def take_turns(connection, member, times=2):
    """Wait until a member of the group has had some turns."""
    renewed = "SELECT expires_at FROM reservation.heartbeats WHERE member = %s"
    for _ in range(times):
        before = connection.execute(renewed, [member]).fetchall()
        until(lambda before=before: connection.execute(renewed, [member]).fetchall() != before)


def states(connection):
    return [(row["state"], row["reason"], row["attempts"]) for row in letters(connection)]


# What is seen meanwhile


def test_what_has_ended_is_seen_within_a_second_although_a_call_goes_on(
    connection, make, database_url
):
    """The call's message waits, and the later ones of its entity are parked behind it."""
    notices = make()
    notices.slow = {"7a"}
    names = [f"{n}a" for n in range(50)]
    notices.send(*names, "7b", "7c")
    others = [name for name in names if name != "7a"]
    with logged() as log, hosted(notices.component, database_url) as thread:
        until(lambda: notices.calls, thread)
        began = time.monotonic()
        until(lambda: notices.names() == others, thread)
        assert time.monotonic() - began < 1.5
        assert states(connection) == [("waiting", "running", 0), *[("parked", "parked", 0)] * 2]
        assert notices.component.name in dead_letters(connection, "list", "--state", "waiting")
        assert "running" in dead_letters(connection, "list", "--state", "waiting")
        assert "There are no dead letters." in dead_letters(connection, "list")
        notices.send("51a")
        until(lambda: "51a" in notices.names(), thread)
        notices.let_go("7a")
        until(lambda: "7c" in notices.names(), thread)
    assert notices.notified()[-3:] == [("7a", 1), ("7b", 2), ("7c", 3)]
    assert Counter(notices.calls) == dict.fromkeys([*names, "7b", "7c", "51a"], 1)
    assert {row["state"] for row in letters(connection)} == {"handled"}
    assert not [one for one in log.events if one["log_level"] in ("warning", "error")]
    assert log.named("calls_committed", handled=1)


def test_status_counts_what_runs_as_waiting(make, database_url):
    """Nobody has to decide on it."""
    notices = make()
    notices.slow = {"1a"}
    notices.send("1a")
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.runs("1a"), thread)
        env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "300"}
        (shown,) = json.loads(invoke_cli("status", "--json", env=env).stdout)["partitions"]
        notices.let_go("1a")
        until(lambda: notices.names() == ["1a"], thread)
    assert (shown["waiting"], shown["dead"], shown["parked"]) == (1, 0, 0)


def test_few_at_a_time_make_steady_progress(make, database_url):
    """Each is seen within a second of its end, and few letters are made."""
    notices = make(concurrency=5)
    notices.pause = 0.15
    names = [f"{n % 60}{'ab'[n // 60]}" for n in range(90)]
    notices.send(*names)
    seen = {}
    with hosted(notices.component, database_url) as thread:
        while len(seen) < len(names):
            now, found = time.monotonic(), notices.names()
            seen.update(dict.fromkeys([name for name in found if name not in seen], now))
            assert thread.is_alive()
    assert max(seen[name] - notices.ended_at[name] for name in names) < 1.5
    assert Counter(notices.calls) == dict.fromkeys(names, 1)
    by_entity = dict(notices.notified())
    assert by_entity == {name: "ab".index(name[-1]) + 1 for name in names}
    ((made,),) = notices.store.connection.execute(
        "SELECT count(*) FROM reservation.dead_letters"
    ).fetchall()
    assert made < 60


def test_the_log_is_that_of_one_message_at_a_time_without_any_patience(
    monkeypatch, make, connection, database_url
):
    """Where every call outlasts its batch, each entity still sees its messages in order."""
    impatient(monkeypatch)
    notices = make(concurrency=4)
    names = [f"{n % 7}{'abcdefg'[n // 7]}" for n in range(49)]
    notices.send(*names)
    assert notices.drain() == {"handled": 49}
    assert Counter(notices.calls) == dict.fromkeys(names, 1)
    for n in range(7):
        of_entity = [one for one in notices.notified() if one[0][0] == str(n)]
        assert of_entity == [(f"{n}{letter}", at) for at, letter in enumerate("abcdefg", 1)]


def test_handlers_of_both_kinds_go_on_beside_a_call(make, database_url):
    """Those that are not async are called in order; those of the entity are parked."""
    notices = make()
    called = []

    def block(command, customer, context):
        called.append(command.notice_id)
        return context.follow(command, Notified, number=customer.notices + 1)

    notices.component.handle(Block, once=None)(block)
    notices.slow = {"1a"}
    notices.send("1a")
    notices.send("1b", "2a", "3a", type_=Block)
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.names() == ["2a", "3a"], thread)
        notices.let_go("1a")
        until(lambda: notices.notified()[2:] == [("1a", 1), ("1b", 2)], thread)
    assert called == ["2a", "3a", "1b"]


def test_who_has_the_key_of_a_message_that_runs_waits_for_it(make, database_url):
    """It may be a duplicate, and is one, also where it comes with a later batch."""
    notices = make(once=Processed(key="notice_id"))
    notices.slow = {"1a"}
    notices.send("1a")
    notices.store.write(Notify("2", "1a"), f"{CATEGORY}-2")
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.runs("1a", "1a"), thread)
        notices.store.write(Notify("3", "1a"), f"{CATEGORY}-3")
        notices.send("4b")
        until(lambda: notices.names() == ["4b"], thread)
        assert notices.runs("1a", "1a", "1a")
        notices.let_go("1a")
        until(lambda: {row["state"] for row in letters(notices.store.connection)} == {"handled"})
    assert notices.notified() == [("4b", 1), ("1a", 1)]
    assert notices.calls == ["1a", "4b"]


# What it comes to


def test_a_call_that_saw_what_was_rolled_back_is_made_again(make, database_url):
    """It is cancelled with its batch, although its entity is at the same version again."""
    notices, attempts = make(), Counter()
    notices.apply = lambda customer, event: setattr(customer, "notices", event.number)
    notices.component = Component("notice", entity=Customer, id="customer_id", attempts=1)
    notices.component.project(Notified)(notices.apply)
    notices.component.handle(Notify, once=None)(notices.wait)

    @notices.component.handle(Block, once=None)
    def block(command, customer, context):
        attempts[command.notice_id] += 1
        if command.notice_id == "2a":
            context.connection.execute("SELECT 1")
            raise ValueError
        return context.follow(command, Notified, number=10 * attempts[command.notice_id])

    notices.slow = {"1b"}
    with notices.store.connection.transaction():
        notices.send("1a", type_=Block)
        notices.send("1b")
        notices.send("2a", type_=Block)
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.runs("1b"), thread)
        notices.let_go("1b")
        until(lambda: "1b" in notices.names(), thread)
    assert notices.notified() == [("1a", 20), ("1b", 21)]
    assert notices.cancelled == ["1b"]


def test_a_call_that_fails_late_is_tried_again_as_any(connection, make, database_url):
    """That is its first attempt, and the next is by its policy."""
    notices = make(retry=Retry(attempts=3, first="1h", on=OSError))
    notices.slow = {"1a"}
    notices.failing = {"1a": OSError("secret")}
    notices.send("1a", "1b")
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.runs("1a"), thread)
        notices.let_go("1a")
        until(lambda: states(connection)[0] == ("waiting", "handler", 1), thread)
        assert states(connection)[1] == ("parked", "parked", 0)
        Till(connection).let_next_attempts_be_due()
        until(lambda: notices.notified() == [("1a", 1), ("1b", 2)], thread)
    assert notices.calls == ["1a", "1a", "1b"]


def test_a_call_is_made_again_if_its_entity_has_changed_meanwhile(make, database_url):
    """Its outcome was decided on what is no longer so."""
    notices = make()
    notices.slow = {"1a"}
    notices.send("1a")
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.runs("1a"), thread)
        notices.store.write(Notified("1", "other", 1), "notice-1")
        notices.let_go("1a")
        until(lambda: "1a" in notices.names(), thread)
    assert notices.notified() == [("other", 1), ("1a", 2)]
    assert notices.calls == ["1a", "1a"]


def test_nothing_comes_of_a_message_that_was_discarded_while_it_ran(connection, make, database_url):
    """What is behind it goes on."""
    notices = make()
    notices.slow = {"1a"}
    notices.send("1a", "1b")
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.runs("1a"), thread)
        (letter, _) = letters(connection)
        decide(connection, "discard", str(letter["global_position"]), "--yes")
        until(lambda: notices.names() == ["1b"], thread)
        notices.let_go("1a")
        notices.send("2a")
        until(lambda: notices.names() == ["1b", "2a"], thread)


def test_drain_waits_for_every_call(make, connection):
    """It returns at the end of the category, and no call goes on then."""
    notices = make()
    notices.slow = {"1a", "2a"}
    notices.send("1a", "1b", "2a", "3a")

    def let_go():
        until(lambda: notices.runs("1a", "2a"))
        for name in ("1a", "2a"):
            notices.let_go(name)

    watching = threading.Thread(target=let_go)
    watching.start()
    counts = notices.drain()
    watching.join(PATIENCE)
    assert counts == {"handled": 4}
    assert notices.names()[0] == "3a"
    assert sorted(notices.notified()) == [("1a", 1), ("1b", 2), ("2a", 1), ("3a", 1)]


def test_a_consumer_that_stops_at_errors_waits_for_its_calls(make, connection):
    """Its position must not pass a message that fails."""
    notices = make()
    notices.pause = 0.6
    notices.send("1a", "2a")
    with running(notices.component, notices.database_url, CATEGORY, stop_on_error=True) as (
        thread,
        _,
    ):
        until(lambda: len(notices.names()) == 2, thread)
    assert letters(connection) == []


# Ends of the process, the connection and the lease


def test_a_stop_lets_calls_end_and_commits_them(connection, make, database_url):
    """Within the grace; no further call begins."""
    notices = make()
    notices.slow = {"1a", "2a"}
    notices.send("1a", "1b", "2a")
    with running(notices.component, database_url, CATEGORY, stop=NoticedStop(), grace=30.0) as (
        thread,
        stop,
    ):
        until(lambda: notices.runs("1a", "2a"), thread)
        stop.request()
        assert stop.noticed.wait(PATIENCE)
        notices.let_go("1a")
        until(lambda: notices.names() == ["1a"], thread)
        assert thread.is_alive()
        notices.let_go("2a")
        thread.join(PATIENCE)
    assert sorted(notices.names()) == ["1a", "2a"]
    assert Counter(notices.calls) == {"1a": 1, "2a": 1}
    assert notices.drain() == {"handled": 1}
    assert notices.notified()[-1] == ("1b", 2)


def test_calls_that_outlast_the_grace_are_cancelled_and_made_again(make, database_url):
    """Their messages wait for the next who holds the partition."""
    notices = make()
    notices.slow = {"1a"}
    notices.send("1a", "2a")
    with (
        logged() as log,
        running(notices.component, database_url, CATEGORY, grace=1.0) as (
            thread,
            stop,
        ),
    ):
        until(lambda: notices.runs("1a"), thread)
        stop.request()
        thread.join(PATIENCE)
    assert notices.cancelled == ["1a"]
    assert log.named("calls_cancelled")
    notices.slow = set()
    assert notices.drain() == {"handled": 1}
    assert notices.notified() == [("2a", 1), ("1a", 1)]


def test_calls_are_made_again_after_the_connection_was_lost(connection, make, database_url):
    """What the handler saw may be of another server, so the call is cancelled."""
    notices = make()
    notices.slow = {"1a"}
    notices.send("1a")
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.runs("1a"), thread)
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s",
            [f"reservation notice {CATEGORY}"],
        )
        until(lambda: notices.calls == ["1a", "1a"], thread)
        assert notices.cancelled == ["1a"]
        notices.let_go("1a")
        until(lambda: notices.names() == ["1a"], thread)
    assert notices.notified() == [("1a", 1)]


def test_who_takes_a_partition_over_makes_its_calls_again(connection, make, database_url):
    """The former holder cancels them; the effect is there once."""
    first, second = make(), make()
    first.slow, second.slow = {"1a"}, {"1a"}
    first.send("1a", "1b", "2a")
    with logged() as log, hosted(first.component, database_url) as one:
        until(lambda: first.runs("1a"), one)
        ((holder,),) = connection.execute("SELECT max(member) FROM reservation.members").fetchall()
        connection.execute(
            "CREATE FUNCTION expire() RETURNS trigger LANGUAGE plpgsql AS $$ "
            "BEGIN NEW.expires_at := '-infinity'; RETURN NEW; END $$; "
            "CREATE TRIGGER expire BEFORE INSERT OR UPDATE ON reservation.heartbeats "
            f"FOR EACH ROW WHEN (NEW.member <= {holder}) EXECUTE FUNCTION expire(); "
            "UPDATE reservation.heartbeats SET expires_at = now()"
        )
        with hosted(second.component, database_url) as other:
            until(lambda: "1a" in second.calls, other)
            until(lambda: first.cancelled == ["1a"], one)
            second.let_go("1a")
            until(lambda: "1b" in second.names(), other)
    assert log.named("partitions_left") or log.named("taken_for_dead")
    assert sorted(first.notified()) == [("1a", 1), ("1b", 2), ("2a", 1)]
    assert first.calls.count("1b") + second.calls.count("1b") == 1


def test_partitions_are_given_back_once_calls_have_ended(connection, make, database_url):
    """Until then another process stands by, and no call is made twice."""
    first, second = make(), make()
    names = [f"{n}a" for n in customers(connection)]
    first.slow = set(names)
    first.send(*names)
    with running(first.component, database_url, CATEGORY, partitions=2) as (one, _):
        until(lambda: first.runs(*names), one)
        (holder,) = set(holders(connection).values())
        with (
            logged() as log,
            running(second.component, database_url, CATEGORY, partitions=2) as (other, _),
        ):
            until(lambda: log.named("standing_by"), other)
            take_turns(connection, holder)
            assert set(holders(connection).values()) == {holder}
            for name in names:
                first.let_go(name)
            until(lambda: are_shared(connection), other)
    assert sorted(first.names()) == sorted(names)
    assert second.calls == []


def test_partitions_are_given_back_after_a_while_although_calls_go_on(
    connection, monkeypatch, make, database_url
):
    """Their calls are cancelled, and made by who takes the partition."""
    monkeypatch.setattr("consumers.loop.ongoing_calls.KEEPS", 0.0)
    first, second = make(), make()
    names = [f"{n}a" for n in customers(connection)]
    first.slow = set(names)
    first.send(*names)
    with running(first.component, database_url, CATEGORY, partitions=2) as (one, _):
        until(lambda: first.runs(*names), one)
        with running(second.component, database_url, CATEGORY, partitions=2) as (other, _):
            until(first.names, other)
            (moved,) = first.cancelled
            assert second.calls == first.names() == [moved]
            (left,) = {*names} - {moved}
            first.let_go(left)
            until(lambda: first.names() == [moved, left], one)
    assert sorted(first.calls) == sorted(names)


def test_what_was_taken_over_from_a_process_that_died_is_called_by_itself(
    connection, make, store, database_url
):
    """It may end this process too, so it waits for the calls that go on."""
    first, second = make(), Ending(store, database_url)

    def end(one, holder):
        """Let the second process end, while a call of the first one goes on."""
        with hosted(second.component, database_url) as other:
            until(lambda: are_shared(connection), other)
            of = dict(enumerate(customers(connection)))
            (kept,) = [at for at, member in holders(connection).items() if member == holder]
            own, taken = f"{of.pop(kept)}a", f"{of.popitem()[1]}a"
            first.slow = {own}
            first.send(own)
            until(lambda: first.runs(own), one)
            first.send(taken)
            other.join(PATIENCE)

    with running(first.component, database_url, CATEGORY, partitions=2) as (one, _):
        until(lambda: len(holders(connection)) == 2, one)
        (holder,) = set(holders(connection).values())
        with pytest.raises(Crashed):
            end(one, holder)
        until(lambda: [*holders(connection).values()] == [holder] * 2, one)
        (own,) = first.calls
        (taken,) = second.calls
        take_turns(connection, holder)
        assert first.calls == [own]
        first.let_go(own)
        until(lambda: len(first.names()) == 2, one)
    assert first.calls == [own, taken]


# How much waits


def test_reading_stops_while_many_messages_wait_for_calls(
    connection, monkeypatch, make, database_url
):
    """And goes on once some are handled."""
    monkeypatch.setattr("consumers.runtime.running_calls.MOST_WAITING", 5)
    notices = make()
    notices.slow = {"1a"}
    names = [f"1{letter}" for letter in "abcdefgh"]
    notices.send(*names, "2a")
    with running(notices.component, database_url, CATEGORY, batch_size=2) as (thread, _):
        until(lambda: len(letters(connection)) == 6, thread)
        (holder,) = holders(connection).values()
        take_turns(connection, holder)
        assert len(letters(connection)) == 6
        assert notices.names() == []
        notices.let_go("1a")
        until(lambda: len(notices.names()) == 9, thread)
    assert [name for name in notices.names() if name != "2a"] == names


def test_a_message_that_has_no_place_is_not_read_again_and_again(connection, make, database_url):
    """The next batch is read when there is one."""
    decoded = []

    @dataclass(frozen=True)
    class Seen(Notify):
        def __post_init__(self):
            decoded.append(self.notice_id)

    Seen.__name__ = "Notify"
    notices = make()
    notices.component = Component("notice", entity=Customer, id="customer_id")
    notices.component.project(Notified)(notices.apply)
    notices.component.handle(Seen, once=None, concurrency=1)(notices.wait)
    notices.slow = {"1a"}
    notices.send("1a", "2a")
    with running(notices.component, database_url, CATEGORY) as (thread, _):
        until(lambda: notices.runs("1a"), thread)
        (holder,) = holders(connection).values()
        take_turns(connection, holder)
        assert decoded.count("2a") <= 2
        assert notices.calls == ["1a"]
        notices.let_go("1a")
        until(lambda: notices.names() == ["1a", "2a"], thread)
    assert len(letters(connection)) == 1


def test_who_has_the_key_of_a_call_that_has_ended_waits_for_its_commit(make, database_url):
    """The call ends while a batch with the duplicate is decided on."""
    notices = make(once=Processed(key="notice_id"))
    notices.slow = {"1a", "2b"}
    notices.send("1a")
    with hosted(notices.component, database_url) as thread:
        until(lambda: notices.runs("1a"), thread)
        with notices.store.connection.transaction():
            notices.send("2b")
            notices.store.write(Notify("2", "1a"), f"{CATEGORY}-2")
        until(lambda: "2b" in notices.calls, thread)
        notices.let_go("1a")
        until(lambda: "1a" in notices.ended_at, thread)
        notices.let_go("2b")
        until(lambda: len(notices.names()) == 2, thread)
        until(lambda: {row["state"] for row in letters(notices.store.connection)} == {"handled"})
    assert notices.calls == ["1a", "2b"]
    assert sorted(notices.notified()) == [("1a", 1), ("2b", 1)]


def test_a_letter_that_waits_for_a_call_lets_the_call_be_committed(connection, make, database_url):
    """Also where one letter is handled at a time, and its own attempt was due before."""
    retry = Retry(attempts=2, first="1h")
    notices = make(once=Processed(key="notice_id"), retry=retry)
    notices.failing = {"1a": ValueError("as it was set")}
    notices.send("1a")
    with hosted(notices.component, database_url, batch_size=1) as thread:
        until(lambda: states(connection) == [("waiting", "handler", 1)], thread)
        notices.slow = {"1a"}
        notices.store.write(Notify("2", "1a"), f"{CATEGORY}-2")
        until(lambda: notices.runs("1a"), thread)
        connection.execute(
            "UPDATE reservation.dead_letters SET next_attempt_at = 'epoch' WHERE reason = 'handler'"
        )
        notices.let_go("1a")
        until(lambda: {state for state, _, _ in states(connection)} == {"handled"}, thread)
    assert notices.calls == ["1a", "1a"]
    assert notices.notified() == [("1a", 1)]
