"""Runs that are killed, whose workers or executors are killed, and that find their disk full."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import psutil
import pytest

from tests.apps.bank import drain
from tests.soak.clusters import cluster, python_of_workers, quick
from tests.spark.builders import Reconciled
from tests.support.controls import COMMANDS, LATER, deposit, open_
from tests.support.started import EXAMPLES, command_line

pytestmark = pytest.mark.timeout(900)  # several runs, each with a Spark of its own

LONG = 180.0
# Root needs no user namespace, in which it could not reach the server of another user.
UNSHARE = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
CONNECTED = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE application_name = 'reservation spark' AND datname = current_database()"
)


@pytest.fixture
def later(connection, store):
    """Give a function that adds commands, reissues, a conflict and an orphan, and handles them."""

    def add(name):
        commands = [deposit(f"{name}{n}") for n in range(200)]
        store.write([*commands, *commands[:50]], COMMANDS)
        drain(connection)
        store.write(deposit(f"{name}1", amount="99"), COMMANDS)
        store.write(deposit(f"{name}2", time=LATER), COMMANDS)
        store.write(deposit(f"{name}orphan"), f"accountTransaction-123+{name}orphan")

    store.write(open_(), COMMANDS)
    add("a")
    return add


@pytest.fixture
def run(database_url):
    """Give a function that starts a reconciliation as a process."""

    def started(*arguments, prefix=(), **environment):
        return subprocess.Popen(
            [*prefix, *command_line("reconcile", "bank:account", "--json", *map(str, arguments))],
            env={**os.environ, "RESERVATION_DATABASE_URL": database_url, **environment},
            cwd=EXAMPLES,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return started


def ended(process):
    """Wait for a run; return what it found."""
    output, error = process.communicate(timeout=LONG)
    return Reconciled(subprocess.CompletedProcess([], process.returncode, output, error))


def found_by(process):
    """Wait for a run that found something; return its counts and findings."""
    found = ended(process)
    assert found.status == 1, found.error
    return found.counts, found.findings


def await_that(condition, process):
    """Wait until something holds; return whether the process still runs then."""
    deadline = time.monotonic() + LONG
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return process.poll() is None


def kill_session(process):
    """Kill a process, and wait until the processes that it has started have ended by themselves."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=LONG)
    _, left = psutil.wait_procs(started, LONG)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("at", ["summaries", "open", "findings", "read"])
def test_a_killed_run_leaves_its_state_as_it_was(run, later, tmp_path, at):
    """Whatever a killed run has written, the next one counts everything once."""
    state = tmp_path / "state"
    found_by(run("--state", state))
    later("b")
    killed = run("--state", state)
    if await_that((state / "run-000002" / at).exists, killed):
        kill_session(killed)
    expected = found_by(run())
    assert found_by(run("--state", state)) == expected
    later("c")
    assert found_by(run("--state", state)) == found_by(run()) != expected


def workers(process):
    """Return the Python processes that Spark has started for a run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if child.name().startswith("python")
        ]
    return []


def test_killed_workers_end_a_run_with_one_line(run, later, connection):
    """A run in one process either finds everything, or says in one line that it could not."""
    expected = found_by(run())
    failed = 0
    for patience in (0.0, 0.2, 1.0):
        process = run()
        assert await_that(lambda: connection.execute(CONNECTED).fetchone()[0] > 0, process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        for worker in workers(process):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        found = ended(process)
        if found.status == 2:
            failed += 1
            assert len(found.error.splitlines()) == 1, found.error
        else:
            assert (found.counts, found.findings) == expected
    assert failed, "no worker was killed at work"


def test_an_executor_that_is_killed_is_replaced(run, later, connection, database_url, tmp_path):
    """A cluster reads again what an executor that was killed had read, and finds the same."""
    expected = found_by(run())
    environment = {"PYSPARK_PYTHON": str(python_of_workers(tmp_path))}
    with cluster(tmp_path) as address:
        process = run("--master", address, *quick(), **environment)
        assert await_that(lambda: connection.execute(CONNECTED).fetchone()[0] > 0, process)
        executors = [
            one
            for one in psutil.process_iter(["cmdline"])
            if "CoarseGrainedExecutorBackend" in " ".join(one.info["cmdline"] or [])
        ]
        assert len(executors) == 2
        executors[0].send_signal(signal.SIGKILL)
        assert found_by(process) == expected


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode,
    reason="without a namespace of its own, a test cannot mount a small disk",
)
def test_a_full_disk_ends_a_run_and_the_state_goes_on(run, later, tmp_path):
    """A run whose state or findings find no space says so, and one with space goes on."""
    expected = found_by(run())
    disk = tmp_path / "disk"
    disk.mkdir()
    # One shell mounts the disk, so that both runs see it: first a small one, then a large one.
    script = (
        f'mount -t tmpfs -o size=48k none {disk} && "$@"; echo "status $?" >&2; '
        f'mount -o remount,size=64m {disk} && exec "$@"'
    )
    prefix = [*UNSHARE, "sh", "-c", script, "sh"]
    process = run("--state", disk / "state", prefix=prefix)
    output, error = process.communicate(timeout=2 * LONG)
    line, status, *others = error.splitlines()
    assert (status, others) == ("status 2", []), error
    assert "No space left on device" in line
    assert process.returncode == 1
    again = Reconciled(subprocess.CompletedProcess([], 1, output, ""))
    assert (again.counts, again.findings) == expected
