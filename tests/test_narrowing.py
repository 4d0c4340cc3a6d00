"""How the message is found with which a batch of 1,000 failed, and how often the others are called.

What an innocent message of such a batch costs is counted in calls of its handler: each of them may
have effects outside the database.
"""

from collections import Counter
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

import consumers
from consumers.loop.consumer import Consumer
from consumers.loop.narrowing import Narrowing
from consumers.runtime.stopping import Stop
from reservation import Component, MessageIdInEvents, PositionInEvents, Processed
from reservation.errors import HandlerError
from tests.bank import session, wait_until_drained
from tests.controls import COMMANDS, deposit, open_
from tests.poison import Poison
from tests.processes import PATIENCE
from tests.two_accounts import letters, start

BATCH, BAD = 1000, 500
SENT = "jar:command-1"


@dataclass(frozen=True)
class Put:
    jar_id: str
    number: int


@dataclass(frozen=True)
class Wait:
    jar_id: str
    number: int


@dataclass(frozen=True)
class Filled:
    number: int


class Jars:
    """A component that counts the calls of its handler, by the number of the message."""

    def __init__(self, *bad: int, uses_connection: bool = False, **options) -> None:
        """Declare it.

        Args:
            bad: the numbers of the messages whose handler raises.
            uses_connection: whether the handler reads through the connection of its batch.
            options: of the handler.
        """
        self.calls: Counter[int] = Counter()
        self.component = Component("jar", id="jar_id")
        self.component.handle(Put, **options)(self.put)
        self._bad = bad
        self._uses_connection = uses_connection

    def put(self, command: Put, entity: None, context) -> Filled:
        self.calls[command.number] += 1
        if self._uses_connection:
            context.connection.execute("SELECT 1")
        if command.number in self._bad:
            raise ValueError
        return Filled(command.number)

    @property
    def most(self) -> int:
        """How often a message whose handler does not raise was called at most."""
        return max(calls for number, calls in self.calls.items() if number not in self._bad)


def handled(store) -> list[int]:
    """Return the numbers that were put into jars, in the order of the log."""
    return [event.decode(Filled).number for event in store.read_category("jar")]


def dead(connection) -> list[tuple[int, str, str, int]]:
    """Return the dead letters as (number, state, reason, attempts)."""
    return connection.execute(
        "SELECT (m.data->>'number')::int, l.state, l.reason, l.attempts "
        "FROM reservation.dead_letters l JOIN message_store.messages m USING (global_position) "
        "ORDER BY l.global_position"
    ).fetchall()


def send(store, count: int = BATCH) -> None:
    """Write so many messages, each for a jar of its own."""
    store.write([Put(str(number), number) for number in range(count)], SENT)


def taken(narrowing: Narrowing, log: str) -> list[int]:
    """Take a log to its end whose messages x fail, and return the sizes of the batches tried."""
    sizes = []
    while log:
        batch = log[: 1 if narrowing.singly else narrowing.limit]
        sizes.append(len(batch))
        if "x" in batch and not narrowing.singly:
            narrowing.failed(len(batch), None)
            continue
        narrowing.committed(len(batch), ends_before_failed=False, found=False)
        log = log[len(batch) :]
    return sizes


def test_a_failed_batch_is_halved_until_its_message_is_found_and_then_grows_again():
    """A failed batch is halved until its message is found; each later batch is twice as large."""
    narrowing = Narrowing(100)
    sizes = taken(narrowing, "." * 70 + "x" + "." * 300)
    assert sizes[:10] == [100, 50, 25, 12, 6, 3, 1, 1, 1, 2]
    assert sizes[-3:] == [64, 100, 74]


@pytest.mark.parametrize("bad", range(0, 64, 7))
def test_halving_finds_the_message_wherever_it_is(bad):
    """Wherever the message is, it is found after as many failures as there are halves."""
    narrowing = Narrowing(64)
    sizes = taken(narrowing, "." * bad + "x" + "." * (63 - bad))
    assert sum(sizes) <= 64 * 7
    assert not narrowing.searches


def commit(narrowing: Narrowing, size: int, *, raised: bool = False, found: bool = False) -> None:
    narrowing.committed(size, ends_before_failed=raised, found=found)


def test_messages_before_one_that_is_named_are_a_batch_and_then_it_is_handled_by_itself():
    """Where the error names a message, those before it make up the next batch."""
    narrowing = Narrowing(100)
    narrowing.failed(100, 40)
    assert (narrowing.limit, narrowing.singly) == (40, False)
    commit(narrowing, 40)
    assert (narrowing.limit, narrowing.singly, narrowing.searches) == (1, True, True)
    commit(narrowing, 1)
    assert (narrowing.limit, narrowing.singly, narrowing.searches) == (2, False, False)


def test_after_a_death_messages_are_handled_singly_until_one_is_given_up():
    """After a death each message is handled by itself, until one is given up for it."""
    narrowing = Narrowing(100)
    narrowing.died()
    for _ in range(30):
        assert narrowing.singly
        commit(narrowing, 1)
    commit(narrowing, 1, found=True)
    assert (narrowing.limit, narrowing.singly, narrowing.searches) == (2, False, False)


def test_after_a_death_as_many_messages_are_handled_singly_as_two_batches_have():
    """If no message ends the process again, batches grow after as many as it may have been at."""
    narrowing = Narrowing(3)
    narrowing.died()
    for _ in range(6):
        assert narrowing.singly
        commit(narrowing, 1)
    assert (narrowing.limit, narrowing.singly) == (2, False)


def test_at_the_end_of_the_category_nothing_is_searched_for():
    """Where there are no further messages, the next batch is a whole one."""
    narrowing = Narrowing(100)
    narrowing.died()
    narrowing.failed(10, None)
    narrowing.ended()
    assert (narrowing.limit, narrowing.singly, narrowing.searches) == (100, False, False)


def test_a_batch_is_committed_up_to_the_message_whose_handler_raised(
    connection, store, database_url
):
    """Where a handler raised, no other handler is called more than once."""
    jars = Jars(BAD)
    send(store)
    done = consumers.drain(jars.component, database_url)
    assert jars.most == 1
    assert jars.calls[BAD] == 1 + 3
    assert done.counts == {"handled": BATCH - 1, "dead": 1}
    assert handled(store) == [n for n in range(BATCH) if n != BAD]
    assert dead(connection) == [(BAD, "dead", "handler", 3)]


@pytest.mark.parametrize(
    "once", [None, Processed(), MessageIdInEvents(), PositionInEvents()], ids=str
)
def test_every_second_handler_raises_and_the_others_are_called_once(
    connection, store, database_url, once
):
    """However many messages fail, the handlers of the others are called once, by any strategy."""
    jars = Jars(*range(1, 100, 2), once=once)
    jars.component.attempts = 1
    send(store, 100)
    consumers.drain(jars.component, database_url)
    assert jars.most == 1
    assert handled(store) == list(range(0, 100, 2))
    assert len(dead(connection)) == 50


def test_a_handler_that_used_the_connection_and_raised_has_those_before_it_called_twice(
    connection, store, database_url
):
    """Where a handler used the connection and raised, those before it are called again."""
    jars = Jars(BAD, uses_connection=True)
    send(store)
    consumers.drain(jars.component, database_url)
    assert {calls for number, calls in jars.calls.items() if number < BAD} == {2}
    assert {calls for number, calls in jars.calls.items() if number > BAD} == {1}
    assert dead(connection) == [(BAD, "dead", "handler", 3)]


def test_in_a_batch_with_async_handlers_the_others_are_called_twice(
    connection, store, database_url
):
    """Where a handler raised beside async ones, the others are called twice at most."""
    jars = Jars(100)

    @jars.component.handle(Wait)
    async def wait(command: Wait, entity: None, context) -> Filled:
        jars.calls[command.number] += 1
        return Filled(command.number)

    numbers = range(200)
    store.write([(Wait if n % 2 else Put)(str(n), n) for n in numbers], SENT)
    consumers.drain(jars.component, database_url)
    assert jars.most == 2
    assert handled(store) == [n for n in numbers if n != 100]
    assert dead(connection) == [(100, "dead", "handler", 3)]


def test_what_would_have_become_of_later_messages_is_taken_back(connection, store, database_url):
    """What a batch found of the messages after the one that failed is counted once."""
    jars = Jars(2)
    store.write([Put("1", 1), Put("2", 2)], SENT)
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::text, %s, type, data::jsonb) "
        "FROM (VALUES ('Put', '{}'), ('Unknown', '{}')) AS m (type, data)",
        [SENT],
    )
    jars.component.ignore("Unknown")
    store.write(Put("3", 3), SENT)
    with capture_logs() as logged:
        done = consumers.drain(jars.component, database_url)
    assert done.counts == {"handled": 2, "dead": 2, "ignored": 1}
    batches = [event for event in logged if event["event"] == "batch_committed"]
    assert (batches[0]["read"], batches[0]["handled"]) == (1, 1)
    assert {"dead", "ignored"}.isdisjoint(batches[0])
    assert [letter[:3] for letter in dead(connection)] == [
        (2, "dead", "handler"),
        (None, "dead", "undecodable"),
    ]


def test_a_consumer_that_stops_on_errors_stops_behind_what_came_before(
    connection, store, database_url
):
    """With `stop_on_error` all messages before the one that failed are handled, each once."""
    jars = Jars(BAD)
    send(store)
    with session(database_url) as opened:
        consumer = Consumer(opened, jars.component, "jar:command", stop_on_error=True)
        with pytest.raises(HandlerError):
            consumer.run(Stop(takes_signals=False))
    assert jars.most == 1
    assert handled(store) == list(range(BAD))


def test_a_message_that_a_statement_is_refused_for_is_found_by_halving(
    connection, store, database_url
):
    """A refused statement names no message: it is found in ten calls of another at most."""
    connection.execute(
        "CREATE TABLE taken (n int PRIMARY KEY);"
        "INSERT INTO taken VALUES (1);"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO public.taken VALUES (1); RETURN NULL; END $$;"
        "CREATE TRIGGER refuse AFTER INSERT ON message_store.messages FOR EACH ROW "
        f"WHEN (NEW.type = 'Filled' AND NEW.data->>'number' = '{BAD}') EXECUTE FUNCTION refuse()"
    )
    jars = Jars()
    send(store)
    done = consumers.drain(jars.component, database_url)
    others = {number: calls for number, calls in jars.calls.items() if number != BAD}
    assert max(others.values()) <= 10
    assert done.counts == {"handled": BATCH - 1, "dead": 1}
    assert handled(store) == [n for n in range(BATCH) if n != BAD]
    assert dead(connection) == [(BAD, "dead", "write", 3)]


@pytest.mark.faults
def test_a_message_that_ends_the_process_costs_another_one_call_more(
    connection, store, database_url, tmp_path
):
    """Nine hundred messages before one that ends its process are called twice, over four deaths.

    The first death is that of the batch. The next process commits each of them by itself, and finds
    the message; from then on only its attempts end processes.
    """
    poison = Poison(tmp_path, bad="exit")
    store.write([open_(), open_("456")], COMMANDS)
    before = [deposit(f"d{number}") for number in range(900)]
    behind = [deposit(f"e{number}") for number in range(BATCH - 901)]
    store.write([*before, deposit("bad", account="456"), *behind], COMMANDS)
    with start(database_url, poison, "--only", "commands") as started:
        wait_until_drained(connection, started, categories=["account:command"])
        assert started.stop() == 0
    commits = []
    for _ in range(1 + 3):
        with start(database_url, poison, "--only", "reserved") as started:
            started.process.wait(PATIENCE)
        commits.append(started.log.count('"batch_committed"'))
    with start(database_url, poison, "--only", "reserved") as started:
        started.wait_for("message_dead", reason="process_died", attempts=3)
        wait_until_drained(connection, started)
        assert started.stop() == 0
    assert commits == [0, len(before), 0, 0]
    assert poison.calls("bad") == 1 + 3
    assert {poison.calls(f"d{number}") for number in range(len(before))} == {2}
    assert {poison.calls(f"e{number}") for number in range(len(behind))} == {1}
    assert letters(connection) == [("bad", "dead", "process_died", 3)]


@pytest.mark.faults
def test_a_message_that_ends_the_process_ahead_costs_no_further_death(
    connection, store, database_url, tmp_path
):
    """A message of the second batch ends its process while the first is written: it is found too.

    Whether the first batch was committed then is up to the server.
    """
    poison = Poison(tmp_path, bad="exit")
    store.write([open_(), open_("456")], COMMANDS)
    before = [deposit(f"d{number}") for number in range(BATCH + 500)]
    behind = [deposit(f"e{number}") for number in range(BATCH)]
    store.write([*before, deposit("bad", account="456"), *behind], COMMANDS)
    with start(database_url, poison, "--only", "commands") as started:
        wait_until_drained(connection, started, categories=["account:command"])
        assert started.stop() == 0
    for _ in range(1 + 3):
        with start(database_url, poison, "--only", "reserved") as started:
            started.process.wait(PATIENCE)
    with start(database_url, poison, "--only", "reserved") as started:
        started.wait_for("message_dead", reason="process_died", attempts=3)
        wait_until_drained(connection, started)
        assert started.stop() == 0
    assert poison.calls("bad") == 1 + 3
    assert {poison.calls(f"d{number}") for number in range(len(before))} <= {1, 2}
    assert {poison.calls(f"e{number}") for number in range(len(behind))} == {1}
    assert letters(connection) == [("bad", "dead", "process_died", 3)]
