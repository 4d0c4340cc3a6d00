"""Reserving in sets, compared with a model in memory."""

import contextlib
import itertools
import json
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import connect

from bank.invariants import progress
from reservation import Component, Key, Write
from reservation.errors import PositionLostError, SerializationError
from tests.apps.bank import RESERVED, broken, drain
from tests.support.controls import LATER, TIME, deposit, open_

COMMANDS, COPIES = "box:command", "boxTransaction"
VOLATILE = {"A": ["time", "by"], "B": []}
KEYS = {"A": "k", "B": "key"}
_numbers = itertools.count(1)


@dataclass
class A:
    box_id: str
    k: str
    x: Any = None
    time: Any = None
    by: Any = None


@dataclass
class B:
    box_id: str
    key: str
    x: Any = None
    time: Any = None
    by: Any = None


box = Component("box", id="box_id")
box.handle(A, key=Key("k", ignoring=VOLATILE["A"]))(lambda command, entity, context: None)
box.handle(B, key="key")(lambda command, entity, context: None)

values = st.sampled_from([1, 2, "1", None, [1], {"time": 1}])
data = st.dictionaries(st.sampled_from(["x", "time", "by"]), values)
names = st.sampled_from(["correlationStreamName", "replyStreamName", "properties"])
others = st.sampled_from(["localProperties", "schemaVersion", "causationMessagePosition", "own"])
odd_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("aé😀\n\\", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=4,
)
metadata = st.none() | (odd_values | st.dictionaries(names | others, odd_values)).map(json.dumps)


@dataclass
class Command:
    """A command as it is stored."""

    type: str
    key: str
    data: dict[str, Any]
    metadata: str | None

    @property
    def version(self) -> Any:
        """The version of its shape, which its copy keeps."""
        held = json.loads(self.metadata or "null")
        version = held.get("schemaVersion") if isinstance(held, dict) else None
        return version if isinstance(version, str | int) and not isinstance(version, bool) else None

    @property
    def content(self) -> Any:
        """What a reissue has in common with it; what is left out of it has its default."""
        fields = {"x", "time", "by"}.difference(VOLATILE[self.type])
        return self.type, self.version, {name: self.data.get(name) for name in fields}

    def insert(self, connection, number):
        """Write it for the boxes of an example."""
        fields = {"boxId": f"{self.key}{number}", KEYS[self.type]: self.key, **self.data}
        connection.execute(
            "INSERT INTO message_store.messages (stream_name, position, type, data, metadata)"
            " SELECT %(stream)s, count(*), %(type)s, %(data)s, %(metadata)s"
            " FROM message_store.messages WHERE stream_name = %(stream)s",
            {
                "stream": f"{COMMANDS}-{self.key}{number}",
                "type": self.type,
                "data": json.dumps(fields),
                "metadata": self.metadata,
            },
        )


commands = st.lists(
    st.builds(
        Command,
        st.sampled_from(["A", "A", "B"]),
        st.sampled_from(["k", "l", "é-😀"]),
        data,
        metadata,
    ),
    min_size=1,
    max_size=25,
)


def last_position(connection):
    """Return the last global position that the sequence gave."""
    return connection.execute(
        "SELECT last_value FROM message_store.messages_global_position_seq"
    ).fetchone()[0]


@settings(max_examples=12)
@given(commands=commands, batch_size=st.integers(3, 25))
def test_reserving_agrees_with_a_model(connection, store, commands, batch_size):
    """However commands are divided into batches, each key gets one copy, of its first command."""
    number = next(_numbers)
    for command in commands:
        command.insert(connection, number)
    first, expected = {}, Counter()
    for command in commands:
        known = first.setdefault(command.key, command)
        same = known.content == command.content
        expected["reserved" if known is command else "duplicate" if same else "conflict"] += 1
    given_before = last_position(connection)
    counts = drain(connection, box, batch_size=batch_size).counts
    assert {name: counts[name] for name in expected} == expected
    copies = [copy for copy in store.read_category(COPIES) if copy.global_position > given_before]
    assert [copy.stream_name for copy in copies] == [f"{COPIES}-{k}{number}+{k}" for k in first]
    for copy, (key, command) in zip(copies, first.items(), strict=True):
        source = next(store.read_stream(f"{COMMANDS}-{key}{number}"))
        assert (copy.position, copy.type, copy.data) == (0, source.type, source.data)
        followed = json.loads(source.follow_metadata().encode())
        if command.version is not None:
            followed["schemaVersion"] = command.version
        assert json.loads(copy.metadata_json) == followed


def test_a_reissue_is_compared_with_the_copy_alone(connection, store):
    """A reissue is compared once with the copy, whatever follows it in the stream."""
    store.write(deposit("a"), "account:command-123")
    drain(connection)
    store.write([deposit("b"), deposit("c")], f"{RESERVED}-123+a")
    store.write([deposit("a"), deposit("a", amount="9")], "account:command-123")
    counts = drain(connection).counts
    assert (counts["duplicate"], counts["conflict"], counts["reserved"]) == (1, 1, 0)


def milliseconds(connection):
    """Return what the server's clock shows."""
    return connection.execute(
        "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    ).fetchone()[0]


def test_ids_of_copies_sort_by_the_time_of_their_making(connection, store):
    """Ids of copies are UUIDs of version 7, so that the index over ids grows at its end."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(200))], "account:command-123")
    before = milliseconds(connection)
    drain(connection, batch_size=100)
    after = milliseconds(connection)
    ids = [uuid.UUID(copy.id) for copy in store.read_category(RESERVED)]
    assert ids == sorted(set(ids))
    assert len(ids) == 200
    assert {(id_.version, id_.variant) for id_ in ids} == {(7, uuid.RFC_4122)}
    assert all(before <= id_.int >> 80 <= after for id_ in ids)


def test_two_consumers_that_take_over_from_each_other_reserve_each_key_once(database_url, store):
    """Whoever takes over goes on where the other was; each key is reserved and handled once."""
    keys = 60
    store.write(open_(), "account:command-123")
    store.write_batch(
        Write(deposit(f"d{n % keys}", time=LATER if n > keys else TIME), "account:command-123")
        for n in range(3 * keys)
    )

    def take_over():
        with connect(database_url, autocommit=True) as connection:
            while any(left for left, *_ in progress(connection).values()):
                with contextlib.suppress(PositionLostError, SerializationError):
                    drain(connection, batch_size=7)

    with ThreadPoolExecutor(2) as pool:
        for taking in [pool.submit(take_over) for _ in range(2)]:
            taking.result(timeout=60)
    copies = [copy.stream_name for copy in store.read_category(RESERVED)]
    assert copies == [f"{RESERVED}-123+d{n}" for n in range(keys)]
    assert store.stream_version("account-123") == keys
    with connect(database_url) as connection:
        assert broken(connection) == {}
