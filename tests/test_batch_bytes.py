"""How many bytes a batch may have, and how much memory a consumer takes for large messages."""

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

import consumers
from consumers.batch.batch import Batch
from consumers.decisions.blocking import FailurePolicy
from consumers.group.membership import GroupShare, Membership
from consumers.runtime.context import ConsumerContext
from consumers.runtime.observability.logs import Log
from reservation import Component, StoreError
from reservation.serialization import codec
from reservation.store.writing.batch import portions
from reservation.store.writing.write import Row
from tests.bank import claim, session
from tests.processes import PATIENCE, Started, run_cli

MEGABYTE = 1_000_000
APP = """
from dataclasses import dataclass

from reservation import Component


@dataclass(frozen=True)
class Keep:
    scan_id: str
    image: str


@dataclass(frozen=True)
class Kept:
    size: int
    image: str


scan = Component("scan", id="scan_id")


def key(command):
    return command.scan_id


scan.reserve(Keep, into="keeping", key={key})


@scan.handle(Keep)
def keep(command, entity, context) -> Kept:
    return Kept(len(command.image), {image})
"""


@dataclass(frozen=True)
class Keep:
    scan_id: str
    image: str


@dataclass(frozen=True)
class Kept:
    size: int
    image: str


def fill(connection, count, size, category="scan:command"):
    """Write commands of so many bytes, which the server can compress."""
    connection.execute(
        "INSERT INTO message_store.messages (id, stream_name, position, type, data) "
        "SELECT gen_random_uuid(), %s || '-' || n, 0, 'Keep', "
        "jsonb_build_object('scanId', n::text, 'image', repeat('x', %s)) "
        "FROM generate_series(1, %s) AS n",
        [category, size, count],
    )


def most_memory(process):
    """Return the most resident memory that a process had, in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("the system does not tell")


def reach(connection, started, category):
    """Wait until a consumer has handled all messages of a category."""
    wanted = connection.execute(
        "SELECT max(global_position) FROM message_store.messages "
        "WHERE message_store.category(stream_name) = %s",
        [category],
    ).fetchone()[0]
    last, deadline = None, 0.0
    while (
        now := connection.execute(
            "SELECT position FROM reservation.positions WHERE category = %s", [category]
        ).fetchall()
    ) != [(wanted,)]:
        if now != last:  # it may take long, but not without any progress
            last, deadline = now, time.monotonic() + PATIENCE
        assert started.process.poll() is None, started.log
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("key", ['"scan_id"', "key"], ids=["a field", "a function"])
@pytest.mark.parametrize(
    "image",
    ["command.image", pytest.param("", marks=pytest.mark.long)],
    ids=["large events", "small events"],
)
def test_commands_of_a_megabyte_are_handled_in_little_memory(
    connection, database_url, tmp_path, key, image
):
    """Consumers of 500 commands of 1 MB each stay under 120 MB resident."""
    (tmp_path / "scanning.py").write_text(APP.format(key=key, image=image or '""'))
    fill(connection, 500, MEGABYTE)
    memory = {}
    for only, category in (("commands", "scan:command"), ("reserved", "keeping")):
        arguments = ["--app-dir", str(tmp_path), "--only", only]
        with Started(database_url, *arguments, app="scanning:scan") as started:
            reach(connection, started, category)
            memory[only] = most_memory(started.process)
            assert started.stop() == 0
    assert max(memory.values()) < 120
    kept = connection.execute(
        "SELECT count(*) FROM message_store.messages WHERE type = 'Kept' AND data->>'size' = %s",
        [str(MEGABYTE)],
    ).fetchone()
    assert kept == (500,)


def scanner(size=1):
    """Return a component whose handler returns an event of so many bytes, and what it was given."""
    component, given = Component("scan", id="scan_id"), []

    @component.handle(Keep)
    def keep(command, entity, context) -> Kept:
        given.append(command.scan_id)
        return Kept(0, "x" * size)

    return component, given


def batches(connection, component, **options):
    """Return how many messages each batch of a category had, to its end."""
    runner = Batch(ConsumerContext.of(connection, component, "scan:command"), **options)
    positions = claim(connection, "scan", "scan:command")
    read = []
    while (result := runner.run(positions, 100, policy=FailurePolicy(in_part=True))).read:
        read.append(result.read)
    return read


def test_a_batch_ends_with_the_message_that_reaches_its_bytes(connection):
    """A batch ends with the message that reaches its bytes; the next one goes on behind it."""
    fill(connection, 10, 1000)
    component, given = scanner()
    assert batches(connection, component, batch_bytes=2500) == [3, 3, 3, 1]
    assert given == [str(n) for n in range(1, 11)]


def test_a_message_larger_than_a_batch_may_be_is_one_of_its_own(connection):
    """A message larger than a batch may be makes up a batch of its own."""
    fill(connection, 3, 1000)
    assert batches(connection, scanner()[0], batch_bytes=1) == [1, 1, 1]


def test_a_batch_ends_once_its_handlers_have_enough_to_write(connection):
    """A batch ends once its events reach its bytes; each handler is called once."""
    fill(connection, 10, 10)
    component, given = scanner(1000)
    assert batches(connection, component, batch_bytes=2500) == [3, 3, 3, 1]
    assert given == [str(n) for n in range(1, 11)]


def test_commands_whose_key_the_server_takes_count_no_bytes(connection):
    """Commands whose data is not read may share a batch, however large they are."""
    fill(connection, 10, 1000)
    component, _ = scanner()
    component.reserve(Keep, into="keeping", key="scan_id")
    assert batches(connection, component, batch_bytes=1) == [10]


def test_a_part_of_a_category_is_read_to_its_end_in_batches_of_few_bytes(connection, database_url):
    """A consumer of one of two partitions passes no message behind a batch that was full."""
    fill(connection, 40, 1000)
    component, given = scanner()
    log = Log("scan", "scan:command")
    for member in range(2):
        share = GroupShare(2, member)
        with session(database_url) as opened:
            membership = Membership(opened, "scan", "scan:command", share, log)
            membership.join(opened.connection)
            membership.turn(opened.connection)
            runner = Batch(
                ConsumerContext.of(opened.connection, component, "scan:command"), batch_bytes=2500
            )
            while (result := runner.run(membership.positions, 100)).moved:
                assert result.read <= 3
            membership.leave(opened.connection)
    assert sorted(given, key=int) == [str(n) for n in range(1, 41)]


def test_events_are_written_in_portions(connection, store):
    """Rows that are large together are written in several statements, in their order."""
    row = Row(uuid.UUID(int=0), "scan-1", "Kept", codec.encode(Kept(1, "x" * MEGABYTE)), None, None)
    rows = [row._replace(id=uuid.uuid4(), expected_version=n - 1) for n in range(10)]
    with connection.transaction():
        assert store.write_encoded(rows) == list(range(10))
    assert [message.id for message in store.read_stream("scan-1")] == [str(r.id) for r in rows]
    assert [len(portion) for portion in portions(rows)] == [5, 5]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "16MB", True])
def test_another_number_of_bytes_is_refused(database_url, wrong):
    """A number of bytes that is not a positive integer is refused."""
    with pytest.raises(StoreError, match="bytes"):
        consumers.drain(scanner()[0], database_url, batch_bytes=wrong)


@pytest.mark.parametrize("wrong", ["0", "16MB", "-1", ""])
def test_the_command_line_refuses_it_in_one_line(database_url, wrong):
    """The command line refuses another number of bytes in one line."""
    done = run_cli("start", "bank:account", "--batch-bytes", wrong, "--database-url", database_url)
    assert done.returncode == 2
    assert done.stderr.count("Error") == 1
    assert "--batch-bytes" in done.stderr


def test_the_help_names_unit_and_default():
    """The help names the unit and the default."""
    text = " ".join(run_cli("start", "--help").stdout.split())
    assert "--batch-bytes BYTES" in text
    assert "[default: (16777216, which is 16 MiB)" in text
