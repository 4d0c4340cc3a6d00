"""Processes that share a category."""

import time

from tests.support.started import PATIENCE, Started

# A component whose handler notes which process called it, for what.
APP = """
import os
from dataclasses import dataclass

from reservation import Component


@dataclass
class Note:
    n: int


notes = Component("notes", id="n")


@notes.handle(Note, once=None)
def note(command, entity, context):
    message = context.message
    context.connection.execute(
        "INSERT INTO noted (member, stream_name, position) VALUES (%s, %s, %s)",
        [os.environ["NOTES_BY"], message.stream_name, message.global_position],
    )
"""

NOTES = "notes:command"
STREAMS = [
    NOTES,
    *(f"{NOTES}-{n}" for n in range(12)),
    *(f"{NOTES}-{n}+part" for n in range(12)),
]


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


def wait_until_read(connection, last, *running):
    """Wait until all partitions are at the last message, and check that the processes run."""
    deadline = time.monotonic() + PATIENCE
    reached = "SELECT min(position) >= %s FROM reservation.positions"
    while not connection.execute(reached, [last]).fetchone()[0]:
        for started in running:
            assert started.process.poll() is None, started.log
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_members_handle_every_message_once_between_them(
    connection, database_url, tmp_path, monkeypatch
):
    """Each stream belongs to one member, in order; streams without an id to the first partition."""
    (tmp_path / "notes.py").write_text(APP)
    connection.execute(
        "CREATE TABLE noted (n serial, member text, stream_name text, position bigint)"
    )
    options = ("--app-dir", str(tmp_path), "--batch-size", "7", "--partitions", "2")
    monkeypatch.setenv("NOTES_BY", "0")
    with Started(database_url, *options, app="notes:notes") as first:
        assert first.wait_for("consumer_started")["partitions"] == [0, 1]
        monkeypatch.setenv("NOTES_BY", "1")
        with Started(database_url, *options, app="notes:notes") as second:
            assert first.wait_for("partitions_left")["partitions"] == [0]
            assert second.wait_for("consumer_started")["partitions"] == [1]
            written = write_notes(connection, range(10))
            last = max(positions[-1] for positions in written.values())
            wait_until_read(connection, last, first, second)
            assert (first.stop(), second.stop()) == (0, 0)
    handled, by = {}, {}
    for name, position, member in connection.execute(
        "SELECT stream_name, position, member FROM noted ORDER BY n"
    ):
        handled.setdefault(name, []).append(position)
        by.setdefault(name, set()).add(int(member))
    assert handled == written
    (parts,) = connection.execute(
        "SELECT array_agg(reservation.partition_of(name, 2)) FROM unnest(%s::text[]) AS name",
        [STREAMS],
    ).fetchone()
    assert by == {name: {part} for name, part in zip(STREAMS, parts, strict=True)}
    assert by[NOTES] == {0}
    assert set.union(*by.values()) == {0, 1}
