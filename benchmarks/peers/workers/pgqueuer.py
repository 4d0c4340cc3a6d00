"""PgQueuer: no-op jobs through a ``QueueManager`` on asyncpg and uvloop, as ``pgq run`` does.

Its tables are logged (``durable``, the default) and have the settings of ``pgq autovac``, which its
guide to performance recommends after the installation.
"""

import time

import asyncpg
import uvloop
from pgqueuer import AsyncpgDriver, Queries, QueueManager
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

from benchmarks.peers.workers.timing import report

SENT = 1_000  # in one call


def send(count: int) -> None:
    """Install the tables and enqueue jobs."""
    uvloop.run(_send(count))


def work(batch_size: int) -> None:
    """Work off the queue, and report until when according to the log of the jobs."""
    uvloop.run(_work(batch_size))


async def _send(count: int) -> None:
    connection = await asyncpg.connect()
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await queries.optimize_autovacuum()
    for _ in range(count // SENT):
        await queries.enqueue(["noop"] * SENT, [b"{}"] * SENT, [0] * SENT)
    await connection.close()


async def _work(batch_size: int) -> None:
    connection = await asyncpg.connect()
    manager = QueueManager(Queries(AsyncpgDriver(connection)))

    @manager.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    start = time.time()
    await manager.run(batch_size=batch_size, mode=QueueExecutionMode.drain)
    # Not when it returned: shutting down is no work.
    connection = await asyncpg.connect()
    end = await connection.fetchval(
        "SELECT max(created) FROM pgqueuer_log WHERE status = 'successful'"
    )
    await connection.close()
    report(start, end.timestamp())
