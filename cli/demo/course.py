"""The demo's course: senders, two consumers, a kill, and the wait until all is handled."""

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from psycopg import Connection
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.common.errors import NotInOrder
from cli.demo.consumers import ConsumerProcesses
from reservation.store.client import MessageStore
from reservation.store.writing.write import Write

if TYPE_CHECKING:
    from bank.traffic import Traffic

SENDERS = 4
SENT_AT_ONCE = 20
PATIENCE = 60.0  # seconds without progress after which the demo gives up
LOOK_EVERY = 0.1  # seconds between two looks at the consumers' positions

_READS = {"commands": "account:command", "reserved": "accountTransaction"}


class Course:
    """One run: everything is sent, one consumer is killed on the way, everything is handled."""

    def __init__(
        self,
        console: Console,
        connection: Connection[Any],
        store: MessageStore,
        consumers: ConsumerProcesses,
        seed: int,
    ) -> None:
        self._console = console
        self._connection = connection
        self._store = store
        self._consumers = consumers
        self._chance = random.Random(seed)
        self._sent = 0
        self._lock = threading.Lock()
        self._bars = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def run(self, traffic: "Traffic") -> set[uuid.UUID]:
        """Send everything and wait until it is handled."""
        from bank.traffic import in_batches

        for which in _READS:
            process_id = self._consumers.start(which)
            self._console.print(f"The consumer of {which} runs as process {process_id}.")
        shares = [traffic.accounts[n::SENDERS] for n in range(SENDERS)]
        with self._bars, ThreadPoolExecutor(SENDERS) as senders:
            self._tasks = {
                name: self._bars.add_task(name, total=len(traffic))
                for name in ("sent", "commands read", "reserved handled")
            }
            prompt = [
                senders.submit(self._send, in_batches(traffic, share, SENT_AT_ONCE))
                for share in shares
            ]
            self._watch(prompt, self._killing_one(len(traffic)))
            late = [
                senders.submit(self._send, ([write] for write in traffic.late[n::SENDERS]))
                for n in range(SENDERS)
            ]
            self._watch(late)
        return set().union(*(sender.result() for sender in prompt + late))

    def _send(self, batches: Iterable[list[Write]]) -> set[uuid.UUID]:
        acknowledged: set[uuid.UUID] = set()
        for batch in batches:
            self._store.write_batch(batch)
            acknowledged.update(write.id for write in batch if write.id)
            with self._lock:
                self._sent += len(batch)
        return acknowledged

    def _killing_one(self, sends: int) -> Callable[[dict[str, int]], None]:
        """Return a function that kills one consumer on its way, and starts it again."""
        victim = self._chance.choice(list(_READS))
        after: float = sends * self._chance.uniform(0.1, 0.5)

        def look(read: dict[str, int]) -> None:
            nonlocal after
            if read[_READS[victim]] >= after:
                after = float("inf")
                self._consumers.kill(victim)
                self._console.print(
                    f"Killed the consumer of {victim} with SIGKILL after "
                    f"{read[_READS[victim]]:,} messages, and started it again."
                )
                self._consumers.start(victim)

        return look

    def _watch(
        self,
        senders: list[Future[set[uuid.UUID]]],
        look: Callable[[dict[str, int]], None] | None = None,
    ) -> None:
        """Show how far everything is, until all is sent and handled."""
        from bank.invariants import progress

        moved, before = time.monotonic(), None
        while True:
            all_sent = all(sender.done() for sender in senders)
            now = progress(self._connection)
            read = {category: stored - unread for category, (unread, stored) in now.items()}
            self._bars.update(self._tasks["sent"], completed=self._sent)
            for name, category in (
                ("commands read", "account:command"),
                ("reserved handled", "accountTransaction"),
            ):
                stored = now[category][1]
                self._bars.update(self._tasks[name], completed=read[category], total=stored)
            if look is not None:
                look(read)
            if all_sent and not any(unread for unread, _ in now.values()):
                return
            self._consumers.check()
            if (self._sent, read) != before:
                moved, before = time.monotonic(), (self._sent, read)
            elif time.monotonic() - moved > PATIENCE:
                raise NotInOrder(f"Nothing moved for {PATIENCE:.0f} seconds; unread: {now}")
            time.sleep(LOOK_EVERY)
