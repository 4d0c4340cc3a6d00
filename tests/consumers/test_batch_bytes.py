"""How many bytes a batch may have."""

from dataclasses import dataclass

import pytest

import consumers
from reservation import Component
from reservation.errors import StoreError
from tests.apps.bank import drain
from tests.support.consuming import logged
from tests.support.stored_positions import store_position

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Keep:
    scan_id: str
    image: str


@dataclass(frozen=True)
class Kept:
    size: int
    image: str


def fill(connection, count, size):
    """Write commands of so many bytes, which the server can compress."""
    connection.execute(
        "INSERT INTO message_store.messages (id, stream_name, position, type, data) "
        "SELECT gen_random_uuid(), 'scan:command-' || n, 0, 'Keep', "
        "jsonb_build_object('scanId', n::text, 'image', repeat('x', %s)) "
        "FROM generate_series(1, %s) AS n",
        [size, count],
    )


def scanner(size=1, key=None, events=1):
    """Return a component whose handler returns events of so many bytes, and what it was given."""
    component, given = Component("scan", id="scan_id"), []

    @component.handle(Keep, key=key, once=None)
    def keep(command, entity, context) -> list[Kept]:
        given.append(command.scan_id)
        return [Kept(n, "x" * size) for n in range(events)]

    return component, given


def batches(connection, component, **options):
    """Handle all commands; return how many each batch of them had."""
    with logged() as log:
        drain(connection, component, **options)
    return [one["read"] for one in log.named("batch_committed", category="scan:command")]


@pytest.mark.parametrize(("commands", "events"), [(1000, 1), (10, 1000)])
def test_a_batch_ends_with_what_reaches_its_bytes(connection, commands, events):
    """Be it read or written; the next one goes on behind it, and each handler is called once."""
    fill(connection, 10, commands)
    component, given = scanner(events)
    assert batches(connection, component, batch_bytes=2500) == [3, 3, 3, 1]
    assert given == [str(n) for n in range(1, 11)]


def test_a_message_larger_than_a_batch_may_be_is_one_of_its_own(connection):
    """It is handled all the same."""
    fill(connection, 3, 1000)
    assert batches(connection, scanner()[0], batch_bytes=1) == [1, 1, 1]


def test_commands_whose_key_the_server_takes_count_no_bytes(connection):
    """Their data is not read, so they may share a batch, however large they are."""
    fill(connection, 10, 1000)
    component, _ = scanner(key="scan_id")
    assert batches(connection, component, batch_bytes=1) == [10]


def test_a_part_of_a_category_is_read_to_its_end_in_batches_of_few_bytes(connection):
    """Where one of two partitions is behind, none of its messages is passed over."""
    fill(connection, 40, 1000)
    connection.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions) "
        "VALUES ('scan', 'scan:command', 2)"
    )
    for partition, position in enumerate((0, 30)):
        store_position(connection, "scan", "scan:command", position, partition)
    behind = connection.execute(
        "SELECT data->>'scanId' FROM message_store.messages "
        "WHERE global_position > 30 OR reservation.partition_of(stream_name, 2) = 0 "
        "ORDER BY global_position"
    ).fetchall()
    component, given = scanner()
    assert max(batches(connection, component, batch_bytes=2500)) == 3
    assert given == [scan_id for (scan_id,) in behind]


def test_large_events_of_a_batch_keep_their_order(connection, store):
    """They take several statements."""
    fill(connection, 2, 10)
    drain(connection, scanner(MEGABYTE, events=5)[0])
    for stream in ("scan-1", "scan-2"):
        assert [event.decode(Kept).size for event in store.read_stream(stream)] == list(range(5))


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "16MB", True])
def test_another_number_of_bytes_is_refused(database_url, wrong):
    """A number of bytes that is not a positive integer is refused."""
    with pytest.raises(StoreError, match="bytes"):
        consumers.drain(scanner()[0], database_url, batch_bytes=wrong)
