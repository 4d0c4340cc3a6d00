"""A command category that holds everything at once, and what its consumer does with it."""

import random
import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

import pytest
from psycopg.types.json import Jsonb

from reservation import Component, Key
from tests.apps.bank import drain
from tests.consumers.builders import stored_letters, write_raw

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
    component = Component("mixed", id="id", attempts=1)
    component.ignore("Audited")
    by_field = Key("key", into=RESERVED, shared=True)
    by_function = Key(lambda command: command.key, into=RESERVED)
    keys = {ByField: by_field, ByKind: by_field, ByFunction: by_function, Note: None}
    for command, key in keys.items():
        component.handle(command, key=key, once=None)(
            lambda handled, entity, context: Done(handled.id, type(handled).__name__)
        )
    component.initiate(Start)(lambda command, context: Done(command.id, "Start"))
    return component


def send(connection, *commands):
    """Write commands as any client can: each a type and its data, or none."""
    for type_, data in commands:
        write_raw(connection, f"{COMMANDS}-1", type_, None if data is None else Jsonb(data))


def key_of(copy):
    return copy.stream_name.rpartition("+")[2]


def keys(store):
    """Return the keys of all reserved commands, in their order."""
    return [key_of(copy) for copy in store.read_category(RESERVED)]


def test_copies_are_in_the_order_of_their_commands_whatever_kind_of_key(connection, store, mixed):
    """Keys extracted by the server and by Python are reserved together, in order."""
    chance = random.Random(7)
    sent = []
    for n in range(120):
        type_ = chance.choice(["ByField", "ByFunction", "ByKind", "Start", "Note", "Audited"])
        sent.append((type_, {"id": str(n % 5 + 100 * (type_ == "Start")), "key": f"k{n}"}))
    send(connection, *sent)
    counts = drain(connection, mixed).counts
    expected = [data["key"] for type_, data in sent if type_.startswith("By")]
    assert keys(store) == expected
    types = Counter(type_ for type_, _ in sent)
    assert (counts["reserved"], counts["ignored"]) == (len(expected), types["Audited"])
    # Streams of their own for those that start one; only the first of each does.
    starts = len({data["id"] for type_, data in sent if type_ == "Start"})
    assert counts["handled"] == len(expected) + types["Note"] + starts


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
    assert drain(connection, mixed, batch_size=3).counts["reserved"] == 4
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
    counts = drain(connection, mixed).counts
    assert counts == {"reserved": 1, "handled": 1, "duplicate": 5, "conflict": 6}
    assert keys(store) == ["a", "b", "c", "7", "d"]


BAD = [
    ("Renamed", {"id": "1"}, "unknown_type", "Nothing handles Renamed"),
    ("Done", {"id": "1", "what": ""}, "unknown_type", "Nothing handles Done"),
    ("ByField", None, "undecodable", "it has no data"),
    ("ByField", {"id": "1"}, "undecodable", "missing required field `key`"),
    ("ByField", {"id": "1", "key": None}, "undecodable", r"\$\.key"),
    ("ByField", {"id": "1", "key": ""}, "key", "field key is empty"),
    ("ByField", {"id": "1+2", "key": "a"}, "key", r"holds a '\+'"),
    ("ByField", {"id": "1", "key": "a\n"}, "key", "control character"),
    ("ByField", {"id": "1", "key": "x" * 2700}, "key", "bytes long; the store takes"),
    ("ByField", {"id": "1", "key": "é" * 1300}, "key", "bytes long; the store takes"),
    ("ByFunction", {"id": "1", "key": "x" * 2700}, "key", "bytes long"),
    ("ByKind", {"id": "1", "key": 1.5}, "undecodable", r"\$\.key"),
    ("Start", {"id": ""}, "key", "field id is empty"),
    ("Note", ["id"], "undecodable", "Expected `object`"),
]


def test_a_bad_message_is_a_dead_letter_and_the_others_of_its_batch_are_handled(
    connection, store, mixed
):
    """The letter names the message and the problem; each of the others is handled once."""
    for n, (type_, data, *_) in enumerate(BAD):
        good = ("ByField", "a", "1"), ("Start", "", f"start{n}"), ("ByFunction", "b", "1")
        send(connection, *((name, {"id": to, "key": f"{key}{n}"}) for name, key, to in good))
        if isinstance(data, dict) and data["id"] == "1":
            data = data | {"id": f"bad{n}"}  # so that no other message waits behind it
        write_raw(connection, f"{COMMANDS}-bad{n}", type_, data)
    counts = drain(connection, mixed).counts
    assert counts == {"reserved": 2 * len(BAD), "handled": 3 * len(BAD), "dead": len(BAD)}
    dead = stored_letters(connection)
    for n, (letter, (type_, _, reason, problem)) in enumerate(zip(dead, BAD, strict=True)):
        assert letter.reason == reason, problem
        assert f"{type_} at {COMMANDS}-bad{n}, global position {4 * n + 4}" in letter.error
        assert re.search(problem, letter.error)
    assert keys(store) == [f"{key}{n}" for n in range(len(BAD)) for key in "ab"]


def test_the_longest_key_that_the_store_takes_is_reserved(connection, store, mixed):
    """The longest keys that fit are reserved, whether counted in characters or in bytes."""
    room = 2600 - len(f"{RESERVED}-1+")
    longest = ["x" * room, "é" * (room // 2)]
    send(connection, *[("ByField", {"id": "1", "key": key}) for key in longest])
    assert drain(connection, mixed).counts == {"reserved": 2, "handled": 2}
    assert keys(store) == longest


def test_a_command_that_is_ignored_is_not_reserved(connection, store, mixed):
    """A command declared with `ignore` is not reserved, whoever extracts the keys."""
    mixed.ignore("ByField")
    send(connection, ("ByField", {"id": "1", "key": "a"}), ("ByKind", {"id": "1", "key": "b"}))
    assert drain(connection, mixed).counts == {"ignored": 1, "reserved": 1, "handled": 1}
    assert keys(store) == ["b"]


def test_data_beside_the_key_is_checked_when_the_copy_is_handled(connection, store, mixed):
    """A key that the server extracts is reserved; the handler checks the rest of the data."""
    sent = [{"id": "1", "key": key, "amount": "secret"} for key in ("a", "b")]
    send(connection, ("ByField", {"id": "1", "key": "0"}), *[("ByField", data) for data in sent])
    counts = drain(connection, mixed).counts
    assert (counts["reserved"], counts["handled"]) == (3, 1)
    first = stored_letters(connection)[0]
    assert first.stream_name == f"{RESERVED}-1+a"
    assert f"ByField at {RESERVED}-1+a, global position " in first.error
    assert "$.amount" in first.error
    assert "secret" not in first.error
