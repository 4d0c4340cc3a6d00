"""Deciding on the next batch while the server writes the last one: the log is the same as without.

Handlers are called for a batch before the one before it is committed. Whatever happens meanwhile,
each message has the effects that its handler decided on once. A handler is called again only where
what it decided on ahead was forgotten.
"""

import os
import threading
from collections import Counter
from dataclasses import dataclass, field

import psycopg
import pytest

import consumers
from reservation import Component, Write
from reservation.strategies import Processed
from tests.support.consuming import hosted, until

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
        options: of the handler.
        attempts: how often it may fail.
        component: the component.
    """

    calls: Counter[int] = field(default_factory=Counter)
    at: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    attempts: int = 3

    def __post_init__(self) -> None:
        self.component = Component("jar", id="jar_id", entity=Jar, attempts=self.attempts)
        self.component.handle(Put, **({"once": None} | self.options))(self.put)
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


def send(store, count):
    """Write so many messages, to jars in turns."""
    writes = [Write(Put(str(n % JARS), n), f"{SENT}-{n % JARS}") for n in range(count)]
    store.write_batch(writes)


def run(jars, database_url):
    """Handle everything in batches."""
    return consumers.drain(jars.component, database_url, batch_size=BATCH).counts


def assert_handled(store, count):
    """Assert that each message has one event, which was decided on the one before."""
    events = [event.decode(Filled) for event in store.read_category("jar")]
    assert events == [Filled(n, n - JARS if n >= JARS else None) for n in range(count)]


def position(database_url):
    """Return the stored position, as others see it."""
    with psycopg.connect(database_url) as observer:
        row = observer.execute(
            "SELECT position FROM reservation.positions WHERE category = %s", [SENT]
        ).fetchone()
    return row[0] if row else 0


def test_the_handlers_run_before_the_last_batch_is_committed(store, database_url):
    """While a category's lock is held by another, the next batch is decided on, and waits."""
    jars, seen = Jars(), []
    send(store, 10 * BATCH + 30)
    with psycopg.connect(database_url, autocommit=True) as connection:
        transaction = connection.transaction()

        def hold(_):
            transaction.__enter__()
            connection.execute("SELECT message_store.acquire_lock('jar-1')")

        def look(_):
            seen.append(position(database_url))
            transaction.__exit__(None, None, None)

        jars.at = {BATCH - 1: hold, 2 * BATCH - 1: look}
        run(jars, database_url)
    assert seen == [0]
    assert_handled(store, 10 * BATCH + 30)
    assert jars.twice == []


def test_what_needs_the_connection_is_not_decided_ahead(store, database_url):
    """Strategies need it between the batches."""
    jars, seen = Jars(options={"once": Processed()}), []
    send(store, 2 * BATCH)
    jars.at = {BATCH: lambda _: seen.append(position(database_url))}
    run(jars, database_url)
    assert_handled(store, 2 * BATCH)
    assert seen == [BATCH]
    assert jars.twice == []


def test_a_handler_that_raises_ahead_fails_only_its_own_message(store, database_url):
    """Its entity's later messages wait behind it, and no other handler is called again."""
    jars = Jars(attempts=1)
    send(store, 5 * BATCH)

    def fail(_):
        raise ValueError

    jars.at = {2 * BATCH: fail, 3 * BATCH + 50: fail}
    counts = run(jars, database_url)
    dead = {n for n in range(5 * BATCH) if n % JARS in {2 * BATCH % JARS, (3 * BATCH + 50) % JARS}}
    events = [event.decode(Filled).number for event in store.read_category("jar")]
    assert sorted(events) == sorted(set(events))
    assert set(range(5 * BATCH)).difference(events) <= dead
    assert {2 * BATCH, 3 * BATCH + 50}.isdisjoint(events)
    assert counts["dead"] == 2
    assert jars.twice == []


def test_what_a_handler_returns_ahead_and_cannot_be_written_fails_only_its_message(
    store, database_url
):
    """The batch before it is committed, and handlers before it are called twice, as ever."""
    jars = Jars(attempts=1)
    send(store, 3 * BATCH)

    def fill(command, jar, context):
        jars.calls[command.number] += 1
        return object() if command.number == BATCH + 50 else Filled(command.number, jar.last)

    jars.component = Component("jar", id="jar_id", entity=Jar, attempts=1)
    jars.component.handle(Put, once=None)(fill)
    jars.component.project(Filled)(Jars.filled)
    counts = run(jars, database_url)
    assert counts["dead"] == 1
    assert max(jars.calls.values()) == 2
    assert jars.twice == list(range(BATCH, BATCH + 50))


def test_what_was_decided_on_a_batch_that_is_not_committed_is_forgotten(store, database_url):
    """Where another writer was first, neither batch is written as it was decided."""
    jars, taken = Jars(), []
    send(store, 3 * BATCH)

    def overtake(_):
        if not taken:
            taken.append(store.write(Filled(-1, None), "jar-3"))

    jars.at = {BATCH - 1: overtake}
    run(jars, database_url)
    events = [event.decode(Filled) for event in store.read_category("jar")]
    assert Counter(event.number for event in events) == Counter([-1, *range(3 * BATCH)])
    assert [event.before for event in events if event.number == 3] == [-1]
    assert set(jars.twice) == set(range(2 * BATCH))


def test_who_loses_its_position_commits_nothing_that_was_decided_ahead(
    connection, store, database_url
):
    """It writes neither batch, and reads its position again."""
    jars, taken = Jars(), []
    send(store, 3 * BATCH)

    def take(_):
        if not taken:
            taken.append(connection.execute("UPDATE reservation.leases SET epoch = epoch + 1"))

    jars.at = {BATCH - 1: take}
    run(jars, database_url)
    assert_handled(store, 3 * BATCH)
    assert jars.twice == list(range(2 * BATCH))


def test_a_handler_that_asks_for_the_connection_ahead_gets_it_in_its_own_batch(
    connection, store, database_url
):
    """It is called once more then, and no batch is decided on ahead any more."""
    connection.execute("CREATE TABLE noted (number int)")
    jars, seen = Jars(), []
    send(store, 5 * BATCH)

    def note(context):
        context.connection.execute("INSERT INTO noted VALUES (1)")

    jars.at = {2 * BATCH + 5: note, 4 * BATCH: lambda _: seen.append(position(database_url))}
    run(jars, database_url)
    assert_handled(store, 5 * BATCH)
    assert connection.execute("SELECT count(*) FROM noted").fetchone() == (1,)
    assert jars.twice == list(range(2 * BATCH, 2 * BATCH + 6))
    assert seen == [4 * BATCH]


def test_a_stop_commits_what_was_decided_ahead(store, database_url):
    """No handler is called again after it."""
    jars, stop = Jars(), threading.Event()
    send(store, 5 * BATCH)
    jars.at = {BATCH + 7: lambda _: stop.set()}
    consumers.run(jars.component, database_url, stop=stop, batch_size=BATCH)
    run(jars, database_url)
    assert_handled(store, 5 * BATCH)
    assert jars.twice == []


@pytest.mark.parametrize("number", [BATCH, 2 * BATCH - 1])
def test_a_connection_that_is_lost_ahead_loses_nothing(connection, store, database_url, number):
    """Each message takes effect once all the same."""
    jars, cut = Jars(), []
    send(store, 4 * BATCH)

    def terminate(_):
        if not cut:
            cut.extend(
                connection.execute(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                    "WHERE application_name = 'reservation jar jar:command'"
                ).fetchall()
            )

    jars.at = {number: terminate}
    with hosted(jars.component, database_url, batch_size=BATCH):
        until(lambda: position(database_url) == 4 * BATCH)
    assert cut
    assert_handled(store, 4 * BATCH)
    assert max(jars.calls.values()) <= 2


def test_a_fork_ahead_comes_back_to_nothing(store, database_url):
    """A process that a handler forks ahead ends, and leaves what was sent alone."""
    jars, children = Jars(), []
    send(store, 3 * BATCH)
    jars.at = {BATCH + 3: lambda _: children.append(os.fork())}
    run(jars, database_url)
    assert os.waitpid(children[0], 0)[1] == 0
    assert_handled(store, 3 * BATCH)
    assert jars.twice == []


def test_an_entity_that_cannot_be_read_ahead_fails_in_its_turn(connection, store, database_url):
    """The batch before it is written, and of its own only that message fails."""
    jars = Jars(attempts=1)
    send(store, BATCH + 5)
    store.write(Put("torn", -1), f"{SENT}-torn")
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'jar-torn', 'Filled', '[]')"
    )
    counts = run(jars, database_url)
    assert (counts["handled"], counts["dead"]) == (BATCH + 5, 1)
    connection.execute("DELETE FROM message_store.messages WHERE stream_name = 'jar-torn'")
    assert_handled(store, BATCH + 5)
