"""Servers of ``reservation.http`` that are killed at every step, and the answers to the retries."""

import asyncio
import itertools
import random
import threading
from collections import Counter

import httpx
import pytest
from psycopg import connect

import consumers
from tests.apps.http_app import (
    PATIENCE,
    Server,
    account,
    consuming,
    fastapi_app,
    key_headers,
    starlette_app,
)
from tests.store.test_http import DEPOSITS, balance, check_lost_connection, sent, whole
from tests.support import chance
from tests.support.consuming import until
from tests.support.ports import free_port
from tests.support.proxy import Cut

WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock' AND query LIKE %s"
)
STEPS = ("row", "command", "outcome", "answer stored", "answer sent")


def poll(connection, query, parameters=()):
    """Wait until a query counts something."""
    until(lambda: connection.execute(query, parameters).fetchone()[0])


def post(address, timeout=PATIENCE):
    headers = key_headers("k")
    return httpx.post(address + DEPOSITS, json={"amount": 10}, headers=headers, timeout=timeout)


def kill_before(step, server, connection, locking, database_url):
    """Have a request come as far as a step, and kill its server there."""

    def lost():
        with pytest.raises(httpx.TransportError):
            post(server.address)

    client = threading.Thread(target=lost)
    with locking.transaction():
        match step:
            case "row":
                locking.execute("LOCK TABLE reservation.http_requests IN EXCLUSIVE MODE")
            case "command":
                locking.execute(
                    "SELECT pg_advisory_xact_lock(message_store.hash_64('account:command'))"
                )
        if step != "answer sent":
            client.start()
        match step:
            case "row":
                poll(connection, WAITS, ["%begin_http_request%"])
            case "command":
                poll(connection, WAITS, ["%commit_message%"])
            case "outcome":
                poll(connection, "SELECT count(*) FROM message_store.messages")
            case "answer stored":
                poll(connection, "SELECT count(*) FROM message_store.messages")
                locking.execute("SELECT FROM reservation.http_requests FOR UPDATE")
                consumers.drain(account, database_url)
                poll(connection, WAITS, ["%answer_http_request%"])
            case "answer sent":
                # The client is gone before it can read the answer.
                with consuming(database_url):
                    with pytest.raises(httpx.ReadTimeout):
                        post(server.address, timeout=httpx.Timeout(PATIENCE, read=0.000001))
                    poll(connection, "SELECT count(status) FROM reservation.http_requests")
        server.kill()
    if step != "answer sent":
        client.join(PATIENCE)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
def test_a_kill_before_any_step_is_harmless(database_url, connection, make, step):
    """Wherever a server dies, the next one answers at once, the command counts once."""
    port, options = free_port(), {"database_url": database_url, "timeout": PATIENCE}
    with connect(database_url, autocommit=True) as locking:
        with Server(make, port, **options) as server:
            kill_before(step, server, connection, locking, database_url)
        with (
            Server(make, port, **options, version="2") as server,
            consuming(database_url),
        ):
            answers = [post(server.address) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201] * 3
    assert whole(answers[0]) == whole(answers[1]) == whole(answers[2])
    assert (sent(connection), balance(connection)) == (1, 10)
    ours = connection.execute("SELECT body FROM reservation.http_requests").fetchall()
    assert ours == [(answers[0].content,)]
    if step == "answer sent":
        assert answers[0].json()["version"] == "1"


STATEMENTS = (
    "pg_try_advisory_lock",
    "begin_http_request",
    "reservation.commit_message",
    "reservation.outcome",
    "answer_http_request",
    "pg_advisory_unlock",
)


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_lost_connection_at_any_statement_is_harmless(database_url, connection, statement, cut):
    """Wherever the database is lost, the answer says to try again or is the right one."""
    check_lost_connection(database_url, connection, statement, cut)


WAITING = ("command", "reserved")


class Fleet:
    """Servers of which one is killed again and again, and replaced.

    All have started before the first is killed, so that requests are on their way at each kill.
    """

    def __init__(self, database_url, kills, size=2):
        self._database_url = database_url
        self._versions = itertools.count(1)
        self.servers = [self._start() for _ in range(size)]
        self._following = [self._start() for _ in range(kills)]
        for server in (*self.servers, *self._following):
            server.await_start()
        self.killed = 0

    def _start(self):
        return Server(
            starlette_app,
            free_port(),
            database_url=self._database_url,
            timeout=PATIENCE,
            version=str(next(self._versions)),
        )

    def kill_one(self, number):
        """Kill a server, and put another in its place."""
        killed, self.servers[number] = self.servers[number], self._following.pop()
        killed.kill()
        self.killed += 1

    def close(self):
        for server in (*self.servers, *self._following):
            server.kill()


class Clients:
    """Clients that send each request until it is answered.

    Attributes:
        answers: by key the answers, in the order in which they came.
        interrupted: by key how far a request had come when its server died.
    """

    def __init__(self, database_url, fleet, seed):
        self.answers, self.interrupted = {}, []
        self._fleet, self._drawn = fleet, random.Random(seed)
        self._connection = connect(database_url, autocommit=True)
        self._locking = connect(database_url, autocommit=True)
        self._servers_of = {}

    def close(self):
        self._connection.close()
        self._locking.close()

    async def send_all(self, keys, kills, *, workers=12, held=False):
        """Send requests, while a server is killed after each so many answers.

        With `held` every other one is killed while it waits for what becomes of a command.
        """
        waiting, count = list(keys), 0
        kill = itertools.cycle([self._kill_waiting if held else self._kill_any, self._kill_any])
        self._drawn.shuffle(waiting)
        kill_at = {len(waiting) * (n + 1) // (kills + 1) for n in range(kills)}

        async def work(client):
            nonlocal count
            while waiting:
                key, amount = waiting.pop()
                self.answers.setdefault(key, []).append(await self._insist(client, key, amount))
                count += 1
                if count in kill_at:
                    await asyncio.to_thread(next(kill))

        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            await asyncio.gather(*(work(client) for _ in range(workers)))

    def _kill_any(self):
        self._fleet.kill_one(self._drawn.randrange(2))

    def _kill_waiting(self):
        with self._locking.transaction():
            # The consumer cannot write events, so commands stay without an outcome.
            self._locking.execute("SELECT pg_advisory_xact_lock(message_store.hash_64('account'))")
            self._fleet.kill_one(until(self._waiting_servers)[0])

    def _waiting_servers(self):
        servers = list(self._servers_of.items())
        return [number for key, number in servers if self._step_of(key) in WAITING]

    async def _insist(self, client, key, amount):
        while True:
            self._servers_of[key] = self._drawn.randrange(2)
            address = self._fleet.servers[self._servers_of[key]].address
            try:
                answer = await client.post(
                    address + DEPOSITS, json={"amount": amount}, headers=key_headers(key)
                )
            except httpx.TransportError:
                self.interrupted.append(self._step_of(key))
                continue
            finally:
                del self._servers_of[key]
            if answer.status_code not in (409, 503):
                return answer

    def _step_of(self, key):
        """Return how far a request has come; each is of another amount."""
        query = "SELECT count(*) FROM message_store.messages WHERE data->'amount' = %s::text::jsonb"
        (messages,) = self._connection.execute(query, [key.removeprefix("key-")]).fetchone()
        return ("nothing", "command", "reserved", "effect")[messages]


@pytest.mark.parametrize(
    ("count", "kills"),
    [(100, 3), (1000, 20)],
)
def test_every_retry_is_answered_like_the_first_time(database_url, connection, count, kills):
    """Whatever is killed when, all answers to a request are equal, and its deposit counts once."""
    keys = [(f"key-{n}", n) for n in range(1, count + 1)]
    fleet = Fleet(database_url, kills + 1)
    clients = Clients(database_url, fleet, chance.FIRST)
    try:
        with consuming(database_url):
            asyncio.run(clients.send_all(keys, kills, held=True))
            asyncio.run(clients.send_all(keys, 1))
    finally:
        fleet.close()
        clients.close()
    assert fleet.killed == kills + 1
    steps = Counter(clients.interrupted)
    assert steps.total() > steps["nothing"], steps
    firsts = {key: answers[0] for key, answers in clients.answers.items()}
    assert {key for key, answer in firsts.items() if answer.status_code != 201} == set()
    different = [
        key for key, (first, again) in clients.answers.items() if whole(first) != whole(again)
    ]
    assert different == []
    stored = [body for (body,) in connection.execute("SELECT body FROM reservation.http_requests")]
    assert sorted(stored) == sorted(answer.content for answer in firsts.values())
    assert balance(connection) == sum(amount for _, amount in keys)
    assert sent(connection) == count
    effects = Counter(
        row[0]
        for row in connection.execute(
            "SELECT data->>'depositId' FROM message_store.messages WHERE type = 'Deposited'"
        )
    )
    assert set(effects.values()) == {1}
