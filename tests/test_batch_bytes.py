"""How many bytes a batch may have, and how much memory a consumer takes for large messages."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.processes import PATIENCE, Started

MEGABYTE = 1_000_000
SENT = "scan:command-1"

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


scan = Component("scan", id="scan_id")


def key(command):
    return command.scan_id


scan.reserve(Keep, into="keeping", key={key})


@scan.handle(Keep)
def keep(command, entity, context) -> Kept:
    return Kept(len(command.image))
"""


@dataclass(frozen=True)
class Keep:
    scan_id: str
    image: str


@dataclass(frozen=True)
class Kept:
    size: int


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


def reach(connection, started, category, count):
    """Wait until a consumer has handled so many messages of a category."""
    deadline = time.monotonic() + PATIENCE
    wanted = connection.execute(
        "SELECT max(global_position) FROM message_store.messages "
        "WHERE message_store.category(stream_name) = %s",
        [category],
    ).fetchone()[0]
    while connection.execute(
        "SELECT position FROM reservation.positions WHERE category = %s", [category]
    ).fetchall() != [(wanted,)]:
        assert started.process.poll() is None, started.log
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("key", ['"scan_id"', "key"], ids=["a field", "a function"])
def test_commands_of_a_megabyte_are_handled_in_little_memory(
    connection, database_url, tmp_path, key
):
    """Consumers of 500 commands of 1 MB each stay under 120 MB resident."""
    (tmp_path / "scanning.py").write_text(APP.replace("{key}", key))
    fill(connection, 500, MEGABYTE)
    memory = {}
    for only, category in (("commands", "scan:command"), ("reserved", "keeping")):
        arguments = ["--app-dir", str(tmp_path), "--only", only]
        with Started(database_url, *arguments, app="scanning:scan") as started:
            reach(connection, started, category, 500)
            memory[only] = most_memory(started.process)
            assert started.stop() == 0
    print(memory)
    assert max(memory.values()) < 120
    kept = connection.execute(
        "SELECT count(*) FROM message_store.messages WHERE data->>'size' = %s", [str(MEGABYTE)]
    ).fetchone()
    assert kept == (500,)
