"""Java's classes, which a command has stored in the background once it has ended."""

import fcntl
import os
import signal
import subprocess

import psutil
import pytest

from tests.support.started import EXAMPLES, command_line

PATIENCE = 600
PREPARING = "spark_jobs.jobs.prepare"

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def cache(tmp_path):
    """Give the folder that this package has in the cache of a user."""
    folder = tmp_path / "cache" / "reservation"
    yield folder
    for one in preparing(folder):
        one.kill()


@pytest.fixture
def reconcile(store, database_url, cache):
    """Give a function that starts a reconciliation with that cache."""

    def start(**more):
        env = {**os.environ, "RESERVATION_DATABASE_URL": database_url, "PGPASSWORD": "secret"}
        env |= {"XDG_CACHE_HOME": str(cache.parent), "RESERVATION_SPARK_PREPARE": "", **more}
        return subprocess.Popen(
            command_line("reconcile", "bank:account"),
            env=env,
            cwd=EXAMPLES,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def preparing(cache):
    """Return the processes that store classes in a cache."""
    found = []
    for one in psutil.process_iter():
        try:
            if PREPARING in one.cmdline() and one.environ()["XDG_CACHE_HOME"] == str(cache.parent):
                found.append(one)
        except (psutil.Error, KeyError):
            pass
    return found


def ended(process):
    """Await the end of a command, which was in order and printed nothing besides."""
    printed, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert "In order" in printed


def names(cache):
    return sorted(path.name for path in cache.iterdir())


def test_the_first_commands_have_classes_stored_which_the_next_loads(reconcile, cache, tmp_path):
    """Of two at once, one has a process do so after its end. What was killed is begun again."""
    both = [reconcile(), reconcile()]
    for process in both:
        ended(process)
    (first,) = preparing(cache)
    assert first.ppid() not in (process.pid for process in both)
    assert not {"RESERVATION_DATABASE_URL", "PGPASSWORD"} & first.environ().keys()
    first.send_signal(signal.SIGKILL)
    psutil.wait_procs([first], PATIENCE)
    assert [name for name in names(cache) if name.endswith(".jsa")] == []

    ended(reconcile())
    (second,) = preparing(cache)
    _, left = psutil.wait_procs([second], PATIENCE)
    assert left == []
    (stored,) = cache.glob("*.jsa")
    assert names(cache) == [stored.name, "spark-classes.lock"]
    assert 50_000_000 < stored.stat().st_size < 400_000_000

    log = tmp_path / "classes.log"
    ended(reconcile(JDK_JAVA_OPTIONS=f"-Xlog:class+load:file={log}"))
    loaded = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    assert sum("shared objects file" in line for line in loaded) > len(loaded) / 2
    assert preparing(cache) == []


@pytest.fixture
def full(cache):
    """Let the cache be a file system that is too small."""
    cache.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "none", str(cache)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("a small file system cannot be mounted by this user")
    yield
    subprocess.run(["umount", "--lazy", str(cache)], check=True)


def test_a_full_cache_delays_nothing(reconcile, cache, full):
    """Nothing is begun where there is no room, and what is begun on demand leaves nothing."""
    ended(reconcile())
    assert preparing(cache) == []
    done = subprocess.run(
        command_line("spark", "prepare"),
        env={**os.environ, "XDG_CACHE_HOME": str(cache.parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.endswith("Java could not write it; is there room for 200 MB?\n")
    assert len(done.stderr.splitlines()) == 1
    assert names(cache) == ["spark-classes.lock"]


@pytest.mark.parametrize("fault", ["a file", "locked", "off"])
def test_a_cache_that_cannot_be_used_delays_nothing(reconcile, cache, fault):
    """The command ends as always, and nothing is begun."""
    cache.parent.mkdir()
    if fault == "a file":
        cache.write_text("a file")
        ended(reconcile())
    elif fault == "off":
        ended(reconcile(RESERVATION_SPARK_PREPARE="off"))
    else:
        cache.mkdir()
        with (cache / "spark-classes.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            ended(reconcile())
    assert preparing(cache) == []


def test_what_is_killed_again_and_again_is_given_up(reconcile, cache):
    """After three attempts, only `reservation spark prepare` makes another."""
    for _ in range(3):
        ended(reconcile())
        (one,) = preparing(cache)
        one.kill()
        psutil.wait_procs([one], PATIENCE)
    ended(reconcile())
    assert preparing(cache) == []
