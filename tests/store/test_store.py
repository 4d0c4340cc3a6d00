"""The client of the message store."""

import threading
import tracemalloc
import uuid
from dataclasses import dataclass
from decimal import Decimal

import pytest
from psycopg import IsolationLevel, connect

from reservation import NO_STREAM, MessageStore, Metadata, Write
from reservation.errors import (
    DatabaseUnavailableError,
    EncodeError,
    ExpectedVersionError,
    MessageIdConflictError,
    ReservationError,
    SerializationError,
    StoreError,
    StreamNameError,
)
from tests.support.controls import COMMANDS, deposit, open_, withdraw


def test_a_message_is_read_as_it_was_written(store):
    """A message is read with the data, metadata, id and positions of its write."""
    message_id = uuid.uuid4()
    metadata = Metadata(correlation_stream_name="transfer-1")
    assert store.write(deposit(), COMMANDS, id=message_id, metadata=metadata) == 0
    (message,) = store.read_stream(COMMANDS)
    assert message.decode(type(deposit())) == deposit()
    assert message.metadata == metadata
    assert (message.id, message.type, message.position) == (str(message_id), "Deposit", 0)
    assert message.stream_name == COMMANDS


@pytest.mark.parametrize(
    "other",
    [
        Write(deposit("d1", amount="11"), COMMANDS),
        Write(withdraw("d1"), COMMANDS),
        Write(deposit("d1"), "account:command-124"),
        Write(deposit("d1"), COMMANDS, metadata=Metadata(reply_stream_name="x-1")),
    ],
)
def test_an_id_stands_for_one_content(store, other):
    """The same id with other content, type, stream or metadata is an error, not a retry."""
    message_id = uuid.uuid4()
    store.write(deposit("d1"), COMMANDS, id=message_id)
    with pytest.raises(MessageIdConflictError, match=str(message_id)):
        store.write(other.message, other.stream_name, id=message_id, metadata=other.metadata)
    assert len(list(store.read_category("account:command"))) == 1


def test_one_id_cannot_serve_several_messages(store):
    """An id is refused for several messages; the same message twice is a retry."""
    with pytest.raises(StoreError, match="each its own"):
        store.write([deposit("d1"), deposit("d2")], COMMANDS, id=uuid.uuid4())
    same = uuid.uuid4()
    with pytest.raises(MessageIdConflictError):
        store.write_batch([Write(deposit(k), COMMANDS, id=same) for k in ("d1", "d2")])
    assert store.write_batch([Write(deposit("d1"), COMMANDS, id=same)] * 2) == [0, 0]


@pytest.mark.parametrize(
    ("expected", "wrong", "version"),
    [
        ([7, None], 7, 2),  # beyond the end of the stream
        ([1, None], 1, 2),
        ([-1, None], -1, 2),
        ([2, 5], 5, 3),  # behind the first message of the batch
        ([2, 2], 2, 3),
        ([None, 2], 2, 3),
    ],
)
def test_the_error_names_the_version_of_the_stream(store, expected, wrong, version):
    """Of a batch, the first message that expects another version is named, and what there was."""
    store.write([deposit(f"d{n}") for n in range(3)], COMMANDS)
    other = Write(deposit("other"), "account:command-9", expected_version=-1)
    batch = [Write(deposit(f"e{n}"), COMMANDS, expected_version=v) for n, v in enumerate(expected)]
    message = rf"version: {wrong} \(Stream: {COMMANDS}, Stream Version: {version}\)"
    with pytest.raises(ExpectedVersionError, match=message):
        store.write_batch([other, *batch])


def test_a_race_lost_for_one_stream_is_not_blamed_on_the_version_of_another(database_url):
    """A lost race in a batch is reported for the stream that lost it."""
    batch = [
        Write(deposit("d2"), COMMANDS),
        Write(open_("9"), "account:command-9", expected_version=NO_STREAM),
    ]
    with connect(database_url) as own, connect(database_url) as other:
        other.isolation_level = IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM message_store.messages")  # its snapshot is from before
        MessageStore(own).write(deposit("d1"), COMMANDS)
        own.commit()
        with pytest.raises(SerializationError, match="again from its start"):
            MessageStore(other).write_batch(batch)
        other.rollback()
        assert MessageStore(other).write_batch(batch) == [1, 0]


def test_writers_of_many_streams_do_not_block_each_other_for_ever(database_url):
    """Locks are taken in a fixed order, whatever the order of the messages."""
    streams = [f"category{n}-1" for n in range(8)]
    failures = []

    def write(names):
        try:
            with connect(database_url) as connection:
                for _ in range(25):
                    MessageStore(connection).write_batch([Write(deposit(), n) for n in names])
                    connection.commit()
        except ReservationError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(s,)) for s in (streams, streams[::-1]) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("read", ["stream", "category"])
def test_the_memory_of_a_reader_does_not_grow(store, read):
    """Reading ten times the messages takes no more memory at any moment."""

    def highest():
        tracemalloc.start()
        if read == "stream":
            count = sum(1 for _ in store.read_stream(COMMANDS, batch_size=100))
        else:
            count = sum(1 for _ in store.read_category("account:command", batch_size=100))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return count, peak

    peaks = {}
    for many in (500, 4_500):
        store.write([deposit()] * many, COMMANDS)
        highest()  # what is kept between reads is there before it is measured
        count, peak = highest()
        peaks[count] = peak
    assert peaks.keys() == {500, 5_000}
    assert peaks[5_000] < 1.2 * peaks[500]


def test_a_pool_serves_many_threads(database_url):
    """A store opened by its address can be shared between threads."""
    with MessageStore.open(database_url, max_connections=2) as store:
        threads = [
            threading.Thread(target=store.write, args=(deposit(f"d{n}"), COMMANDS))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.stream_version(COMMANDS) == 7


def test_a_lost_connection_is_an_error_of_its_own(database_url, admin):
    """A lost connection, which is worth a retry, has its own error."""
    with connect(database_url, autocommit=True) as connection:
        admin.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(DatabaseUnavailableError, match="was lost"):
            MessageStore(connection).write(deposit(), COMMANDS)


def test_a_message_is_written_to_a_stream_not_to_a_category(store):
    """Writing to a category is refused, as no reader of a stream would find the message."""
    for name in ("account:command", "account:command-"):
        with pytest.raises(StreamNameError, match="it has no id"):
            store.write(deposit(), name)


def test_a_message_that_does_not_match_its_class_is_refused(store):
    """A message whose values do not match its class is refused when it is written."""

    @dataclass
    class Wrong:
        amount: Decimal

    with pytest.raises(EncodeError, match="Cannot encode a Wrong"):
        store.write(Wrong(amount="much"), COMMANDS)
    with pytest.raises(EncodeError, match="Cannot encode a dict"):
        store.write({"amount": 1}, COMMANDS)


def test_ids_are_ordered_by_time(store):
    """Ids are UUIDs of version 7, which keep the index growing at its end."""
    store.write([deposit(f"d{n}") for n in range(50)], COMMANDS)
    made = [uuid.UUID(message.id) for message in store.read_stream(COMMANDS)]
    assert all(id_.version == 7 and id_.variant == uuid.RFC_4122 for id_ in made)
    assert [id_.int >> 80 for id_ in made] == sorted(id_.int >> 80 for id_ in made)
