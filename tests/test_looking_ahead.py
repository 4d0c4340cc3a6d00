"""Deciding on the next batch while the server writes the last one: the log is the same as without.

Handlers are called for a batch before the one before it is committed. Whatever happens meanwhile,
each message has the effects that its handler decided on once.
"""

import os
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest
from structlog.testing import capture_logs

import consumers
from consumers.batch.looking_ahead import LookingAhead
from consumers.loop.consumer import Consumer
from consumers.loop.draining import UntilDrained
from consumers.runtime.stopping import Stop
from reservation import Component, Processed, Write
from reservation.entity.cache import EntityCache
from reservation.errors import PositionLostError
from reservation.postgres.error_translation import translated
from tests.bank import claim, session

BATCH, SENT = 100, "jar:command"
JARS = 7


@dataclass(frozen=True)
class Put:
    jar_id: str
    number: int


@dataclass(frozen=True)
class Filled:
    number: int
    before: int | None


@dataclass
class Jar:
    last: int | None = None


@dataclass
class Jars:
    """A component whose events say what the entity held before, and which counts its calls.

    Attributes:
        calls: how often the handler was called, by the number of the message.
        at: called with the context, by the number of the message.
        component: the component.
    """

    calls: Counter[int] = field(default_factory=Counter)
    at: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.component = Component("jar", id="jar_id", entity=Jar)
        self.component.handle(Put, **self.options)(self.put)
        self.component.project(Filled)(self.filled)

    def put(self, command: Put, jar: Jar, context) -> Filled:
        self.calls[command.number] += 1
        if command.number in self.at:
            self.at[command.number](context)
        return Filled(command.number, jar.last)

    @staticmethod
    def filled(jar: Jar, event: Filled) -> None:
        jar.last = event.number

    @property
    def twice(self) -> list[int]:
        """The numbers of the messages for which the handler was called more than once."""
        return sorted(number for number, calls in self.calls.items() if calls > 1)


@pytest.fixture
def ahead(monkeypatch):
    """Give a list with the number of the first message of each batch that is decided on ahead."""
    decide, begun = LookingAhead.decide, []

    def noted(looking_ahead, following, sent):
        if following.prepared is not None:
            begun.append(following.batch.messages[0].decode(Put).number)
        return decide(looking_ahead, following, sent)

    monkeypatch.setattr(LookingAhead, "decide", noted)
    return begun


def send(store, count):
    """Write so many messages, to jars in turns."""
    writes = [Write(Put(str(n % JARS), n), f"{SENT}-{n % JARS}") for n in range(count)]
    store.write_batch(writes)


def run(jars, database_url, stop=None):
    """Handle everything in batches, or until a stop."""
    with session(database_url) as opened:
        stop = stop or UntilDrained(opened, "jar", SENT)
        Consumer(opened, jars.component, SENT, batch_size=BATCH).run(stop)


def assert_handled(store, count):
    """Assert that each message has one event, which was decided on the one before."""
    events = [event.decode(Filled) for event in store.read_category("jar")]
    assert events == [Filled(n, n - JARS if n >= JARS else None) for n in range(count)]


@contextmanager
def other(database_url):
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def test_batches_are_decided_ahead_and_each_handler_is_called_once(store, database_url, ahead):
    """All batches but the first are decided on ahead, from entities of which nothing is stored."""
    jars = Jars()
    send(store, 10 * BATCH + 30)
    run(jars, database_url)
    assert_handled(store, 10 * BATCH + 30)
    assert jars.twice == []
    assert ahead == [n * BATCH for n in range(1, 11)]


@pytest.mark.parametrize(("quick", "sizes"), [(60.0, [*[BATCH] * 7, 30]), (0.0, [])])
def test_what_comes_after_the_next_batch_is_read_with_the_commit_where_handlers_are_quick(
    store, database_url, monkeypatch, quick, sizes
):
    """The server is asked for it in advance, unless its answer would wait for slow handlers."""
    jars, read = Jars(), []
    keep = LookingAhead.keep
    monkeypatch.setattr("consumers.batch.looking_ahead.QUICK", quick)
    monkeypatch.setattr(
        LookingAhead, "keep", lambda self, answer: read.append(answer) or keep(self, answer)
    )
    send(store, 10 * BATCH + 30)
    run(jars, database_url)
    assert_handled(store, 10 * BATCH + 30)
    assert jars.twice == []
    assert [len(answer.rows) for answer in read if answer is not None] == sizes


def test_the_handlers_run_before_the_last_batch_is_committed(store, database_url, ahead):
    """While a category's lock is held by another, the next batch is decided on, and waits."""
    jars, seen = Jars(), []
    send(store, 2 * BATCH)
    with other(database_url) as connection:
        transaction = connection.transaction()

        def hold(_):
            transaction.__enter__()
            connection.execute("SELECT message_store.acquire_lock('jar-1')")

        def look(_):
            with other(database_url) as observer:
                row = observer.execute(
                    "SELECT position FROM reservation.positions WHERE category = %s", [SENT]
                ).fetchone()
            seen.append(row[0])
            transaction.__exit__(None, None, None)

        jars.at = {BATCH - 1: hold, 2 * BATCH - 1: look}
        run(jars, database_url)
    assert (seen, ahead) == ([0], [BATCH])
    assert_handled(store, 2 * BATCH)
    assert jars.twice == []


def test_a_handler_that_raises_ahead_fails_only_its_own_message(store, database_url, ahead):
    """Of a batch that was decided on ahead, a handler that raises fails as it always does."""
    jars = Jars()
    jars.component.attempts = 1
    send(store, 5 * BATCH)

    def fail(_):
        raise ValueError

    jars.at = {2 * BATCH: fail, 3 * BATCH + 50: fail}
    run(jars, database_url)
    dead = {n for n in range(5 * BATCH) if n % JARS in {2 * BATCH % JARS, (3 * BATCH + 50) % JARS}}
    events = [event.decode(Filled).number for event in store.read_category("jar")]
    assert sorted(events) == sorted(set(events))
    assert set(range(5 * BATCH)).difference(events) <= dead
    assert {2 * BATCH, 3 * BATCH + 50}.isdisjoint(events)
    assert max(calls for n, calls in jars.calls.items() if n not in jars.at) <= 2
    assert ahead


def test_a_failure_ahead_that_does_not_come_again_is_logged(store, database_url, ahead):
    """A handler that raises ahead, and not when it is called again, has failed in the log."""
    jars = Jars()
    send(store, 3 * BATCH)

    def fail(_):
        if jars.calls[BATCH] == 1:
            raise ValueError

    jars.at = {BATCH: fail}
    with capture_logs() as logged:
        run(jars, database_url)
    assert_handled(store, 3 * BATCH)
    assert jars.twice == [BATCH]
    failed = [event for event in logged if event["event"] == "batch_failed"]
    assert len(failed) == 1
    assert "raised ValueError" in failed[0]["error"]


def test_what_was_decided_on_a_batch_that_is_not_committed_is_forgotten(store, database_url, ahead):
    """Where another writer was first, neither batch is written as it was decided."""
    jars = Jars()
    send(store, 3 * BATCH)
    taken = []

    def overtake(_):
        if not taken:
            taken.append(store.write(Filled(-1, None), "jar-3"))

    jars.at = {BATCH - 1: overtake}
    run(jars, database_url)
    events = [event.decode(Filled) for event in store.read_category("jar")]
    assert Counter(event.number for event in events) == Counter([-1, *range(3 * BATCH)])
    assert [event.before for event in events if event.number == 3] == [-1]
    assert ahead[0] == BATCH
    assert set(jars.twice) == set(range(2 * BATCH))


def test_a_handler_that_asks_for_the_connection_ahead_gets_it_in_its_own_batch(
    connection, store, database_url, ahead
):
    """Once a handler has asked for the connection, no batch is decided on ahead any more."""
    connection.execute("CREATE TABLE noted (number int)")
    jars = Jars()
    send(store, 5 * BATCH)

    def note(context):
        context.connection.execute("INSERT INTO noted VALUES (1)")

    jars.at = {2 * BATCH + 5: note}
    run(jars, database_url)
    assert_handled(store, 5 * BATCH)
    assert connection.execute("SELECT count(*) FROM noted").fetchone() == (1,)
    assert ahead == [BATCH, 2 * BATCH]
    assert jars.twice == list(range(2 * BATCH, 2 * BATCH + 6))


def test_who_keeps_the_connection_of_a_batch_cannot_use_it_ahead(store, database_url, ahead):
    """A connection that was kept from an earlier call does nothing to what was sent."""
    jars, kept, errors = Jars(), [], []

    def use(_):
        try:
            kept[0].execute("SELECT 1")
        except psycopg.Error as error:
            errors.append(type(error))

    send(store, 4 * BATCH)
    with session(database_url) as opened:
        kept.append(opened.connection)
        jars.at = {BATCH + 1: use, 2 * BATCH + 1: use}
        consumer = Consumer(opened, jars.component, SENT, batch_size=BATCH)
        consumer.run(UntilDrained(opened, "jar", SENT))
    assert_handled(store, 4 * BATCH)
    assert errors == [psycopg.ProgrammingError]
    assert ahead == [BATCH]


def test_a_stop_commits_what_was_decided_ahead(store, database_url, ahead):
    """Who is asked to stop while it decides ahead commits that too, and calls no handler again."""
    jars, stop = Jars(), Stop(takes_signals=False)
    send(store, 5 * BATCH)
    jars.at = {BATCH + 7: lambda _: stop.request()}
    run(jars, database_url, stop)
    assert_handled(store, 2 * BATCH)
    run(jars, database_url)
    assert_handled(store, 5 * BATCH)
    assert jars.twice == []
    assert ahead[0] == BATCH


@pytest.mark.parametrize("number", [BATCH, 2 * BATCH - 1])
def test_a_connection_that_is_lost_ahead_loses_nothing(store, database_url, ahead, number):
    """Where the connection is lost meanwhile, each message takes effect once all the same."""
    jars, cut = Jars(), []
    send(store, 4 * BATCH)

    def terminate(_):
        if not cut:
            with other(database_url) as connection:
                cut.extend(
                    connection.execute(
                        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                        "WHERE application_name = 'reservation test' AND pid <> pg_backend_pid()"
                    ).fetchall()
                )

    stop = Stop(takes_signals=False)
    jars.at = {number: terminate, 4 * BATCH - 1: lambda _: stop.request()}
    run(jars, database_url, stop)
    assert cut
    assert_handled(store, 4 * BATCH)
    assert max(jars.calls.values()) <= 2


def test_a_fork_ahead_comes_back_to_nothing(store, database_url, ahead):
    """A process that a handler forks ahead ends, and leaves what was sent alone."""
    jars, children = Jars(), []
    send(store, 3 * BATCH)
    jars.at = {BATCH + 3: lambda _: children.append(os.fork())}
    run(jars, database_url)
    assert os.waitpid(children[0], 0)[1] == 0
    assert_handled(store, 3 * BATCH)
    assert jars.twice == []


def test_who_loses_its_position_commits_nothing_that_was_decided_ahead(
    connection, store, database_url, ahead
):
    """A process whose position was taken over writes neither batch."""
    jars = Jars()
    send(store, 3 * BATCH)

    def take(_):
        with other(database_url) as another:
            claim(another, "jar", SENT)

    jars.at = {BATCH - 1: take}
    with session(database_url) as opened:
        consumer = Consumer(opened, jars.component, SENT, batch_size=BATCH)
        with pytest.raises(Reread), stopped_by(consumer, PositionLostError):
            consumer.run(Stop(takes_signals=False))
    assert list(store.read_category("jar")) == []
    assert ahead == [BATCH]


class Reread(Exception):
    """A consumer was to read its positions again."""


@contextmanager
def stopped_by(consumer, kind):
    """Let a consumer end with Reread where it would go on after an error of a kind."""

    def reread(error, *_):
        assert isinstance(error, kind)
        raise Reread

    consumer._reread_positions = reread
    try:
        yield
    except consumers.Crashed as error:
        raise error.__cause__ from None


def test_a_read_that_is_refused_ahead_does_not_keep_the_batch_before_from_being_written(
    store, database_url, monkeypatch, ahead
):
    """Where the server refuses to read an entity of the next batch, that is found in its turn."""
    jars, loads = Jars(), []
    load = EntityCache.load

    def refuse(cache, store, names, *last):
        loads.append(cache)
        if len(loads) == 2:
            with translated():
                store._source.execute("SELECT 1 / 0")
        return load(cache, store, names, *last)

    monkeypatch.setattr(EntityCache, "load", refuse)
    send(store, 3 * BATCH)
    run(jars, database_url)
    assert_handled(store, 3 * BATCH)
    assert ahead == []
    assert jars.twice == list(range(BATCH))


@pytest.mark.parametrize(
    "options",
    [{"once": Processed()}, {"transaction": "message"}],
    ids=["strategy", "own transaction"],
)
def test_what_needs_the_connection_is_not_decided_ahead(store, database_url, ahead, options):
    """Strategies and transactions of their own need the connection between the batches."""
    jars = Jars(options=options)
    send(store, 3 * BATCH)
    run(jars, database_url)
    assert_handled(store, 3 * BATCH)
    assert ahead == []
    assert jars.twice == []
