"""`MessageStore` compared with a model in memory through random writes and reads."""

import hashlib
import itertools
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from reservation import NO_STREAM, MessageStore, Metadata, Write, stream_name
from reservation.errors import ExpectedVersionError, MessageIdConflictError
from tests.support.controls import close, deposit, open_, withdraw

_prefixes = itertools.count(1)

MESSAGES = st.sampled_from(
    [deposit("d1"), deposit("d2", amount="0.10"), withdraw(), open_(), close()]
)
METADATA = st.sampled_from(
    [None, Metadata(correlation_stream_name="transfer-1"), Metadata(properties={"a": [1, None]})]
)
SIZES = st.integers(1, 7)
STREAMS = st.sampled_from(["one-1", "one-2", "one-2+x", "two:command-1"])
CATEGORIES = st.sampled_from(["one", "two:command", "three"])


def member_of(name: str, size: int) -> int:
    """Return the member of a consumer group that reads a stream in Message DB."""
    cardinal_id = stream_name.cardinal_id(name) or ""
    digest = hashlib.md5(cardinal_id.encode()).digest()[:8]
    return abs(int.from_bytes(digest, signed=True)) % size


@dataclass
class Stored:
    """A message of the model."""

    write: Write
    position: int


class Model(RuleBasedStateMachine):
    """What a sender and a reader may do, in any order, and what they must see."""

    store: MessageStore

    @initialize()
    def begin(self) -> None:
        """Take categories for this example alone."""
        self.prefix = f"m{next(_prefixes)}"
        self.messages: list[Stored] = []  # in the order of writing

    def of(self, stream_name: str) -> list[Stored]:
        """Give the messages of a stream."""
        return [message for message in self.messages if message.write.stream_name == stream_name]

    def in_category(self, category: str) -> list[Stored]:
        """Give the messages of a category."""
        return [
            message
            for message in self.messages
            if message.write.stream_name.startswith(f"{category}-")
        ]

    def add(self, writes: list[Write]) -> list[int]:
        """Write to the model and give the positions."""
        positions = []
        for write in writes:
            positions.append(len(self.of(write.stream_name)))
            self.messages.append(Stored(write, positions[-1]))
        return positions

    def write(self, stream: str, message: object, metadata: Metadata | None) -> Write:
        """Return a write under a new id."""
        return Write(message, self.prefix + stream, uuid.uuid4(), metadata)

    def agree(self, read: list[Any], expected: list[Stored]) -> None:
        """Compare the messages that were read with those of the model."""
        assert [
            (m.id, m.stream_name, m.type, m.position, m.decode(type(e.write.message)), m.metadata)
            for m, e in zip(read, expected, strict=True)
        ] == [
            (
                str(e.write.id),
                e.write.stream_name,
                type(e.write.message).__name__,
                e.position,
                e.write.message,
                e.write.metadata or Metadata(),
            )
            for e in expected
        ]

    @rule(stream=STREAMS, message=MESSAGES, metadata=METADATA, versioned=st.booleans())
    def write_one(self, stream, message, metadata, versioned):
        """A message goes to the end of its stream, with the right expected version or none."""
        write = self.write(stream, message, metadata)
        version = len(self.of(write.stream_name)) - 1 if versioned else None
        written = self.store.write(
            message, write.stream_name, id=write.id, metadata=metadata, expected_version=version
        )
        assert [written] == self.add([write])

    @rule(stream=STREAMS, message=MESSAGES, wrong=st.integers(-1, 12))
    def write_at_a_wrong_version(self, stream, message, wrong):
        """A wrong expected version is refused, and nothing changes."""
        name = self.prefix + stream
        if wrong == len(self.of(name)) - 1:
            wrong += 1
        with pytest.raises(ExpectedVersionError):
            self.store.write(message, name, expected_version=wrong)
        if self.of(name):
            with pytest.raises(ExpectedVersionError):
                self.store.write_initial(message, name)

    @rule(
        parts=st.lists(st.tuples(STREAMS, MESSAGES, METADATA, st.booleans()), max_size=5),
        wrong_at=st.none() | st.integers(0, 4),
    )
    def write_to_many_streams(self, parts, wrong_at):
        """A batch is written in its order and all of it, or not at all."""
        writes, plain = [], []
        counts: dict[str, int] = {}
        for n, (stream, message, metadata, versioned) in enumerate(parts):
            write = self.write(stream, message, metadata)
            name = write.stream_name
            version = counts.get(name, len(self.of(name))) - 1
            counts[name] = version + 2
            plain.append(write)
            expected = version + 3 if n == wrong_at else version if versioned else None
            writes.append(Write(message, name, write.id, metadata, expected))
        if wrong_at is not None and wrong_at < len(parts):
            with pytest.raises(ExpectedVersionError):
                self.store.write_batch(writes)
        else:
            assert self.store.write_batch(writes) == self.add(plain)

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), stream=STREAMS, message=MESSAGES, versioned=st.booleans())
    def write_again(self, data, stream, message, versioned):
        """A retry gives the first positions, also beside a new message, and writes that alone."""
        old = data.draw(st.lists(st.sampled_from(self.messages), min_size=1, max_size=3))
        again = [
            Write(
                stored.write.message,
                stored.write.stream_name,
                stored.write.id,
                stored.write.metadata,
                stored.position - 1 if versioned else None,
            )
            for stored in old
        ]
        assert self.store.write_batch(again) == [stored.position for stored in old]
        new = self.write(stream, message, None)
        positions = self.store.write_batch([*again, new])
        assert positions == [*(stored.position for stored in old), *self.add([new])]

    @precondition(lambda self: self.messages)
    @rule(data=st.data(), other=STREAMS, message=MESSAGES)
    def write_other_content_with_an_id_in_use(self, data, other, message):
        """It is refused as a mistake, and nothing changes."""
        used = data.draw(st.sampled_from(self.messages)).write
        name = self.prefix + other
        if (message, name) == (used.message, used.stream_name):
            message = deposit("another")
        with pytest.raises(MessageIdConflictError):
            self.store.write(message, name, id=used.id, metadata=used.metadata)
        with pytest.raises(MessageIdConflictError):
            self.store.write(
                used.message, used.stream_name, id=used.id, metadata=Metadata(schema_version=7)
            )

    @rule(stream=STREAMS, position=st.integers(0, 9), size=SIZES)
    def read_a_stream(self, stream, position, size):
        """A stream is read from any position, whatever the size of the batches."""
        name = self.prefix + stream
        read = list(self.store.read_stream(name, position=position, batch_size=size))
        self.agree(read, self.of(name)[position:])

    @rule(data=st.data(), category=CATEGORIES, size=SIZES)
    def read_a_category(self, data, category, size):
        """A category is read in the order of writing, from any global position."""
        expected = self.in_category(self.prefix + category)
        whole = list(self.store.read_category(self.prefix + category, batch_size=size))
        self.agree(whole, expected)
        if whole:
            n = data.draw(st.integers(0, len(whole) - 1))
            for beyond in (0, 1):
                rest = self.store.read_category(
                    self.prefix + category,
                    position=whole[n].global_position + beyond,
                    batch_size=size,
                )
                assert list(rest) == whole[n + beyond :]

    @rule(
        data=st.data(),
        category=CATEGORIES,
        batch_size=SIZES,
        correlation=st.sampled_from([None, "transfer", "other"]),
        group_size=st.none() | st.integers(1, 3),
    )
    def read_a_share_of_a_category(self, data, category, batch_size, correlation, group_size):
        """A category is read by correlation, and by the member of a consumer group."""
        expected = self.in_category(self.prefix + category)
        options: dict[str, Any] = {}
        if correlation is not None:
            options["correlation"] = correlation
            expected = [
                message
                for message in expected
                if message.write.metadata
                and (message.write.metadata.correlation_stream_name or "").startswith(
                    f"{correlation}-"
                )
            ]
        if group_size is not None:
            member = data.draw(st.integers(0, group_size - 1))
            options |= {"consumer_group_member": member, "consumer_group_size": group_size}
            expected = [
                message
                for message in expected
                if member_of(message.write.stream_name, group_size) == member
            ]
        read = self.store.read_category(self.prefix + category, batch_size=batch_size, **options)
        self.agree(list(read), expected)

    @rule(stream=STREAMS, type_=st.sampled_from(["Deposit", "Withdraw", "Open", "Close", "None"]))
    def read_the_last_message(self, stream, type_):
        """The last message of a stream is read, and the last one of a type."""
        name = self.prefix + stream
        of_type = [
            message for message in self.of(name) if type(message.write.message).__name__ == type_
        ]
        for last, expected in (
            (self.store.last_message(name), self.of(name)),
            (self.store.last_message(name, type_), of_type),
        ):
            self.agree([] if last is None else [last], expected[-1:])

    @rule(starts=st.dictionaries(STREAMS, st.integers(0, 5)))
    def read_many_streams(self, starts):
        """Many streams are read at once, each from its own position."""
        named = {self.prefix + stream: position for stream, position in starts.items()}
        read = self.store.read_streams(named)
        for name, position in named.items():
            self.agree([m for m in read if m.stream_name == name], self.of(name)[position:])
        assert {m.stream_name for m in read} <= set(named)

    @invariant()
    def versions_are_the_last_positions(self):
        """Each stream's version is the position of its last message."""
        for name in {message.write.stream_name for message in self.messages} | {
            f"{self.prefix}one-9"
        }:
            version = len(self.of(name)) - 1
            assert self.store.stream_version(name) == (version if version >= 0 else NO_STREAM)


def behaves_as_its_model(store: MessageStore, examples: int) -> None:
    """Compare a store with its model, in so many random runs."""
    machine = type("Machine", (Model,), {"store": store})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, report_multiple_bugs=False
        ),
    )


def test_the_store_behaves_as_its_model(store):
    """Random writes and reads, valid and invalid, give the same as a list in memory."""
    behaves_as_its_model(store, 25)
