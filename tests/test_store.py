"""The client of the message store."""

import threading
import tracemalloc
import uuid
from dataclasses import dataclass
from decimal import Decimal

import pytest
from psycopg import IsolationLevel

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
from reservation.messages.ids import uuid7
from reservation.postgres.connection import connect
from reservation.store.writing import batch as written_batch
from tests.controls import COMMANDS, deposit, open_, withdraw


def test_a_message_is_read_as_it_was_written(store):
    """A message is read with the data, metadata, id and positions of its write."""
    message_id = uuid7()
    metadata = Metadata(correlation_stream_name="transfer-1")
    assert store.write(deposit(), COMMANDS, id=message_id, metadata=metadata) == 0
    (message,) = store.read_stream(COMMANDS)
    assert message.decode(type(deposit())) == deposit()
    assert message.metadata == metadata
    assert (message.id, message.type, message.position) == (str(message_id), "Deposit", 0)
    assert message.stream_name == COMMANDS


def test_several_messages_are_written_in_their_order(store):
    """A batch gets positions and global positions in its order, in every stream."""
    assert store.write([deposit("d1"), deposit("d2")], COMMANDS) == 1
    positions = store.write_batch(
        [
            Write(deposit("d3"), COMMANDS),
            Write(open_("9"), "account:command-9"),
            Write(deposit("d4"), COMMANDS),
        ]
    )
    assert positions == [2, 0, 3]
    messages = list(store.read_category("account:command"))
    assert [m.global_position for m in messages] == sorted(m.global_position for m in messages)
    assert [(m.stream_name, m.position) for m in messages] == [
        (COMMANDS, 0),
        (COMMANDS, 1),
        (COMMANDS, 2),
        ("account:command-9", 0),
        (COMMANDS, 3),
    ]


def test_an_expected_version_guards_each_stream(store):
    """A wrong expected version of one stream refuses the whole batch."""
    assert store.write_initial(deposit("d1"), COMMANDS) == 0
    with pytest.raises(ExpectedVersionError, match=r"-1 \(Stream: account:command-123.*: 0\)"):
        store.write_initial(deposit("d2"), COMMANDS)
    with pytest.raises(ExpectedVersionError):
        store.write_batch(
            [
                Write(open_("9"), "account:command-9"),
                Write(deposit("d3"), COMMANDS, expected_version=7),
            ]
        )
    assert store.stream_version("account:command-9") == NO_STREAM
    assert store.write([deposit("d4"), deposit("d5")], COMMANDS, expected_version=0) == 2


def test_a_write_is_repeated_without_harm(store):
    """A repeated write of the same id returns the first position."""
    first, second = uuid7(), uuid7()
    writes = [
        Write(deposit("d1"), COMMANDS, id=first, expected_version=-1),
        Write(deposit("d2"), COMMANDS, id=second, expected_version=0),
    ]
    assert store.write_batch(writes) == [0, 1]
    assert store.write(deposit("d3"), COMMANDS) == 2
    assert store.write_batch(writes) == [0, 1]
    assert store.stream_version(COMMANDS) == 2


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
    message_id = uuid7()
    store.write(deposit("d1"), COMMANDS, id=message_id)
    with pytest.raises(MessageIdConflictError, match=str(message_id)):
        store.write(other.message, other.stream_name, id=message_id, metadata=other.metadata)
    assert len(list(store.read_category("account:command"))) == 1


def test_one_id_cannot_serve_several_messages(store):
    """An id is refused for several messages; the same message twice is a retry."""
    with pytest.raises(StoreError, match="each its own"):
        store.write([deposit("d1"), deposit("d2")], COMMANDS, id=uuid7())
    same = uuid7()
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


@pytest.mark.parametrize("level", list(IsolationLevel))
def test_of_two_writers_one_wins_under_every_isolation_level(database_url, level):
    """The losing writer gets the same kind of error under every isolation level."""
    with connect(database_url) as own, connect(database_url) as other:
        other.isolation_level = level
        other.execute("SELECT count(*) FROM message_store.messages")  # its snapshot is from before
        MessageStore(own).write_initial(deposit("d1"), COMMANDS)
        own.commit()
        with pytest.raises(ExpectedVersionError):
            MessageStore(other).write_initial(deposit("d2"), COMMANDS)


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


def test_a_write_takes_part_in_the_callers_transaction(database_url, store):
    """A sender writes a command in the transaction of its own rows, or not at all."""
    with connect(database_url) as connection:
        MessageStore(connection).write(deposit(), COMMANDS)
        assert store.stream_version(COMMANDS) == NO_STREAM
        connection.rollback()
    assert store.stream_version(COMMANDS) == NO_STREAM


def test_reading_goes_on_to_the_end_batch_by_batch(store):
    """The batch size does not change what is read."""
    store.write([deposit(f"d{n}") for n in range(10)], COMMANDS)
    everything = list(store.read_stream(COMMANDS))
    for size in (1, 3, 10, 11):
        assert list(store.read_stream(COMMANDS, batch_size=size)) == everything
        assert list(store.read_category("account:command", batch_size=size)) == everything
    assert list(store.read_stream(COMMANDS, position=8)) == everything[8:]
    start = everything[4].global_position
    assert list(store.read_category("account:command", position=start)) == everything[4:]


@pytest.mark.parametrize("read", ["stream", "category"])
def test_the_memory_of_a_reader_does_not_grow(store, read):
    """Reading ten times the messages takes no more memory at any moment."""

    def highest():
        tracemalloc.start()
        if read == "stream":
            count = sum(1 for _ in store.read_stream(COMMANDS, batch_size=500))
        else:
            count = sum(1 for _ in store.read_category("account:command", batch_size=500))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return count, peak

    peaks = {}
    for many in (2_000, 18_000):
        store.write([deposit()] * many, COMMANDS)
        highest()  # what is kept between reads is there before it is measured
        count, peak = highest()
        peaks[count] = peak
    assert peaks.keys() == {2_000, 20_000}
    assert peaks[20_000] < 1.2 * peaks[2_000]


def test_many_streams_are_read_at_once(store):
    """Many streams are read in one call, each from its own position and in order."""
    store.write([deposit("d1"), deposit("d2")], COMMANDS)
    store.write([deposit("d3"), deposit("d4")], "account:command-9")
    messages = store.read_streams({"account:command-9": 1, COMMANDS: 0, "account:command-0": 0})
    assert [(m.stream_name, m.position) for m in messages] == [
        ("account:command-9", 1),
        (COMMANDS, 0),
        (COMMANDS, 1),
    ]


def test_the_last_message_is_found_also_by_type(store):
    """The last message of a stream can be read, and the last of one type."""
    assert store.last_message(COMMANDS) is None
    store.write([open_(), deposit("d1"), withdraw()], COMMANDS)
    assert store.last_message(COMMANDS).type == "Withdraw"
    assert store.last_message(COMMANDS, "Deposit").position == 1
    assert store.last_message(COMMANDS, "Close") is None


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


@pytest.mark.parametrize("text", ["d" * 300, "\N{GRINNING FACE}" * 75])
def test_a_batch_that_is_too_long_for_the_server_is_refused(store, monkeypatch, text):
    """A batch that is too long is refused; its messages can be written one by one."""
    writes = [Write(deposit(f"{n}{text}"), COMMANDS) for n in range(4)]
    monkeypatch.setattr(written_batch, "MOST_BYTES", 1600)
    with pytest.raises(StoreError, match=r"The 4 messages are \d+ bytes long together.* batches"):
        store.write_batch(writes)
    assert [store.write_batch([write]) for write in writes] == [[0], [1], [2], [3]]


def test_ids_are_ordered_by_time():
    """Ids are UUIDs of version 7, which keep the index growing at its end."""
    made = [uuid7() for _ in range(50)]
    assert all(id_.version == 7 and id_.variant == uuid.RFC_4122 for id_ in made)
    assert [id_.int >> 80 for id_ in made] == sorted(id_.int >> 80 for id_ in made)
