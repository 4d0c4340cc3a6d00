"""Processes that share a category: fixed members, the partition of a stream, a lease that lasts."""

import hashlib
import json
import time
from contextlib import ExitStack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.group.membership import LEASE
from reservation.messages import stream_name
from tests.bank import RESERVED, broken, claim, event_types, lengthen_leases, wait_until_drained
from tests.controls import COMMANDS, deposit, open_
from tests.holding import HELD, holding
from tests.processes import PATIENCE, Started, run_cli

pytestmark = pytest.mark.slow

# A component whose handler notes which process called it, for what.
_APP = """
import os
from dataclasses import dataclass

from reservation import Component


@dataclass
class Note:
    n: int


notes = Component("notes", id="n")


@notes.handle(Note)
def note(command, entity, context):
    message = context.message
    context.connection.execute(
        "INSERT INTO noted (process, stream_name, position) VALUES (%s, %s, %s)",
        [os.environ["NOTES_BY"], message.stream_name, message.global_position],
    )
"""

NOTES = "notes:command"
WITHOUT_ID = NOTES
STREAMS = [
    WITHOUT_ID,
    *(f"{NOTES}-{n}" for n in range(12)),
    *(f"{NOTES}-{n}+part" for n in range(12)),
]

# Whether all messages have been handled.
REACHED = "SELECT min(position) >= %(last)s FROM reservation.positions"

# Whether another member would have counted one with a lease until then as dead.
OUTLIVED = """
SELECT bool_and(l.expires_at > %(until)s + make_interval(secs => %(lease)s))
FROM reservation.leases l WHERE l.member <> %(member)s
"""

ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("-+:"), max_size=30)
sizes = st.integers(1, 1024)


def write_notes(connection, positions):
    """Write to every stream in turn, and return which global positions each got."""
    written = {name: [] for name in STREAMS}
    for n in positions:
        for name in STREAMS:
            written[name] += connection.execute(
                "INSERT INTO message_store.messages (stream_name, position, type, data) "
                "VALUES (%s, %s, 'Note', jsonb_build_object('n', %s::int)) "
                "RETURNING global_position",
                [name, n, n],
            ).fetchone()
    return written


def wait_until(connection, query, values, *running):
    """Wait until a query returns true, and check that the processes run."""
    deadline = time.monotonic() + PATIENCE
    while not connection.execute(query, values).fetchone()[0]:
        for process in running:
            assert process.process.poll() is None, process.log
        assert time.monotonic() < deadline
        time.sleep(0.01)


def partition_of(connection, name, size):
    return connection.execute("SELECT reservation.partition_of(%s, %s)", [name, size]).fetchone()[0]


@pytest.fixture
def app_dir(tmp_path, connection):
    """Give the folder of the app ``notes:notes``, and make its table."""
    (tmp_path / "notes.py").write_text(_APP)
    connection.execute(
        "CREATE TABLE noted (n serial, process text, stream_name text, position bigint)"
    )
    return str(tmp_path)


def test_two_members_handle_every_message_once_between_them(
    connection, database_url, app_dir, monkeypatch
):
    """Each stream belongs to one member, in order; streams without an id to the first."""
    written = write_notes(connection, range(5))
    options = ("--app-dir", app_dir, "--batch-size", "7", "--size", "2")
    with ExitStack() as running:
        members = []
        for member in ("0", "1"):
            monkeypatch.setenv("NOTES_BY", member)
            started = Started(database_url, *options, "--member", member, app="notes:notes")
            members.append(running.enter_context(started))
            assert started.wait_for("consumer_started")["partitions"] == [int(member)]
        for name, positions in write_notes(connection, range(5, 10)).items():
            written[name] += positions
        last = max(positions[-1] for positions in written.values())
        wait_until(connection, REACHED, {"last": last}, *members)
        assert [member.stop() for member in members] == [0, 0]
    handled, by = {}, {}
    for name, position, process in connection.execute(
        "SELECT stream_name, position, process FROM noted ORDER BY n"
    ):
        handled.setdefault(name, []).append(position)
        by.setdefault(name, set()).add(process)
    assert handled == written
    assert by == {name: {str(partition_of(connection, name, 2))} for name in STREAMS}
    assert by[WITHOUT_ID] == {"0"}
    assert set.union(*by.values()) == {"0", "1"}


@pytest.mark.parametrize("only", [["--only", "commands"], []])
def test_a_member_of_a_group_of_another_size_is_refused(connection, database_url, only):
    """A member of another group size ends with status 2 and one line, and changes nothing."""
    with Started(database_url, "--only", "commands", "--partitions", "3") as started:
        started.wait_for("consumer_started")
        assert started.stop() == 0
    done = run_cli(
        "start", "bank:account", *only, "--member", "0", "--size", "2",
        "--database-url", database_url,
    )  # fmt: skip
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert "\n".join(errors) == (
        "Error: The consumer account of account:command has 3 partitions, not 2; stop it "
        "everywhere and change that with `reservation partitions`"
    )
    rows = connection.execute(
        "SELECT partition, epoch, holder FROM reservation.positions "
        "WHERE category = 'account:command' ORDER BY partition"
    ).fetchall()
    assert rows == [(0, 1, None), (1, 1, None), (2, 1, None)]
    members = connection.execute("SELECT count(*) FROM reservation.members").fetchone()
    assert members == (0,)


@given(category=ids, leading=ids, size=sizes)
@example(category="a", leading="", size=2)
@example(category="", leading="+", size=3)
def test_a_stream_is_in_the_partition_that_message_db_would_read_it_in(
    connection, category, leading, size
):
    """The partition of a stream is the hash of its cardinal id, as in Message DB."""
    name = f"{category.replace('-', '_')}-{leading}"
    cardinal_id = stream_name.cardinal_id(name) or ""
    digest = hashlib.md5(cardinal_id.encode(), usedforsecurity=False).digest()[:8]
    by_hand = abs(int.from_bytes(digest, signed=True)) % size
    theirs = connection.execute(
        "SELECT MOD(@message_store.hash_64(message_store.cardinal_id(%s)), %s)", [name, size]
    ).fetchone()[0]
    assert partition_of(connection, name, size) == theirs == by_hand


@given(category=ids, size=sizes)
@example(category="", size=1)
def test_a_stream_without_an_id_is_in_the_first_partition(connection, category, size):
    """A stream without an id is in the first partition, where Message DB gives it to none."""
    assert partition_of(connection, category.replace("-", "_"), size) == 0


@given(leading=ids.filter(lambda text: "+" not in text), rest=ids, size=sizes)
def test_streams_with_the_same_leading_id_are_in_the_same_partition(
    connection, leading, rest, size
):
    """Streams with the same leading id share a partition, whatever their other ids."""
    alone = partition_of(connection, f"a-{leading}", size)
    assert partition_of(connection, f"b:command-{leading}+{rest}", size) == alone


def test_a_batch_that_takes_longer_than_the_lease_keeps_its_partitions(
    connection, store, database_url, tmp_path, monkeypatch
):
    """Heartbeats keep the lease of a member during a batch that takes longer."""
    app = holding(tmp_path, monkeypatch)
    store.write([open_(), deposit(), deposit(HELD)], COMMANDS)
    with Started(database_url, "--only", "commands") as commands:
        wait_until_drained(connection, commands, categories=["account:command"])
        assert commands.stop() == 0
    only = ("--only", "reserved", "--app-dir", str(tmp_path))
    with Started(database_url, *only, app="held:account") as slow:
        app.wait()
        with Started(database_url, "--only", "reserved") as other:
            other.wait_for("standing_by")
            ((member, until),) = connection.execute(
                "SELECT l.member, l.expires_at FROM reservation.positions p "
                "JOIN reservation.leases l ON l.member = p.holder WHERE p.category = %s",
                [RESERVED],
            ).fetchall()
            values = {"member": member, "until": until, "lease": LEASE}
            wait_until(connection, OUTLIVED, values, slow, other)
            app.let_go()
            committed = slow.wait_for("batch_committed")
            assert (committed["read"], committed["handled"]) == (2, 2)
            assert connection.execute(
                "SELECT holder, epoch FROM reservation.positions WHERE category = %s", [RESERVED]
            ).fetchall() == [(member, 1)]
            assert [started.stop() for started in (other, slow)] == [0, 0]
            for line in ("taken_for_dead", "partitions_lost", "database_unavailable"):
                assert line not in slow.log
            assert "batch_committed" not in other.log
    assert event_types(store) == ["Opened", "Deposited", "Deposited"]
    assert broken(connection) == {}


def test_each_log_event_of_a_member_has_its_partitions(connection, store, database_url):
    """Each log event has the partitions held; those of taking and leaving have the change."""
    for n in range(20):
        store.write(open_(str(n)), f"account:command-{n}")
    only = ("--only", "commands")
    with Started(database_url, *only, "--partitions", "4") as first:
        first.wait_for("consumer_started", partitions=[0, 1, 2, 3])
        first.wait_for("batch_committed", partitions=[0, 1, 2, 3], position=20)
        with Started(database_url, *only) as second:
            second.wait_for("consumer_started", partitions=[2, 3])
            first.wait_for("partitions_left", left=[2, 3], partitions=[0, 1])
            assert second.stop() == 0
            second.wait_for("consumer_stopped", partitions=[2, 3])
        first.wait_for("partitions_taken", taken=[2, 3], partitions=[0, 1, 2, 3])
        assert first.stop() == 0
    connection.execute("UPDATE reservation.positions SET position = 0 WHERE partition = 2")
    with Started(database_url, *only) as again:
        again.wait_for("batch_committed", partitions=[0, 1, 2, 3], part=[2])
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'reservation account account:command'"
        )
        again.wait_for("database_unavailable", partitions=[0, 1, 2, 3])
        again.wait_for("database_available")
        assert again.stop() == 0
    for started in (first, second, again):
        for line in map(json.loads, started.log.splitlines()):
            assert (line["consumer"], line["category"]) == ("account", "account:command")
            assert "partitions" in line
            assert set(line.get("taken", [])) <= set(line["partitions"])
    assert first.log.count('"part"') == 0


def test_a_member_that_stands_by_logs_that_it_has_no_partitions(connection, database_url):
    """Of three members, one has none of two partitions, and its log events say so."""
    lengthen_leases(connection)
    arguments = (database_url, "--only", "commands", "--workers", "2", "--partitions", "2")
    with Started(*arguments) as holders:
        for _ in range(2):
            holders.wait_for("consumer_started")
        with Started(database_url, "--only", "commands") as third:
            third.wait_for("standing_by", partitions=[])
            assert third.stop() == 0
        assert holders.stop() == 0


def test_a_process_that_is_ended_while_it_stops_logs_its_partitions(
    store, database_url, tmp_path, monkeypatch
):
    """A process that is ended while it stops logs the partitions that it held."""
    app = holding(tmp_path, monkeypatch, "deaf")
    store.write(deposit(HELD), COMMANDS)
    with Started(database_url, "--only", "commands") as commands:
        commands.wait_for("batch_committed", reserved=1)
        assert commands.stop() == 0
    options = ("--only", "reserved", "--partitions", "2", "--grace", "0")
    with Started(database_url, *options, "--app-dir", str(tmp_path), app="held:account") as deaf:
        app.wait()
        assert deaf.stop() == 0
        deaf.wait_for("batch_abandoned", consumer="account", category=RESERVED, partitions=[0, 1])


def test_the_events_of_a_category_that_is_not_shared_name_no_partitions(store, database_url):
    """Log events of a category that is not shared have no partitions."""
    store.write(open_(), COMMANDS)
    with Started(database_url, "--only", "commands") as started:
        started.wait_for("batch_committed")
        assert started.stop() == 0
    assert "partitions" not in started.log


def test_a_group_knows_from_where_on_its_members_have_read(connection, store):
    """A group records the lowest position at which a member joined, whatever moved it since."""
    store.write([deposit(f"d{n}") for n in range(60)], COMMANDS)

    def first_position():
        claim(connection, "account", "account:command")
        rows = connection.execute("SELECT first_position FROM reservation.groups")
        return [row[0] for row in rows]

    def move(position):
        connection.execute("UPDATE reservation.positions SET position = %s", [position])

    connection.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions) "
        "VALUES ('account', 'account:command', 2)"
    )
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, position) "
        "VALUES ('account', 'account:command', 0, 40), ('account', 'account:command', 1, 50)"
    )
    assert first_position() == [40]
    move(60)
    assert first_position() == [40]
    move(7)
    assert first_position() == [7]
    connection.execute("TRUNCATE reservation.groups, reservation.positions")
    assert first_position() == [0]
