"""Processes that draw revisions, and are killed: none is drawn twice, and all in order."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from reservation.strategies import ClockRevisions, Revisions
from tests.apps.once import COMMANDS, Pay, prepare, run, till

ROOT = Path(__file__).parents[2]


def start_drawing(*arguments):
    """Start a process that draws revisions and prints them."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.soak.drawing", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def drawers():
    """Give a list of processes that are ended with the test."""
    started = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def kill_some(processes, make):
    """Kill each after a while, start another in its place, and return all printed lines."""
    drawn: list[str] = []
    for n in range(2):
        drawn += [processes[n].stdout.readline().strip() for _ in range(40)]
        processes[n].kill()
        processes.append(make())
    for process in processes:
        drawn += process.stdout.read().split()
        process.wait()
    return drawn


def test_processes_that_send_at_once_write_in_the_order_of_their_revisions(
    connection, store, database_url, drawers
):
    """Each entity's messages are written in revision order, whichever process is killed."""
    prepare(connection)

    def make():
        return start_drawing("database", database_url, "150")

    drawers.extend(make() for _ in range(4))
    kill_some(drawers, make)
    sent = list(store.read_category(COMMANDS))
    assert len(sent) >= 4 * 150
    for entity in "012":
        revisions = [m.decode(Pay).revision for m in sent if m.stream_name.endswith(entity)]
        assert revisions == list(range(1, len(revisions) + 1))
    assert run(connection, till(Revisions())) == Counter(handled=len(sent))


def test_processes_draw_no_revision_twice_whoever_is_killed(tmp_path, drawers):
    """Processes draw no revision twice, whichever is killed."""

    def make():
        return start_drawing("clock", str(tmp_path / "revision"), "3000")

    drawers.extend(make() for _ in range(4))
    drawn = [int(line) for line in kill_some(drawers, make)]
    assert len(drawn) >= 4 * 3000
    assert len(set(drawn)) == len(drawn)
    assert ClockRevisions(tmp_path / "revision", lambda: 0).next() > max(drawn)


def test_a_process_that_forks_shares_nothing_but_the_file(tmp_path):
    """A forked process shares the file only, and none of its parent's locks."""
    program = (
        "import os, sys; from reservation.strategies import ClockRevisions\n"
        "r = ClockRevisions(sys.argv[1]); r.next(); [os.fork() for _ in range(2)]\n"
        "for _ in range(500): os.write(1, b'%d\\n' % r.next())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "revision")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    drawn = done.stdout.split()
    assert len(drawn) == len(set(drawn)) == 2000
