"""Revisions that a sender draws from its clock and a file: they rise, whatever happens."""

import os
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservation.errors import ReservationError
from reservation.idempotence import revision_counters
from reservation.idempotence.revision_counters import PER_MILLISECOND
from reservation.strategies import ClockRevisions


class Clock:
    """A clock that is set by the test, in milliseconds."""

    def __init__(self, now=1_000):
        self.now = now

    def __call__(self):
        return self.now * 1_000_000 + 999_999


def test_revisions_are_milliseconds_and_a_sequence(tmp_path):
    """A revision is the time in milliseconds times a million, plus a sequence."""
    clock = Clock(5)
    revisions = ClockRevisions(tmp_path / "revision", clock)
    assert [revisions.next() for _ in range(3)] == [5_000_000, 5_000_001, 5_000_002]
    clock.now = 6
    assert revisions.next() == 6 * PER_MILLISECOND


def test_revisions_are_close_to_the_current_time(tmp_path):
    """Revisions are close to the machine's current time."""
    before = time.time_ns()
    assert before - 2_000_000 <= ClockRevisions(tmp_path / "r").next() <= time.time_ns()


def test_a_clock_that_steps_back_does_not_matter(tmp_path):
    """Revisions go on from the last one when the clock steps back, also in a new process."""
    clock = Clock(1000)
    revisions = ClockRevisions(tmp_path / "revision", clock)
    first = revisions.next()
    clock.now = 3
    assert revisions.next() == first + 1
    assert ClockRevisions(tmp_path / "revision", clock).next() == first + 2


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3000), st.booleans(), st.booleans()), min_size=2, max_size=40
    )
)
def test_whatever_the_clock_and_the_machine_do_they_rise(tmp_path_factory, steps):
    """Revisions increase whatever the clock does and whenever the machine restarts."""
    path, clock = tmp_path_factory.mktemp("r") / "revision", Clock()
    disk, fsync = [b""], os.fsync
    drawn, boot = [], 0

    def synced(file):
        if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
            disk[0] = path.read_bytes()
        fsync(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", synced)
        revisions = ClockRevisions(path, clock)
        for now, starts, loses_power in steps:
            clock.now = now
            if starts or loses_power:
                revisions = ClockRevisions(path, clock)
            if loses_power:
                if disk[0]:
                    path.write_bytes(disk[0])
                boot += 1
            revisions._boot = f"boot-{boot}"
            drawn.append(revisions.next())
    assert all(earlier < other for earlier, other in pairwise(drawn))


def test_without_a_boot_id_each_revision_is_synced_to_disk(tmp_path, monkeypatch):
    """Where boots of the machine cannot be distinguished, each revision is synced to disk."""
    monkeypatch.setattr(revision_counters, "_BOOT", tmp_path / "none")
    path, synced, fsync = tmp_path / "revision", [], os.fsync

    def keep(file):
        fsync(file)
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", keep)
    clock = Clock(1000)
    drawn = [ClockRevisions(path, clock).next() for _ in range(3)]
    assert drawn == [1000 * PER_MILLISECOND + n for n in range(3)]
    path.write_bytes(synced[-1])
    clock.now = 1
    assert ClockRevisions(path, clock).next() > drawn[-1]


def test_a_sync_that_is_interrupted_is_left_to_the_next_process(tmp_path, monkeypatch):
    """After a kill during a sync the next process syncs the file and its folder."""
    calls, fsync = [], os.fsync

    def killed(file):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        ClockRevisions(tmp_path / "revision", Clock()).next()
    monkeypatch.setattr(os, "fsync", lambda file: calls.append(fsync(file)))
    ClockRevisions(tmp_path / "revision", Clock()).next()
    assert len(calls) == 2  # the file and its folder


@pytest.mark.skipif(sys.platform != "linux", reason="says which start it was on Linux alone")
def test_the_file_records_the_boot_of_the_machine(tmp_path):
    """The file records the boot of the machine, by which lost writes are recognized."""
    ClockRevisions(tmp_path / "last").next()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (tmp_path / "last").read_text().split()[3] == boot


def test_no_file_stays_open(tmp_path):
    """Drawing revisions leaves no file open."""

    def opened():
        return len(list(Path("/dev/fd").iterdir()))

    before = opened()
    ClockRevisions(tmp_path / "revision").next()
    ClockRevisions(tmp_path / "revision").next()
    assert opened() == before


def test_the_umask_decides_who_may_use_the_file(tmp_path):
    """The umask decides who may use the file, which is never executable."""
    former = os.umask(0)
    try:
        ClockRevisions(tmp_path / "revision").next()
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "revision").stat().st_mode) == 0o666


def test_few_revisions_wait_for_the_disk(tmp_path, monkeypatch):
    """One revision in a second waits for the disk, and the folder is synced once."""
    calls, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: calls.append(fsync(file)))
    clock = Clock()
    revisions = ClockRevisions(tmp_path / "revision", clock)
    revisions._boot = "boot"
    for _ in range(2000):
        clock.now += 1
        revisions.next()
    assert len(calls) == 3


def test_threads_draw_no_revision_twice(tmp_path):
    """Threads draw no revision twice, with one generator or several."""
    shared = ClockRevisions(tmp_path / "revision", Clock())
    start = threading.Barrier(4)

    def draw(n):
        revisions = shared if n % 2 else ClockRevisions(tmp_path / "revision", Clock())
        start.wait()
        return [revisions.next() for _ in range(300)]

    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(draw, range(4)))
    assert all(mine == sorted(mine) for mine in drawn)
    assert len(set().union(*drawn)) == 1200


@pytest.mark.parametrize("content", [b"x", b"12 13\n", b"\xff 1 1\n", b"\0" * 100])
def test_a_damaged_file_is_an_error(tmp_path, content):
    """A damaged file is an error: revisions would begin anew."""
    (tmp_path / "revision").write_bytes(content)
    with pytest.raises(ReservationError, match="revision does not hold the last revision; restore"):
        ClockRevisions(tmp_path / "revision").next()
    assert (tmp_path / "revision").read_bytes() == content


def test_a_missing_folder_is_an_error(tmp_path):
    """A missing folder is an error: creating it could hide an unmounted disk."""
    with pytest.raises(FileNotFoundError):
        ClockRevisions(tmp_path / "none" / "revision").next()
