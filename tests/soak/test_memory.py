"""How much memory consumers take for large messages."""

import time
from pathlib import Path

import pytest

from tests.support.started import PATIENCE, Started

MEGABYTE = 1_000_000
APP = """
from dataclasses import dataclass

from reservation import Component, Key


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


@scan.handle(Keep, key=Key({key}, into="keeping", per=None))
def keep(command, entity, context) -> Kept:
    return Kept(len(command.image), {image})
"""


def fill(connection, count, size):
    """Write commands of so many bytes, which the server can compress."""
    connection.execute(
        "INSERT INTO message_store.messages (id, stream_name, position, type, data) "
        "SELECT gen_random_uuid(), 'scan:command-' || n, 0, 'Keep', "
        "jsonb_build_object('scanId', n::text, 'image', repeat('x', %s)) "
        "FROM generate_series(1, %s) AS n",
        [size, count],
    )


def most_memory(started):
    """Return the most resident memory that the process of the consumers had, in MB."""
    for line in Path(f"/proc/{started.workers[0].pid}/status").read_text().splitlines():
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


@pytest.mark.parametrize("key", ['"scan_id"', "key"], ids=["a field", "a function"])
@pytest.mark.parametrize("image", ["command.image", '""'], ids=["large events", "small events"])
def test_commands_of_a_megabyte_are_handled_in_little_memory(
    connection, database_url, tmp_path, key, image
):
    """Consumers of 500 commands of 1 MB each stay under 120 MB resident."""
    (tmp_path / "scanning.py").write_text(APP.format(key=key, image=image))
    fill(connection, 500, MEGABYTE)
    memory = {}
    for only, category in (("commands", "scan:command"), ("reserved", "keeping")):
        arguments = ["--app-dir", str(tmp_path), "--only", only]
        with Started(database_url, *arguments, app="scanning:scan") as started:
            reach(connection, started, category)
            memory[only] = most_memory(started)
            assert started.stop() == 0
    assert max(memory.values()) < 120
    kept = connection.execute(
        "SELECT count(*) FROM message_store.messages WHERE type = 'Kept' AND data->>'size' = %s",
        [str(MEGABYTE)],
    ).fetchone()
    assert kept == (500,)
