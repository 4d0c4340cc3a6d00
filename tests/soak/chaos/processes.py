"""Runs of real processes: `reservation start` with workers, senders beside them, and faults."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from psycopg import Connection

from reservation.errors import StoreError
from reservation.postgres.connection import connect
from tests.reference.drawing import Seeded, history
from tests.reference.environment import ENVIRONMENT
from tests.reference.histories import History, Run, Send, Sent
from tests.reference.programs import ENDS, RAISED
from tests.reference.world import World, broken, send
from tests.soak.chaos.app import write_app
from tests.soak.chaos.skipping import Skipped
from tests.support.proxy import Cut, Proxy
from tests.support.started import command_line

if TYPE_CHECKING:
    from tests.soak.chaos.stores import Stores

PATIENCE = 90.0
LEASE = 3.0

# Of Debian's package; RESERVATION_TEST_FAKETIME names another.
LIBFAKETIME = os.environ.get("RESERVATION_TEST_FAKETIME", "/usr/lib/*/faketime/libfaketime.so.1")

# How a process ends that is killed, or whose handler sends it SIGTERM or calls `os._exit`.
_ENDED = ("by signal 9", "status 0", "status 3")

# How far consumers have come. A slow machine takes long, but goes on.
_REACHED = """
    SELECT category, partition::text, position FROM reservation.positions
    UNION ALL
    SELECT category, global_position || state, attempts FROM reservation.dead_letters
    ORDER BY 1, 2"""

FAULTS = ["kill one", "kill all", "pause", "terminate", "cut", *ENVIRONMENT]


class Processes:
    """Consumers in processes of their own, under faults of every kind."""

    def __init__(self, stores: "Stores", seed: int) -> None:
        self._chance = random.Random(seed)
        drawn = history(Seeded(seed), apart=True, kills=3, raised=[*RAISED, *ENDS])
        loads = [action.messages for action in drawn.actions if isinstance(action, Send)]
        self.loads = [list(load) for load in loads]
        self.history = drawn
        self._stores, self.address = stores, stores.fresh()
        self._folder = Path(tempfile.mkdtemp(prefix="reservation-chaos-"))
        self._app = write_app(self._folder, drawn.plan)
        self.faults = self._chance.choices(FAULTS, k=self._chance.randint(1, 4))
        self.workers = self._chance.choice([1, 1, 2, 3])
        self.batch_size = self._chance.choice([1, 3, 10, 1000])
        # The category that each of some more processes reads, and no other.
        self.only = self._chance.choices(drawn.plan.categories, k=self._chance.choice([0, 0, 1, 2]))

    def play(self) -> list[str]:
        """Play it; return the violations."""
        self.world = World(self.address)
        with Proxy(self.world.address) as self.proxy:
            sender = Sender(self.address, self.loads)
            with ExitStack() as stack:
                self.started = [
                    stack.enter_context(
                        Supervised(self._command(*only), self._environment, self._folder / f"{n}")
                    )
                    for n, only in enumerate([[], *(["--only", name] for name in self.only)])
                ]
                sender.start()
                for fault in self.faults:
                    time.sleep(self._chance.uniform(0.0, 0.6))
                    self._befall(fault)
                sender.join(PATIENCE)
                self.world.environment.mend()
                found = self._drained()
                for started in self.started:
                    found += started.stop()
        if sender.problem:
            found.append(sender.problem)
        order = self._order()
        found += [f"I1, acknowledged and not stored: {id_}" for id_ in sender.sent - set(order)]
        played = History(self.history.plan, 1, (Send(tuple(order.values())), Run(), Run()))
        self.world.counts = None  # they are in other processes
        return [*found, *broken(self.world.control), *self.world.differences(played)]

    def describe(self) -> str:
        """Return a readable description of what the seed repeats."""
        plan = self.history.plan
        parts: Sequence[Any] = [*plan.roles, *plan.projectors.items(), *self.loads, self.faults]
        options = f"workers {self.workers}, batches of {self.batch_size}, only {self.only}"
        return "\n".join([*map(repr, parts), options]) + "\n"

    def log(self) -> str:
        """Return the log of the processes."""
        return _logged(self._folder)

    def close(self) -> None:
        """Leave nothing behind."""
        self.world.close()
        self._stores.drop(self.address)
        shutil.rmtree(self._folder)

    def _command(self, *only: str) -> list[str]:
        options = ["--workers", "1" if only else str(self.workers)]
        options += ["--batch-size", str(self.batch_size)]
        options += ["--partitions", str(self.history.partitions), *only]
        return command_line("start", self._app, "--app-dir", str(self._folder), *options)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "RESERVATION_DATABASE_URL": self.proxy.address}

    def _befall(self, fault: str) -> None:
        started = self._chance.choice(self.started)
        match fault:
            case "kill one":
                started.kill(self._chance)
            case "kill all":
                started.kill_all()
            case "pause":
                started.pause(self._chance, LEASE + self._chance.uniform(0.2, 1.0))
            case "terminate":
                self.world.control.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE usename = 'chaos_consumer' AND datname = current_database()"
                )
            case "cut":
                self.proxy.cut(self._chance.choice(list(Cut)), "COMMIT\0")
            case _:
                self.world.environment.disturb(fault)
                time.sleep(self._chance.uniform(0.0, 0.5))
                self.world.environment.mend()

    def _drained(self) -> list[str]:
        reached, deadline = None, 0.0
        while left := [
            category for category in self.history.plan.categories if self.world.pending(category)
        ]:
            now = self.world.control.execute(_REACHED).fetchall()
            if now != reached:
                reached, deadline = now, time.monotonic() + PATIENCE
            elif time.monotonic() > deadline:
                return [f"I7, no end is reached of {left}"]
            time.sleep(0.02)
        return []

    def _order(self) -> dict[str, Sent]:
        """Return the messages that were sent, in the order in which they are stored."""
        by_id = {str(message.row[0]): message for load in self.loads for message in load}
        rows = self.world.control.execute(
            "SELECT id::text FROM message_store.messages ORDER BY global_position"
        ).fetchall()
        return {id_: by_id[id_] for (id_,) in rows if id_ in by_id}


class Clock(Processes):
    """The clock of the consumers' machine is wrong, and jumps at each of their starts."""

    def __init__(self, stores: "Stores", seed: int) -> None:
        if not (libraries := sorted(Path("/").glob(LIBFAKETIME.lstrip("/")))):
            raise Skipped("libfaketime is not installed")
        self._library = str(libraries[0])
        super().__init__(stores, seed)
        self.faults += ["kill all"]

    def _environment(self) -> dict[str, str]:
        offset = self._chance.choice(["+2h", "-2h", "+40d", "-40d", "+0 x50", "+0 x0.1"])
        faked = {"LD_PRELOAD": self._library, "FAKETIME": offset, "DONT_FAKE_MONOTONIC": "1"}
        return {**super()._environment(), **faked}


class Sender(threading.Thread):
    """Sends load after load, each until it is acknowledged."""

    def __init__(self, address: str, loads: Sequence[Sequence[Sent]]) -> None:
        super().__init__(daemon=True)
        self._address, self._loads = address, loads
        self.sent: set[str] = set()
        self.problem = ""

    def run(self) -> None:
        try:
            for load in self._loads:
                while not self._sends(load):
                    time.sleep(0.02)
                self.sent.update(str(message.row[0]) for message in load)
        except Exception as error:  # noqa: BLE001  which the run reports
            self.problem = f"the sender failed: {error!r}"

    def _sends(self, load: Sequence[Sent]) -> bool:
        with suppress(StoreError):
            connection: Connection[Any]
            with connect(self._address, autocommit=True) as connection:
                send(connection, load)
            return True
        return False


class Supervised:
    """A `reservation start` that is started again whenever it ends, as a supervisor does.

    It has a folder of its own.
    """

    def __init__(
        self, command: list[str], environment: Callable[[], dict[str, str]], folder: Path
    ) -> None:
        self._command, self._environment, self._folder = command, environment, folder
        folder.mkdir()
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._status: int | None = None
        self._starts = 0

    def __enter__(self) -> "Supervised":
        self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self.kill_all()
        self._thread.join(PATIENCE)

    def _start(self) -> None:
        self._starts += 1
        # A log of its own, since the consumers of a killed one go on for a moment.
        self._log = self._folder / f"log-{self._starts:03}"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment(),
                cwd=self._folder,
                stderr=log,
                stdout=log,
                start_new_session=True,
            )

    def _supervise(self) -> None:
        while True:
            self._status = self._process.wait()
            with self._lock:
                if self._ending.is_set():
                    return
                self._start()
            time.sleep(0.02)

    def _all(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        return []

    def _one(self, chance: random.Random) -> list[psutil.Process]:
        """Return one of the processes, unless there are none at the moment."""
        processes = self._all()
        return chance.sample(processes, k=min(1, len(processes)))

    def kill(self, chance: random.Random) -> None:
        """Kill one of the processes."""
        self._kill(self._one(chance))

    def kill_all(self) -> None:
        """Kill all of them."""
        self._kill(self._all())

    def _kill(self, processes: Sequence[psutil.Process]) -> None:
        first = self._process
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if any(process.pid == first.pid for process in processes):
            first.wait(PATIENCE)

    def pause(self, chance: random.Random, seconds: float) -> None:
        """Suspend one of the processes for a while."""
        for process in self._one(chance):
            with suppress(psutil.NoSuchProcess):
                process.suspend()
                time.sleep(seconds)
                process.resume()

    def _asked(self) -> bool:
        """Ask it to stop, if it is ready for that: it runs, and has logged an event."""
        with self._lock:
            if self._process.poll() is not None or not self._log.stat().st_size:
                return False
            self._ending.set()
            self._process.send_signal(signal.SIGTERM)
            return True

    def stop(self) -> list[str]:
        """Ask it to stop; return what is wrong with its end."""
        deadline = time.monotonic() + PATIENCE
        while not self._asked():
            if time.monotonic() > deadline:
                return ["it does not start again"]
            time.sleep(0.02)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            return ["it does not stop"]
        found = [] if self._status == 0 else [f"it stopped with status {self._status}"]
        said = [f"ended unexpectedly ({how})" for how in _ENDED]
        if self._status == 1 and any(one in self._log.read_text() for one in said):
            found = []  # a process ended once too often just before the stop, and its host says so
        if "Traceback" in _logged(self._folder):
            found.append("there is a traceback in the log")
        return found


def _logged(folder: Path) -> str:
    """Return what was logged, start after start."""
    return "".join(log.read_text() for log in sorted(folder.rglob("log-*")))
