"""Many senders in one event loop: their writes gathered, and each in a statement of its own."""

import asyncio
import statistics
from collections.abc import Iterator

from benchmarks import workload
from benchmarks.harness import Bench, Result, benchmark
from reservation import AsyncMessageStore, Write

SENDERS, TURNS = 100, 5
COUNT = {False: 3_000, True: 20_000}


@benchmark
def gather(bench: Bench) -> Iterator[Result]:
    """Let 100 tasks send to one category, each one message after the other, in turns."""
    rates: dict[bool, list[float]] = {gathered: [] for gathered in COUNT}
    for _ in range(TURNS):
        for gathered, count in COUNT.items():
            with bench.database() as url:
                writes = workload.deposits(count, "account:command")
                rates[gathered].append(asyncio.run(_send(url, writes, gathered)))
    alone, together = (statistics.median(rates[gathered]) for gathered in COUNT)
    yield Result.rate("gather", together, "each write in its own statement", alone, 5)


async def _send(url: str, writes: list[Write], gathered: bool) -> float:
    """Send messages; return how many a second."""
    async with await AsyncMessageStore.open(url, gather=gathered) as store:
        loop = asyncio.get_running_loop()

        async def send(own: list[Write]) -> None:
            for write in own:
                await store.write(write.message, write.stream_name)

        start = loop.time()
        await asyncio.gather(*(send(writes[n::SENDERS]) for n in range(SENDERS)))
        return len(writes) / (loop.time() - start)
