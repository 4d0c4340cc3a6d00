"""Reserving in sets, compared with a model in memory."""

import contextlib
import itertools
import json
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservation import Write
from reservation.errors import PositionLostError
from reservation.idempotence.reserve import ReserveOutcome, compare_initiations, reserve
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import TO_BE_RETRIED
from tests.bank import RESERVED, batch
from tests.controls import LATER, TIME, deposit

_numbers = itertools.count(1)

VOLATILE = {"A": ["time", "by"], "B": []}

values = st.sampled_from([1, 2, "1", None, [1], {"time": 1}])
data = (
    st.none()
    | st.sampled_from(["null", "3", "[1]", '"time"', '["time"]'])
    | st.dictionaries(st.sampled_from(["x", "time", "by"]), values).map(json.dumps)
)
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
    """A command as it is stored, and the key that it is to be reserved under."""

    type: str
    data: str | None
    metadata: str | None
    into: str
    key: str
    global_position: int = 0

    @property
    def content(self):
        """What a reissue has in common with it."""
        held = None if self.data is None else json.loads(self.data)
        if isinstance(held, dict):
            left_out = VOLATILE.get(self.type, [])
            held = {name: value for name, value in held.items() if name not in left_out}
        return self.type, self.version, self.data is None, held

    @property
    def version(self):
        """The version of its shape, which its copy keeps."""
        held = json.loads(self.metadata or "null")
        version = held.get("schemaVersion") if isinstance(held, dict) else None
        return version if isinstance(version, str | int) and not isinstance(version, bool) else None


commands = st.lists(
    st.builds(
        Command,
        st.sampled_from(["A", "A", "B", "C"]),
        data,
        metadata,
        st.sampled_from(["one", "two:x"]),
        st.sampled_from(["k", "k+1", "é-😀"]),
    ),
    min_size=1,
    max_size=25,
)


@dataclass
class Model:
    """The reservations: the first command of each key, in the order of the copies."""

    first: dict[str, Command] = field(default_factory=dict)

    def reserve(self, stream_name, command):
        known = self.first.setdefault(stream_name, command)
        if known is command:
            return ReserveOutcome.RESERVED
        same = known.content == command.content
        return ReserveOutcome.DUPLICATE if same else ReserveOutcome.CONFLICT


def last_position(connection):
    """Return the last global position that the sequence gave."""
    return connection.execute(
        "SELECT last_value FROM message_store.messages_global_position_seq"
    ).fetchone()[0]


@settings(max_examples=150)
@given(commands=commands, cuts=st.lists(st.integers(1, 25), max_size=2))
def test_reserving_agrees_with_a_model(connection, store, commands, cuts):
    """Whatever is reserved together, each key gets one copy, that of its first command."""
    number = next(_numbers)
    for command in commands:
        command.global_position = connection.execute(
            "INSERT INTO message_store.messages (stream_name, position, type, data, metadata)"
            " VALUES (%s || gen_random_uuid()::text, 7, %s, %s, %s) RETURNING global_position",
            [f"c{number}:command-", command.type, command.data, command.metadata],
        ).fetchone()[0]
    model = Model()
    given_before = last_position(connection)
    for start, end in itertools.pairwise([0, *sorted(cuts), len(commands)]):
        batch = [
            (command, f"{command.into}{number}-{command.key}") for command in commands[start:end]
        ]
        with connection.transaction():
            outcomes = reserve(
                connection, [(command.global_position, name) for command, name in batch], VOLATILE
            )
        assert outcomes == [model.reserve(name, command) for command, name in batch]
    assert last_position(connection) - given_before == len(model.first)
    sources = {m.global_position: m for m in store.read_category(f"c{number}:command")}
    copies = [
        copy
        for category in (f"one{number}", f"two:x{number}")
        for copy in store.read_category(category)
    ]
    copies.sort(key=lambda copy: copy.global_position)
    assert [copy.stream_name for copy in copies] == list(model.first)
    for copy, command in zip(copies, model.first.values(), strict=True):
        source = sources[command.global_position]
        assert (copy.position, copy.type, copy.data) == (0, source.type, source.data)
        expected = json.loads(source.follow_metadata().encode())
        if command.version is not None:
            expected["schemaVersion"] = command.version
        assert json.loads(copy.metadata_json) == expected


def initiated(connection, commands, stream_names, volatile):
    """Return the server's answer for commands: a row for each that is not reserved."""
    query = "SELECT * FROM reservation.reserve(%s, %s::text[], %s)"
    return connection.execute(query, [commands, stream_names, json.dumps(volatile)]).fetchall()


def test_a_reissue_is_compared_with_the_copy_alone(connection, store):
    """A reissue is compared once with the copy, whatever follows it in the stream."""
    store.write([deposit("a"), deposit("a"), deposit("b")], "account:command-1")
    reserve(connection, [(1, f"{RESERVED}-a")], {})
    store.write([deposit("c"), deposit("d")], f"{RESERVED}-a")
    for volatile in ({}, {"Other": ["x"]}):
        names = [f"{RESERVED}-a"] * 2
        outcomes = [(1, "duplicate"), (2, "conflict")]
        assert initiated(connection, [2, 3], names, volatile) == outcomes


@pytest.mark.parametrize("volatile", [{}, {"A": ["x"], "Deposit": [], "Z": ["depositId"]}])
def test_an_initiation_is_compared_with_the_streams_first_message(connection, store, volatile):
    """An initiation is compared once, without the volatile fields of its own type."""
    store.write([deposit("a"), deposit("a"), deposit("b")], "account:command-1")
    first = next(iter(store.read_category("account:command")))
    store.write([deposit("x"), deposit("y")], "account-1", metadata=first.follow_metadata())
    outcomes = compare_initiations(connection, [(2, "account-1"), (3, "account-1")], volatile)
    assert outcomes == [ReserveOutcome.DUPLICATE, ReserveOutcome.CONFLICT]


def test_an_initiation_of_what_nothing_began_is_a_conflict(connection, store):
    """An initiation is a conflict if no known message started the stream."""
    store.write(deposit("a"), "account:command-1")
    assert compare_initiations(connection, [(1, "account-1")], {}) == [ReserveOutcome.CONFLICT]


def milliseconds(connection):
    """Return what the server's clock shows."""
    return connection.execute(
        "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    ).fetchone()[0]


def test_ids_of_copies_sort_by_the_time_of_their_making(connection, store):
    """Ids of copies are UUIDs of version 7, so that the index over ids grows at its end."""
    store.write([deposit(f"d{n}") for n in range(200)], "account:command-1")
    for start in (1, 101):
        before = milliseconds(connection)
        keys = [(n, f"accountTransaction-{n}") for n in range(start, start + 100)]
        reserve(connection, keys, {})
        after = milliseconds(connection)
        copies = list(store.read_category(RESERVED))[-100:]
        ids = [uuid.UUID(copy.id) for copy in copies]
        assert ids == sorted(set(ids))
        assert len(ids) == 100
        assert {(id_.version, id_.variant) for id_ in ids} == {(7, uuid.RFC_4122)}
        assert all(before <= id_.int >> 80 <= after for id_ in ids)


def test_concurrent_processes_reserve_each_command_once(database_url, store):
    """Concurrent processes that reserve the same commands reserve each once."""
    store.write_batch([Write(deposit(f"d{n}"), f"account:command-{n}") for n in range(300)])
    outcomes = []
    together = threading.Barrier(3, timeout=30)

    def run():
        with connect(database_url, autocommit=True) as connection:
            for start in range(1, 301, 20):
                together.wait()
                with connection.transaction():
                    keys = [(n, f"accountTransaction-{n % 150}") for n in range(start, start + 20)]
                    outcomes.extend(reserve(connection, keys, {"Deposit": ["depositId"]}))

    in_threads(run, run, run)
    assert outcomes.count(ReserveOutcome.RESERVED) == 150
    assert outcomes.count(ReserveOutcome.DUPLICATE) == 750
    copies = [copy.stream_name for copy in store.read_category(RESERVED)]
    assert sorted(copies) == sorted({f"accountTransaction-{n}" for n in range(150)})


def test_two_consumers_that_take_over_from_each_other_reserve_each_key_once(database_url, store):
    """Two consumers that keep taking over reserve each key once, with care or without."""
    keys = 120
    writes = [
        Write(deposit(f"d{n % keys}", time=LATER if n > keys else TIME), f"account:command-{n}")
        for n in range(3 * keys)
    ]
    store.write_batch(writes)
    counts = Counter()

    def run(careful):
        with connect(database_url, autocommit=True) as connection:
            read = 1
            while read:
                claimed = batch(connection, "account:command")
                with contextlib.suppress(PositionLostError, *TO_BE_RETRIED):
                    for _ in range(3):
                        result = claimed.run(7, careful=careful)
                        if result.part is None:  # the other has taken over before it began
                            break
                        read = result.read
                        counts.update(result.counts)

    in_threads(lambda: run(False), lambda: run(True))
    assert counts == Counter(reserved=keys, duplicate=2 * keys)
    copies = [copy.stream_name for copy in store.read_category(RESERVED)]
    assert copies == [f"accountTransaction-123+d{n}" for n in range(keys)]


def in_threads(*works):
    """Run functions side by side, and raise what one of them raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result(timeout=60)
