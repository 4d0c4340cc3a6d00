"""Revisions: messages that are not newer are discarded, and where the numbers come from."""

import os
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservation import ClockRevisions, DatabaseRevisions, Revisions
from reservation.errors import (
    DeclarationError,
    HandlerError,
    IdempotenceKeyError,
    ReservationError,
    SerializationError,
    StoreError,
)
from reservation.idempotence import revision_counters
from reservation.idempotence.revision_counters import PER_MILLISECOND
from reservation.idempotence.strategy import Incoming
from reservation.postgres.connection import connect
from reservation.store.schema.roles import grant
from tests.bank import batch
from tests.once import (
    COMMANDS,
    SENT,
    Pay,
    effects,
    pay,
    prepare,
    redeliver,
    run,
    till,
)

ONCE = Revisions()
ROOT = Path(__file__).parent.parent


@pytest.fixture
def _effects(connection):
    prepare(connection)


pytestmark = pytest.mark.usefixtures("_effects")


def last(connection):
    rows = connection.execute(
        "SELECT entity_stream, source, revision FROM reservation.revisions ORDER BY 1, 2"
    )
    return rows.fetchall()


def test_a_redelivered_message_has_no_effect(connection, store):
    """A redelivered message has no effect, nor has one of the same revision under a new id."""
    store.write([pay("a", 1), pay("b", 2)], SENT)
    assert run(connection, till(ONCE)) == Counter(handled=2)
    redeliver(connection)
    store.write([pay("b", 2), pay("c", 3)], SENT)
    assert run(connection, till(ONCE)) == Counter(handled=1, duplicate=3)
    assert effects(connection) == Counter("abc")
    assert last(connection) == [("till-123", "s", 3)]


def test_the_highest_revision_is_accepted(connection, store):
    """The highest revision is the largest bigint; a higher one is refused."""
    store.write([pay("a", 2**63 - 2), pay("b", 2**63 - 1)], SENT)
    assert run(connection, till(ONCE)) == Counter(handled=2)


def test_an_older_revision_has_no_effect(connection, store):
    """An older revision has no effect, within a batch and after it; gaps are allowed."""
    store.write([pay("b", 7), pay("a", 2)], SENT)
    assert run(connection, till(ONCE)) == Counter(handled=1, duplicate=1)
    store.write([pay("c", 6), pay("d", 70)], SENT)
    assert run(connection, till(ONCE)) == Counter(handled=1, duplicate=1)
    assert effects(connection) == Counter("bd")


def test_each_source_and_each_entity_has_revisions_of_its_own(connection, store):
    """Revisions of different sources and entities are independent."""
    store.write([pay("a", 9, "x"), pay("b", 1, "y"), pay("c", 2, "x"), pay("d", 2, "y")], SENT)
    store.write(pay("e", 1, "x", till="7"), "till:command-7")
    assert run(connection, till(ONCE), limit=2) == Counter(handled=4, duplicate=1)
    assert last(connection) == [("till-123", "x", 9), ("till-123", "y", 2), ("till-7", "x", 1)]


@pytest.mark.parametrize(
    "other",
    [
        ("shop", COMMANDS, "till-123", "s"),
        ("till", "tillTransaction", "till-123", "s"),
        ("till", COMMANDS, "till-7", "s"),
        ("till", COMMANDS, "till-123", "x"),
    ],
)
def test_raising_a_revision_changes_no_other(connection, store, other):
    """Raising one revision changes no other consumer, category, entity or source."""
    store.write([pay("a", 5), pay("b", 6)], SENT)
    connection.execute("INSERT INTO reservation.revisions VALUES (%s, %s, %s, %s, 5)", other)
    assert run(connection, till(ONCE), limit=1) == Counter(handled=2)
    rows = connection.execute(
        "SELECT revision FROM reservation.revisions "
        "WHERE (consumer, category, entity_stream, source) = (%s, %s, %s, %s)",
        other,
    ).fetchall()
    assert rows == [(5,)]


def test_without_a_source_all_are_counted_together(connection, store):
    """Without a declared source all revisions are counted together."""
    store.write([pay("a", 9, "x"), pay("b", 1, "y")], SENT)
    assert run(connection, till(Revisions(source=None))) == Counter(handled=1, duplicate=1)
    assert last(connection) == [("till-123", "", 9)]


def test_revisions_may_begin_with_0(connection, store):
    """Revisions may begin with 0."""
    store.write([pay("a", 0), pay("b", 0), pay("c", 1)], SENT)
    assert run(connection, till(ONCE)) == Counter(handled=2, duplicate=1)
    assert last(connection) == [("till-123", "s", 1)]


def test_a_batch_with_a_missing_revision_runs_no_handler(connection, store):
    """A batch with a missing revision runs no handler."""
    store.write([pay("a", 1), pay("b", -1)], SENT)
    messages = [
        Incoming(message, message.decode(Pay), "till-123")
        for message in store.read_category(COMMANDS)
    ]
    with pytest.raises(IdempotenceKeyError, match="global position 2"):
        ONCE.begin(connection, "till", COMMANDS, messages)


def test_consumers_and_categories_do_not_see_each_other(connection, store):
    """Revisions of different consumers and categories are independent."""
    store.write(pay("a", 5), SENT)
    store.write(pay("b", 5), "shop:command-123")
    run(connection, till(ONCE))
    assert run(connection, till(ONCE, name="shop")) == Counter(handled=1)
    component = till(ONCE)
    component.reserve(Pay, into="tillTransaction", key="pay_id")
    store.write(pay("c", 1), "tillTransaction-c")
    assert batch(connection, "tillTransaction", component).run(9).counts == Counter(handled=1)


def test_a_failed_message_leaves_no_revision(connection, store):
    """The revision is committed with the effect, or not at all."""
    store.write([pay("a", 1), pay("b", 2)], SENT)
    with pytest.raises(HandlerError):
        run(connection, till(ONCE, fails={"b"}))
    assert last(connection) == []
    assert run(connection, till(ONCE)) == Counter(handled=2)


@pytest.mark.parametrize("known", [False, True])
def test_of_two_processes_that_handle_a_revision_at_once_one_starts_anew(
    connection, database_url, store, known
):
    """Of two processes that handle a revision at once one runs its batch again."""
    if known:
        store.write(pay("0", 1), SENT)
        run(connection, till(ONCE))
    store.write(pay("a", 2), SENT)
    message = list(store.read_category(COMMANDS))[-1]
    incoming = Incoming(message, message.decode(Pay), "till-123")
    with connect(database_url) as own, connect(database_url) as other:
        checks = [ONCE.begin(c, "till", COMMANDS, [incoming]) for c in (own, other)]
        assert not any(check.is_duplicate(incoming) for check in checks)
        checks[0].record()
        own.commit()
        with pytest.raises(SerializationError, match="run it again"):
            checks[1].record()
        other.rollback()
        assert ONCE.begin(other, "till", COMMANDS, [incoming]).is_duplicate(incoming)


@pytest.mark.parametrize("revision", [-1, 2**63])
def test_a_message_without_a_revision_is_named(connection, store, revision):
    """A message without a revision is an error that names it."""
    store.write(pay("a", revision), SENT)
    with pytest.raises(IdempotenceKeyError, match=r"Cannot handle Pay at .*revision is a whole"):
        run(connection, till(ONCE))


def test_a_message_without_its_source_is_named(connection, store):
    """A message without its source is an error that names it."""
    store.write(pay("a", 1, ""), SENT)
    with pytest.raises(IdempotenceKeyError, match=r"Cannot handle Pay at .*: field source is empt"):
        run(connection, till(ONCE))


@pytest.mark.parametrize("once", [Revisions("version"), Revisions(source="sender")])
def test_a_missing_field_is_refused_when_it_is_declared(once):
    """A field that the command does not have is refused in the declaration."""
    with pytest.raises(DeclarationError, match=r"Pay has no field '(version|sender)'"):
        till(once)


def test_the_role_of_a_consumer_may_keep_revisions(connection, store):
    """The consumer's role may store revisions with its usual grants."""
    role = f"reviser_{connection.info.dbname}"
    grant(connection, "consumer", role)
    connection.execute(f"GRANT INSERT ON effects TO {role}")
    store.write([pay("a", 1), pay("b", 2)], SENT)
    try:
        connection.execute(f"SET ROLE {role}")
        assert run(connection, till(ONCE), limit=1) == Counter(handled=2)
    finally:
        connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")


# Drawn from the database


def test_revisions_of_an_entity_or_of_all(connection):
    """The scope decides whether numbers are drawn per entity or for all."""
    with connection.transaction():
        by_entity, all_ = DatabaseRevisions(connection), DatabaseRevisions(connection, "global")
        assert [by_entity.next("a-1"), by_entity.next("a-2"), by_entity.next("a-1")] == [1, 1, 2]
        assert [all_.next("a-1"), all_.next("a-2"), all_.next("a-1")] == [1, 2, 3]
    # Its name, which no stream has, is not to change: it would begin anew.
    counters_of = connection.execute("SELECT name FROM reservation.revision_counters ORDER BY 1")
    assert counters_of.fetchall() == [("",), ("a-1",), ("a-2",)]


def test_a_revision_that_was_rolled_back_is_drawn_again(connection):
    """A number whose transaction was rolled back is drawn again."""
    with connection.transaction(force_rollback=True):
        assert DatabaseRevisions(connection).next("a-1") == 1
    with connection.transaction():
        assert DatabaseRevisions(connection).next("a-1") == 1


def test_outside_of_a_transaction_none_is_drawn(connection):
    """Outside a transaction no number is drawn, as nothing would keep the order."""
    with pytest.raises(StoreError, match=r"within `with connection\.transaction"):
        DatabaseRevisions(connection).next("a-1")
    with pytest.raises(DeclarationError, match="'entity' or 'global', not by 'stream'"):
        DatabaseRevisions(connection, "stream")


def test_a_sender_that_draws_later_commits_later(connection, database_url):
    """A sender that draws later waits for the earlier one of its entity to commit."""
    with connect(database_url) as first, connect(database_url, autocommit=True) as second:
        revisions = DatabaseRevisions(first)
        assert revisions.next("a-1") == 1
        with second.transaction():
            second.execute("SET LOCAL lock_timeout = '10s'")
            assert DatabaseRevisions(second).next("a-2") == 1
            with ThreadPoolExecutor(1) as pool:
                drawn = pool.submit(DatabaseRevisions(second).next, "a-1")
                waiting = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
                while not connection.execute(waiting, [second.info.backend_pid]).fetchall():
                    assert not drawn.done()
                first.commit()
                assert drawn.result() == 2


def test_a_sender_may_draw_and_do_nothing_else(connection):
    """A sender can draw numbers but neither see nor set them."""
    role = f"drawer_{connection.info.dbname}"
    grant(connection, "sender", role, ["till:command"])
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL ROLE {role}")
            assert DatabaseRevisions(connection).next("till-1") == 1
        rights = connection.execute(
            "SELECT has_table_privilege(%s, 'reservation.revision_counters', 'SELECT')", [role]
        )
        assert rights.fetchall() == [(False,)]
    finally:
        connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def start_drawing(*arguments):
    """Start a process that draws revisions and prints them."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.drawing", *arguments],
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


@pytest.mark.faults
def test_processes_that_send_at_once_write_in_the_order_of_their_revisions(
    connection, store, database_url, drawers
):
    """Each entity's messages are written in revision order, whichever process is killed."""

    def make():
        return start_drawing("database", database_url, "150")

    drawers.extend(make() for _ in range(4))
    kill_some(drawers, make)
    sent = list(store.read_category(COMMANDS))
    assert len(sent) >= 4 * 150
    for entity in "012":
        revisions = [m.decode(Pay).revision for m in sent if m.stream_name.endswith(entity)]
        assert revisions == list(range(1, len(revisions) + 1))
    assert run(connection, till(ONCE)) == Counter(handled=len(sent))


# Drawn from a clock


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
        patch.setattr(revision_counters.os, "fsync", synced)
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

    monkeypatch.setattr(revision_counters.os, "fsync", keep)
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

    monkeypatch.setattr(revision_counters.os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        ClockRevisions(tmp_path / "revision", Clock()).next()
    monkeypatch.setattr(revision_counters.os, "fsync", lambda file: calls.append(fsync(file)))
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
    monkeypatch.setattr(revision_counters.os, "fsync", lambda file: calls.append(fsync(file)))
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


@pytest.mark.faults
def test_processes_draw_no_revision_twice_whoever_is_killed(tmp_path, drawers):
    """Processes draw no revision twice, whichever is killed."""

    def make():
        return start_drawing("clock", str(tmp_path / "revision"), "3000")

    drawers.extend(make() for _ in range(4))
    drawn = [int(line) for line in kill_some(drawers, make)]
    assert len(drawn) >= 4 * 3000
    assert len(set(drawn)) == len(drawn)
    assert ClockRevisions(tmp_path / "revision", Clock(0)).next() > max(drawn)


@pytest.mark.faults
def test_a_process_that_forks_shares_nothing_but_the_file(tmp_path):
    """A forked process shares the file only, and none of its parent's locks."""
    program = (
        "import os, sys; from reservation import ClockRevisions\n"
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
