"""Procrastinate: no-op tasks through a worker with its ``PsycopgConnector`` and pool."""

import asyncio
import time

import procrastinate

from benchmarks.peers.workers.timing import report

app = procrastinate.App(connector=procrastinate.PsycopgConnector())


@app.task(name="noop")
async def noop() -> None:
    """Do nothing."""


def send(count: int) -> None:
    """Install the tables and defer jobs."""
    asyncio.run(_send(count))


def work(concurrency: int) -> None:
    """Work off the queue."""
    asyncio.run(_work(concurrency))


async def _send(count: int) -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await noop.batch_defer_async(*[{}] * count)


async def _work(concurrency: int) -> None:
    async with app.open_async():
        start = time.time()
        await app.run_worker_async(wait=False, concurrency=concurrency)
        report(start)
