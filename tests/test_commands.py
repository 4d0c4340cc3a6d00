"""A command category that holds everything at once, and what its consumer does with it."""

import json
import random
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

import pytest

from consumers.loop.consumer import Consumer
from consumers.runtime.stopping import Stop
from reservation import Component
from reservation.errors import DecodeError, IdempotenceKeyError, MessageError, UnknownTypeError
from tests.bank import batch, batches, session

COMMANDS = "mixed:command"
RESERVED = "mixedTransaction"


@dataclass(frozen=True)
class ByField:
    id: str
    key: str
    amount: Decimal = Decimal(0)


@dataclass(frozen=True)
class ByFunction:
    id: str
    key: str


@dataclass(frozen=True)
class ByKind:
    id: str
    key: str | int  # which the server leaves to the reader


@dataclass(frozen=True)
class Start:
    id: str
    customer: str = ""


@dataclass(frozen=True)
class Note:
    id: str


@dataclass(frozen=True)
class Done:
    id: str
    what: str


@pytest.fixture
def mixed():
    """Give a component with commands of every kind."""
    component = Component("mixed", id="id")
    component.reserve(ByField, ByKind, into=RESERVED, key="key", entity="id")
    component.reserve(ByFunction, into=RESERVED, key=lambda command: command.key, entity="id")
    component.ignore("Audited")
    for command in (ByField, ByKind, ByFunction, Note):
        component.handle(command)(
            lambda handled, entity, context: Done(handled.id, type(handled).__name__)
        )
    component.initiate(Start)(lambda command, context: Done(command.id, "Start"))
    return component


def send(connection, *commands):
    """Write commands as any client can: each a type and its data, or none."""
    for type_, data in commands:
        connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s)",
            [f"{COMMANDS}-1", type_, None if data is None else json.dumps(data)],
        )


def key_of(copy):
    return copy.stream_name.rpartition("+")[2]


def position(connection, category=COMMANDS):
    """Return the position of the consumer of a category."""
    return connection.execute(
        "SELECT position FROM reservation.positions WHERE category = %s", [category]
    ).fetchone()[0]


def test_copies_are_in_the_order_of_their_commands_whatever_kind_of_key(connection, store, mixed):
    """Keys extracted by the server and by Python are reserved together, in order."""
    chance = random.Random(7)
    sent = []
    for n in range(120):
        type_ = chance.choice(["ByField", "ByFunction", "ByKind", "Start", "Note", "Audited"])
        sent.append((type_, {"id": str(n % 5 + 100 * (type_ == "Start")), "key": f"k{n}"}))
    send(connection, *sent)
    results = batches(connection, mixed)
    keys = [data["key"] for type_, data in sent if type_.startswith("By")]
    assert [key_of(copy) for copy in store.read_category(RESERVED)] == keys
    types = Counter(type_ for type_, _ in sent)
    counts = sum((result.counts for result in results), Counter())
    assert (counts["reserved"], counts["ignored"]) == (len(keys), types["Audited"])
    # Streams of their own for those that start one; only the first of each does.
    starts = len({data["id"] for type_, data in sent if type_ == "Start"})
    assert counts["handled"] == len(keys) + types["Note"] + starts


def test_reissues_are_recognized_whatever_kind_of_key_and_whichever_batch(connection, store, mixed):
    """Two types that share a category share its keys, whoever extracts them."""
    sent = [
        ("ByField", {"id": "1", "key": "a", "amount": 1}),
        ("ByFunction", {"id": "1", "key": "b"}),
        ("ByKind", {"id": "1", "key": "c"}),
        ("ByKind", {"id": "1", "key": 7}),
        ("Start", {"id": "9"}),
    ]
    send(connection, *sent)
    commands = batch(connection, COMMANDS, mixed)
    assert commands.run(3).counts == Counter(reserved=3)
    send(connection, *reversed(sent))
    send(
        connection,
        ("ByField", {"id": "1", "key": "b"}),
        ("ByFunction", {"id": "1", "key": "a"}),
        ("ByKind", {"id": "1", "key": "7"}),
        ("ByField", {"id": "1", "key": "a", "amount": 2}),
        ("ByField", {"id": "1", "key": "d"}),
        ("ByFunction", {"id": "1", "key": "d"}),
        ("Start", {"id": "9", "customer": "another"}),
    )
    result = commands.run(100)
    assert result.counts == Counter(reserved=2, handled=1, duplicate=5, conflict=6)
    assert [key_of(copy) for copy in store.read_category(RESERVED)] == ["a", "b", "c", "7", "d"]


BAD = [
    ("Renamed", {"id": "1"}, UnknownTypeError, "Nothing handles Renamed"),
    ("Done", {"id": "1", "what": ""}, UnknownTypeError, "Nothing handles Done"),
    ("ByField", None, DecodeError, "it has no data"),
    ("ByField", {"id": "1"}, DecodeError, "missing required field `key`"),
    ("ByField", {"id": "1", "key": None}, DecodeError, r"\$\.key"),
    ("ByField", {"id": "1", "key": ""}, IdempotenceKeyError, "field key is empty"),
    ("ByField", {"id": "1+2", "key": "a"}, IdempotenceKeyError, r"holds a '\+'"),
    ("ByField", {"id": "1", "key": "a\n"}, IdempotenceKeyError, "control character"),
    ("ByField", {"id": "1", "key": "x" * 2700}, IdempotenceKeyError, "bytes long; the store takes"),
    ("ByField", {"id": "1", "key": "é" * 1300}, IdempotenceKeyError, "bytes long; the store takes"),
    ("ByFunction", {"id": "1", "key": "x" * 2700}, IdempotenceKeyError, "bytes long"),
    ("ByKind", {"id": "1", "key": 1.5}, DecodeError, r"\$\.key"),
    ("Start", {"id": ""}, IdempotenceKeyError, "field id is empty"),
    ("Note", ["id"], DecodeError, "Expected `object`"),
]


@pytest.mark.parametrize(("type_", "data", "error", "problem"), BAD)
def test_one_bad_message_leaves_nothing_of_its_batch_and_is_gone_up_to(
    database_url, connection, store, mixed, type_, data, error, problem
):
    """After a failed batch, the messages before the bad one are handled and it is named."""
    good = [
        ("ByField", {"id": "1", "key": "a"}),
        ("Start", {"id": "2"}),
        ("ByFunction", {"id": "1", "key": "b"}),
    ]
    send(connection, *good, (type_, data), ("ByField", {"id": "1", "key": "z"}))
    named = f"{type_} at {COMMANDS}-1, global position 4"
    commands = batch(connection, COMMANDS, mixed)
    for careful in (False, True):
        with pytest.raises(error, match=problem) as caught:
            commands.run(100, careful=careful)
        assert named in str(caught.value)
        assert position(connection) == 0
        assert list(store.read_category(RESERVED)) == list(store.read_category("mixed")) == []
    with session(database_url) as opened, pytest.raises(error, match=problem) as caught:
        Consumer(opened, mixed, COMMANDS, stop_on_error=True).run(Stop())
    assert named in str(caught.value)
    copies = list(store.read_category(RESERVED))
    assert [key_of(copy) for copy in copies] == ["a", "b"]
    assert position(connection) == copies[-1].metadata.causation_message_global_position == 3


def test_the_longest_key_that_the_store_takes_is_reserved(connection, store, mixed):
    """The longest keys that fit are reserved, whether counted in characters or in bytes."""
    room = 2600 - len(f"{RESERVED}-1+")
    keys = ["x" * room, "é" * (room // 2)]
    send(connection, *[("ByField", {"id": "1", "key": key}) for key in keys])
    assert batch(connection, COMMANDS, mixed).run(10).counts == Counter(reserved=2)
    assert [key_of(copy) for copy in store.read_category(RESERVED)] == keys


def test_a_command_that_is_ignored_is_not_reserved(connection, store, mixed):
    """A command declared with `ignore` is not reserved, whoever extracts the keys."""
    mixed.ignore("ByField")
    send(connection, ("ByField", {"id": "1", "key": "a"}), ("ByKind", {"id": "1", "key": "b"}))
    result = batch(connection, COMMANDS, mixed).run(10)
    assert result.counts == Counter(ignored=1, reserved=1)
    assert [key_of(copy) for copy in store.read_category(RESERVED)] == ["b"]


def test_data_beside_the_key_is_checked_when_the_copy_is_handled(
    database_url, connection, store, mixed
):
    """A key that the server extracts is reserved; the handler checks the rest of the data."""
    sent = [{"id": "1", "key": key, "amount": "secret"} for key in ("a", "b")]
    send(connection, ("ByField", {"id": "1", "key": "0"}), *[("ByField", data) for data in sent])
    assert batch(connection, COMMANDS, mixed).run(10).counts == Counter(reserved=3)
    with (
        session(database_url) as opened,
        pytest.raises(DecodeError, match=r"\$\.amount") as caught,
    ):
        Consumer(opened, mixed, RESERVED, stop_on_error=True).run(Stop())
    bad = list(store.read_category(RESERVED))[1]
    assert f"ByField at {RESERVED}-1+a, global position {bad.global_position}" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert position(connection, RESERVED) == bad.global_position - 1
    assert [message.type for message in store.read_category("mixed")] == ["Done"]
    assert isinstance(caught.value, MessageError)
