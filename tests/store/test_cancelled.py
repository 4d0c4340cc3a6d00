"""A task can be cancelled wherever it waits, and leaves nothing taken."""

import asyncio
import math
import random

import httpx
import pytest
from psycopg_pool import AsyncConnectionPool

from reservation import AsyncMessageStore
from tests.apps.http_app import PATIENCE, consuming, key_headers, starlette_app
from tests.store.clients import in_loop
from tests.store.test_http import DEPOSITS, balance
from tests.support import chance
from tests.support.controls import deposit
from tests.support.stepping import each_step

TIMES = pytest.mark.parametrize("times", [1, math.inf], ids=["once", "again and again"])


async def post(client, key, amount=1):
    return await client.post(DEPOSITS, json={"amount": amount}, headers=key_headers(key))


async def answered(client, key, amount=1):
    """Send a request until it is not in progress any more."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await post(client, key, amount)
            if answer.status_code != 409:
                return answer
            await asyncio.sleep(0.01)  # nothing tells


def locks(connection):
    """Return how many requests are locked."""
    return connection.execute(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE locktype = 'advisory' AND application_name = 'reservation http'"
    ).fetchone()[0]


async def check_keys(client, connection, keys):
    """Check that each request can be answered, and nothing of it is left."""
    answers = [await answered(client, key) for key in keys]
    assert {answer.status_code for answer in answers} == {201}
    assert balance(connection) == len(keys)
    assert locks(connection) == 0


@TIMES
@in_loop
async def test_a_request_that_is_cancelled_at_any_moment(database_url, connection, times):
    """Its key is not in progress afterwards, in this process and in others."""
    app = starlette_app(database_url)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with consuming(database_url):
            steps = each_step(lambda step: post(client, f"k{step}"), times)
            keys = [f"k{step}" async for step in steps]
            assert len(keys) > 5
            await check_keys(client, connection, [*keys, f"k{len(keys) + 1}"])


@TIMES
@in_loop
async def test_a_cancelled_request_whose_answer_is_not_stored(database_url, connection, times):
    """The application answers it when it is sent again."""
    transport = httpx.ASGITransport(starlette_app(database_url))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        async for step in each_step(lambda step: post(client, f"k{step}", "none"), times):
            assert (await answered(client, f"k{step}", "none")).status_code == 400
        assert step > 2
    assert locks(connection) == 0


@pytest.mark.parametrize("seed", chance.seeds(1))
@in_loop
async def test_many_requests_that_are_cancelled_by_chance(database_url, connection, seed):
    """The same at moments of the clock, with many requests at a time."""
    drawn = random.Random(seed)
    app = starlette_app(database_url)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        with consuming(database_url):
            await answered(client, "first")
            running = asyncio.Semaphore(10)

            async def one(number):
                async with running:
                    task = asyncio.create_task(post(client, f"k{number}"))
                    await asyncio.wait([task], timeout=drawn.uniform(0, 0.06))
                    while not task.done():
                        task.cancel()
                        await asyncio.sleep(0)

            await asyncio.gather(*(one(number) for number in range(50)))
            keys = ["first", *(f"k{number}" for number in range(50))]
            await check_keys(client, connection, keys)


@TIMES
@pytest.mark.parametrize(("autocommit", "gather"), [(True, False), (False, True)])
@in_loop
async def test_a_call_of_a_store_that_is_cancelled_at_any_moment(
    database_url, connection, times, autocommit, gather
):
    """The pool has all its connections back, however busy it is."""
    kwargs = {"autocommit": autocommit}
    async with AsyncConnectionPool(
        database_url, min_size=2, max_size=2, kwargs=kwargs, open=False
    ) as pool:
        await pool.wait()
        store = AsyncMessageStore(pool, gather=gather)

        async def read():
            return [message async for message in store.read_category("account", batch_size=5)]

        calls = [
            lambda step: store.write(deposit(f"d{step}"), "account-1"),
            lambda step: store.write(deposit(f"d{step}"), "account-1", after="1h"),
            lambda _: read(),
        ]
        stop = asyncio.Event()

        async def busily(number):
            while not stop.is_set():
                await store.write(deposit(), f"busy-{number}")

        for busy in (0, 5):
            stop.clear()
            others = [asyncio.create_task(busily(number)) for number in range(busy)]
            for call in calls:
                assert [step async for step in each_step(call, times)]
            stop.set()
            await asyncio.gather(*others)
            async with asyncio.timeout(PATIENCE):
                while pool.get_stats()["pool_available"] < 2:
                    await asyncio.sleep(0.01)  # nothing tells
        assert pool.get_stats()["pool_size"] == 2
