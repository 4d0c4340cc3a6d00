"""Servers of ``reservation.http`` that are killed at every step, and the answers to the retries."""

import asyncio
import itertools
import random
import threading
from collections import Counter

import httpx
import pytest

import consumers
from reservation.http.identity import RequestId
from reservation.postgres.connection import connect
from tests import chance
from tests.consuming import until
from tests.http_app import (
    PATIENCE,
    Server,
    account,
    consuming,
    fastapi_app,
    key_headers,
    serving,
    starlette_app,
)
from tests.ports import free_port
from tests.proxy import Cut, Proxy
from tests.test_http import DEPOSITS, balance, sent, whole

pytestmark = pytest.mark.faults

WAITS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock' AND query LIKE %s"
)
STEPS = ("row", "command", "outcome", "answer stored", "answer sent")


def poll(connection, query, parameters=()):
    """Wait until a query counts something."""
    for _ in range(int(PATIENCE / 0.01)):
        if connection.execute(query, parameters).fetchone()[0]:
            return
        threading.Event().wait(0.01)  # nothing in the server tells
    raise AssertionError(query)


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


def finished(answer):
    """Return an answer; None while the request is in progress."""
    return None if answer.status_code == 409 else answer


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
    with Proxy(database_url) as proxy, consuming(database_url):
        app = starlette_app(proxy.address, timeout=PATIENCE)
        with serving(app) as address:
            proxy.cut(cut, statement)
            # 409: the server has not noticed that the connection is lost, so the request is in
            # progress.
            answers = [
                post(address),
                *(until(lambda: finished(post(address))) for _ in range(2)),
            ]
            assert proxy.happened.is_set()
    assert [answer.status_code for answer in answers[1:]] == [201, 201]
    assert answers[0].status_code in (201, 409, 503)
    assert len({answer.content for answer in answers if answer.status_code == 201}) == 1
    assert (sent(connection), balance(connection)) == (1, 10)


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

    async def send_all(self, keys, kills, *, workers=12):
        """Send requests, while a server is killed after each so many answers."""
        waiting, count = list(keys), 0
        self._drawn.shuffle(waiting)
        kill_at = {len(waiting) * (n + 1) // (kills + 1) for n in range(kills)}

        async def work(client):
            nonlocal count
            while waiting:
                key, amount = waiting.pop()
                self.answers.setdefault(key, []).append(await self._insist(client, key, amount))
                count += 1
                if count in kill_at:
                    await asyncio.to_thread(self._fleet.kill_one, self._drawn.randrange(2))

        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            await asyncio.gather(*(work(client) for _ in range(workers)))

    async def _insist(self, client, key, amount):
        while True:
            address = self._drawn.choice(self._fleet.servers).address
            try:
                answer = await client.post(
                    address + DEPOSITS, json={"amount": amount}, headers=key_headers(key)
                )
            except httpx.TransportError:
                self.interrupted.append(self._step_of(key))
                continue
            if answer.status_code not in (409, 503):
                return answer

    def _step_of(self, key):
        one = RequestId.of("alice", key)
        ((row, command, answered),) = self._connection.execute(
            "SELECT count(h.id), count(m.id), count(h.status) FROM (VALUES (%s::uuid, %s::uuid)) "
            "AS v(request, command) LEFT JOIN reservation.http_requests h ON h.id = v.request "
            "LEFT JOIN message_store.messages m ON m.id = v.command",
            [one.uuid, one.command_id(0)],
        )
        return "answered" if answered else "command" if command else "row" if row else "nothing"


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        pytest.param(100, 3, id="100", marks=pytest.mark.slow),
        pytest.param(1000, 20, id="1000", marks=pytest.mark.long),
    ],
)
def test_every_retry_is_answered_like_the_first_time(database_url, connection, count, kills):
    """Whatever is killed when, all answers to a request are equal, and its deposit counts once."""
    keys = [(f"key-{n}", n + 1) for n in range(count)]
    fleet = Fleet(database_url, kills + 1)
    clients = Clients(database_url, fleet, chance.FIRST)
    try:
        with consuming(database_url):
            asyncio.run(clients.send_all(keys, kills))
            asyncio.run(clients.send_all(keys, 1))
    finally:
        fleet.close()
    assert fleet.killed == kills + 1
    steps = Counter(clients.interrupted)
    assert steps["command"] + steps["answered"] > 0, steps
    firsts = {key: answers[0] for key, answers in clients.answers.items()}
    assert {key for key, answer in firsts.items() if answer.status_code != 201} == set()
    different = [
        key for key, (first, again) in clients.answers.items() if whole(first) != whole(again)
    ]
    assert different == []
    stored = dict(connection.execute("SELECT id, body FROM reservation.http_requests"))
    for key, _ in keys:
        assert stored[RequestId.of("alice", key).uuid] == firsts[key].content
    assert len(stored) == count
    assert balance(connection) == sum(amount for _, amount in keys)
    assert sent(connection) == count
    effects = Counter(
        row[0]
        for row in connection.execute(
            "SELECT data->>'depositId' FROM message_store.messages WHERE type = 'Deposited'"
        )
    )
    assert set(effects.values()) == {1}
