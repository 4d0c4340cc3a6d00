"""Waiting for the outcome of a command, in threads and in an event loop."""

import asyncio
import math
import threading
import time

import pytest

from reservation import AsyncMessageStore, MessageStore, Write
from reservation.errors import StoreError
from tests.apps.answering import INTO, LIMIT, SENT, Taken, till
from tests.apps.bank import drain
from tests.apps.http_app import Deposit, account
from tests.store.builders import switch_notices
from tests.store.clients import CLIENTS, in_loop
from tests.store.test_outcome import take
from tests.support.consuming import hosted
from tests.support.consuming import until as wait_until
from tests.support.started import PATIENCE
from tests.support.stepping import each_step

NOTICES = pytest.mark.parametrize("notices", ["off", "on"], ids=["polling", "notices"])


@pytest.fixture
def running(database_url):
    """Run the component's consumers in a thread, and stop them after the test."""
    component = till(**INTO)
    with hosted(component, database_url):
        yield component


LISTENING = """
FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'reservation-wait'
"""


def listening(connection):
    """Return how many connections there are for waiting."""
    return connection.execute(f"SELECT count(*) {LISTENING}").fetchall()[0][0]


def expecting(connection):
    """Return how many of them wait just now."""
    query = f"SELECT count(*) {LISTENING} AND query LIKE '%%expect_notice(%%' AND state = 'idle'"
    return connection.execute(query).fetchall()[0][0]


def cut(connection):
    """End the connections for waiting, in the server."""
    connection.execute(f"SELECT pg_terminate_backend(pid) {LISTENING}")


@NOTICES
@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_a_sender_waits_for_each_kind_of_outcome(
    connection, database_url, running, notices, client
):
    """Whatever becomes of the command, its sender is answered."""
    switch_notices(connection, notices)
    expected = {"handled": take(1), "rejected": take(2, LIMIT + 1), "dead": take(4, -1)}
    async with await client.open(database_url) as store:
        for state, command in expected.items():
            await store.write(command, SENT)
            outcome = await store.wait_for(command, running, timeout=PATIENCE)
            assert outcome.state == state
            assert outcome == await store.outcome(command, running)


@NOTICES
def test_a_timeout_returns_the_outcome_as_it_is(connection, database_url, notices):
    """After the timeout the command is pending, or unknown, and that is what is returned."""
    component = till(**INTO)
    switch_notices(connection, notices)
    with MessageStore.open(database_url) as store:
        began = time.monotonic()
        assert store.wait_for(take(), component, timeout=0.3).state == "unknown"
        assert 0.3 <= time.monotonic() - began < PATIENCE
        store.write(take(), SENT)
        assert store.wait_for(take(), component, timeout=0).state == "pending"


@pytest.mark.parametrize("timeout", [-1, "1", None, True, float("nan")])
def test_a_timeout_that_is_none_is_refused(store, timeout):
    """A timeout is a number of seconds."""
    with pytest.raises(StoreError, match="is not a number of seconds"):
        store.wait_for(take(), till(**INTO), timeout=timeout)


def test_waiting_in_a_transaction_is_refused(store, connection):
    """What is written in a transaction is not handled before its end."""
    with connection.transaction(), pytest.raises(StoreError, match="commit first"):
        store.wait_for(take(), till(**INTO))
    connection.autocommit = False
    with pytest.raises(StoreError, match="commit first"):
        store.wait_for(take(), till(**INTO))


def test_a_notice_ends_the_wait(connection, database_url, monkeypatch):
    """With notices the answer comes with the event, and not with the next look."""
    component = till(**INTO)
    monkeypatch.setattr("reservation.store.answers.pace.Pace.pause", lambda *_, **__: PATIENCE)
    with MessageStore.open(database_url) as store:
        for n in range(3):
            store.write(take(n), SENT)
            answers = []
            waiting = threading.Thread(
                target=lambda n=n, answers=answers: answers.append(
                    store.wait_for(take(n), component, timeout=2 * PATIENCE)
                )
            )
            began = time.monotonic()
            waiting.start()
            wait_until(lambda: expecting(connection))
            drain(connection, component)
            waiting.join()
            assert [answer.state for answer in answers] == ["handled"]
            assert time.monotonic() - began < PATIENCE
        assert listening(connection) == 1  # one was kept
    wait_until(lambda: not listening(connection))


def test_threads_wait_side_by_side(connection, database_url, running):
    """Each of many threads gets its own answer."""
    with MessageStore.open(database_url, max_connections=3) as store:
        answers = {}

        def ask(n):
            store.write(take(n, n), SENT)
            answers[n] = store.wait_for(take(n, n), running, timeout=PATIENCE).events

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 13)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {n: (Taken(f"t{n}", "1", n),) for n in range(1, 13)}
    wait_until(lambda: not listening(connection))


@in_loop
async def test_tasks_share_one_connection(connection, database_url, running):
    """Hundreds of tasks wait with one connection that listens, also when it is lost meanwhile."""
    async with await AsyncMessageStore.open(database_url) as store:
        commands = [take(n) for n in range(100)]
        waiting = [
            asyncio.create_task(store.wait_for(command, running, timeout=PATIENCE))
            for command in commands
        ]
        await asyncio.to_thread(wait_until, lambda: expecting(connection))
        assert listening(connection) == 1
        cut(connection)
        await store.write_batch([Write(command, SENT) for command in commands])
        answers = await asyncio.gather(*waiting)
        assert {answer.state for answer in answers} == {"handled"}
        waiting = [
            asyncio.create_task(store.wait_for(take(n), running, timeout=PATIENCE))
            for n in range(1000, 1010)
        ]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    wait_until(lambda: not listening(connection))


@pytest.mark.parametrize("times", [1, math.inf], ids=["once", "again and again"])
@in_loop
async def test_a_wait_that_is_cancelled_at_any_moment(
    connection, database_url, running, times, monkeypatch
):
    """A task that waits for another category gets its notice, and nobody listens in the end."""
    pauses = [PATIENCE]
    monkeypatch.setattr("reservation.store.answers.pace.Pace.pause", lambda *_, **__: pauses[0])
    stores, answers = [], []

    async def cancelled(step):
        """Be the second that waits on a connection; be cancelled only then."""
        await stores[0].wait_for(Deposit(f"d{step}", "1", 1), account, timeout=0.1)

    async def begin():
        pauses[0] = PATIENCE
        stores[:] = [await AsyncMessageStore.open(database_url, max_connections=2)]
        number = -len(answers) - 1
        answers.append(
            asyncio.create_task(stores[0].wait_for(take(number), running, timeout=2 * PATIENCE))
        )
        await asyncio.to_thread(wait_until, lambda: expecting(connection))
        pauses[0] = 0.05

    await begin()
    async for _ in each_step(cancelled, times):
        began = time.monotonic()
        await stores[0].write(take(-len(answers)), SENT)
        assert (await answers[-1]).state == "handled"
        assert time.monotonic() - began < PATIENCE / 2
        await stores[0].close()
        await begin()
    assert len(answers) > 2
    answers[-1].cancel()
    await asyncio.wait(answers)
    await stores[0].close()
    await asyncio.to_thread(wait_until, lambda: not listening(connection))


def test_a_listener_is_lost_and_found_again(connection, database_url, running):
    """A connection that is cut while it waits costs no answer."""
    with MessageStore.open(database_url) as store:
        for n in range(3):
            cut(connection)
            store.write(take(n), SENT)
            assert store.wait_for(take(n), running, timeout=PATIENCE).state == "handled"


def test_a_store_on_a_connection_leaves_nothing_open(store, connection, running):
    """A store that is made for a connection need not be closed."""
    store.write(take(), SENT)
    assert store.wait_for(take(), running, timeout=PATIENCE).state == "handled"
    wait_until(lambda: not listening(connection))
