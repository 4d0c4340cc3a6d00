"""Keys that the server extracts name the same stream as the declaration."""

import dataclasses
import itertools
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NewType

import msgspec
import psycopg
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from psycopg import conninfo, sql
from psycopg.types.json import Jsonb

import consumers
from consumers.testing import run_in_memory
from reservation import Component, Key
from reservation.admin import install
from reservation.errors import DeclarationError
from tests.consumers.builders import stored_letters, write_raw

_numbers = itertools.count(1)

Number = NewType("Number", str)

# As a text of JSON, since it matters how a number is written.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
odd_texts = st.text(
    st.sampled_from("+-:$^\\.*()[]{}|'\"aZ09\n\r\t\x01\x1f\x7f\x80\x85\x9f\xa0é\u2028\ufeff😀"),
    max_size=6,
)
numbers = (
    st.integers().map(str)
    | st.sampled_from(["1.0", "1e2", "-0", "0.0", "1E30", "1e400", "-1e-3", "12e-1", "100e-2"])
    | st.sampled_from([10**17, 10**18 - 1, 10**18, -(10**18) + 1, -(10**18)]).map(str)
    | st.from_regex(r"\A-?[1-9][0-9]{0,20}(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?\Z")
)
scalars = (
    (texts | odd_texts).map(json.dumps)
    | st.builds(json.dumps, st.text("ä+😀", min_size=1, max_size=2).map(lambda t: t * 1500))
    | numbers
    | st.sampled_from(["null", "true", "false", "[]", "{}", '[""]', '["a"]', '{"a": "b"}', '""'])
    | st.sampled_from(["a", "b"]).map(json.dumps)
    | st.uuids().map(lambda id_: json.dumps(str(id_)))
    | st.builds(
        lambda id_, form: json.dumps(form(id_)),
        st.uuids(),
        st.sampled_from([lambda u: str(u).upper(), lambda u: u.hex, lambda u: u.urn]),
    )
    | st.dates().map(lambda date: json.dumps(date.isoformat()))
    | st.from_regex(r"\A[0-2]0[0-9]{2}-[01][0-9]-[0-3][0-9]( |T00:00:00Z)?\Z").map(json.dumps)
    | st.decimals(allow_nan=False, allow_infinity=False).map(str)
    | st.sampled_from(["one", "two words", "a.b", "A+B", ""]).map(json.dumps)
)
plain_texts = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="+"), min_size=1, max_size=9
)


class Word(StrEnum):
    ONE = "one"
    TWO = "two words"


class Odd(Enum):
    DOT = "a.b"
    PLUS = "A+B"


class Count(Enum):
    ONE = 1
    MANY = 10


# Those that the server takes.
LIKELY: list[Any] = [str, int, uuid.UUID, date, Decimal, Word]
FITTING = {
    uuid.UUID: st.uuids().map(lambda id_: json.dumps(str(id_))),
    date: st.dates().map(lambda date: json.dumps(date.isoformat())),
    Decimal: st.decimals(-(10**9), 10**9, allow_nan=False, places=2).map(str),
    Word: st.sampled_from(Word).map(json.dumps),
}
HINTS: list[Any] = [
    *LIKELY,
    Odd,
    Count,
    str | None,
    int | None,
    int | str,
    bool,
    Number,
    Literal["a", "b"],
    Annotated[str, msgspec.Meta(max_length=3, extra={"unhashable": []})],
    Any,
    list[str],
]
# Fields, and what they are called in stored data.
NAMES = {
    "account_id": "accountId",
    "key": "key",
    "a__b": "aB",
    "_n": "N",
    "x_ID": "xId",
    "größe_ß": "größeSs",
    "type": "type",
    "into": "into",
    "n1_2": "n12",
    "idT": "idT",
}


@dataclass(frozen=True)
class Rule:
    """What is reserved, and by which fields.

    Attributes:
        command: the class.
        key: the fields of the key.
        per: the field whose value is first in the stream's id; None for the key alone.
        into: how the reservation category begins.
    """

    command: Any
    key: Sequence[str]
    per: str | None
    into: str

    def by_fields(self, name: str) -> Component[Any]:
        """Return a component whose keys the server may extract."""
        return self._component(name, self.command, tuple(self.key))

    def by_function(self, name: str) -> Component[Any]:
        """Return one that extracts them itself, and looks at no other field."""
        named = {*self.key, self._id}
        fields = [
            (field.name, field.type, dataclasses.field(default=field.default))
            for field in dataclasses.fields(self.command)
            if field.name in named
        ]
        alone = dataclasses.make_dataclass("Command", fields, kw_only=True)
        return self._component(name, alone, lambda command: [getattr(command, n) for n in self.key])

    @property
    def _id(self) -> str:
        return self.per or self.key[0]

    def _component(self, name: str, command: Any, fields: Any) -> Component[Any]:
        component = Component(name, id=self._id, attempts=1)
        key = Key(fields, per=self.per, into=f"{self.into}{name}")
        component.handle(command, key=key)(lambda command, entity, context: None)
        return component


@st.composite
def rules(draw):
    """Draw what is reserved, of a new class."""
    names = draw(st.lists(st.sampled_from(list(NAMES)), min_size=1, max_size=7, unique=True))
    likely = draw(st.booleans())  # all parts of a kind that the server takes
    fields: list[Any] = []
    for name in names:
        hint = draw(st.sampled_from(LIKELY if likely else HINTS))
        default = draw(st.sampled_from([dataclasses.MISSING, "d", "", 7, None]))
        if default is dataclasses.MISSING:
            fields.append((name, hint))
        else:
            fields.append((name, hint, dataclasses.field(default=default)))
    command = dataclasses.make_dataclass(
        "Command", fields, kw_only=True, slots=draw(st.booleans()), frozen=draw(st.booleans())
    )
    return Rule(
        command,
        key=draw(st.lists(st.sampled_from(names), min_size=1, max_size=6)),
        per=draw(st.none() | st.sampled_from(names)),
        into=draw(st.sampled_from(["transaction", "a+b:c", "ü$1", "\\1.*", "x y'\""])),
    )


@st.composite
def payloads(draw, command):
    """Draw what a sender may have written as such a command, as a text of JSON; or nothing."""
    if not draw(st.integers(0, 9)):
        return draw(st.none() | scalars)
    fitting = draw(st.booleans())
    hints = {field.name: field.type for field in dataclasses.fields(command)}
    values = {}
    for name, hint in hints.items():
        if fitting and hint is str:
            values[name] = json.dumps(draw(plain_texts))
        elif fitting and hint is int:
            values[name] = str(draw(st.integers(-(10**18) + 1, 10**18 - 1)))
        elif fitting and hint in LIKELY:
            values[name] = draw(FITTING[hint])
        elif draw(st.integers(0, 9)):
            values[name] = draw(scalars)
    written = [f"{json.dumps(NAMES[name])}: {value}" for name, value in values.items()]
    return "{" + ", ".join(written) + "}"


def reserved(connection, address, component, written):
    """Send payloads as any client can; return where each is copied to, and why not."""
    sent = f"{component.name}:command"
    for n, data in enumerate(written):
        connection.execute(
            "INSERT INTO message_store.messages (stream_name, position, type, data)"
            " VALUES (%s, 0, 'Command', %s)",
            [f"{sent}-{n}", data],
        )
    consumers.drain(component, address)
    copies = connection.execute(
        "SELECT metadata->>'causationMessageStreamName', substr(stream_name, strpos(stream_name,"
        " '-')) FROM message_store.messages WHERE type = 'Command'"
        " AND starts_with(metadata->>'causationMessageStreamName', %s)",
        [sent],
    )
    names, reasons = (
        dict(copies),
        {one.stream_name: one.reason for one in stored_letters(connection)},
    )
    return [(names.get(f"{sent}-{n}"), reasons.get(f"{sent}-{n}")) for n in range(len(written))]


def check_names(connection, address, rule, written):
    """Compare the names that the server makes with those of a component that makes them itself.

    A message that is a duplicate, or waits behind another of its entity, is not reserved by one of
    them if it treats the other message otherwise.
    """
    name = f"odd{next(_numbers)}"
    try:
        by_fields, by_function = rule.by_fields(name), rule.by_function(f"{name}f")
    except DeclarationError:
        reject()
    found = reserved(connection, address, by_fields, written)
    expected = reserved(connection, address, by_function, written)
    for (stream, reason), (of_function, other) in zip(found, expected, strict=True):
        if stream is None:  # what the reader decodes has to be right beside the key, too
            assert of_function is None or reason in ("undecodable", "parked", None)
        elif of_function is None:
            assert other in ("parked", None)
        else:
            assert stream == of_function


def compare_names(connection, database_url, examples):
    """Compare the streams of keys that the server extracts with those that the reader makes."""

    @settings(max_examples=examples)
    @given(data=st.data(), rule=rules())
    def check(data, rule):
        written = data.draw(st.lists(payloads(rule.command), min_size=4, max_size=20))
        check_names(connection, database_url, rule, written)

    check()


def test_the_server_names_the_stream_that_the_declaration_names(connection, database_url):
    """With few examples; `tests/soak/test_drawn_consumers.py` takes more."""
    compare_names(connection, database_url, 6)


@dataclass(frozen=True)
class Command:
    key: str
    n: int = 0
    account_id: str = "a"


@pytest.fixture
def encoded_url(request, admin, server_url):
    """Give the address of a store in another encoding."""
    name = f"encoded_{os.getpid()}_{request.param.lower()}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'")
    admin.execute(create.format(sql.Identifier(name), sql.Literal(request.param)))
    try:
        yield conninfo.make_conninfo(server_url, dbname=name)
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize(
    ("encoded_url", "characters"),
    [
        ("LATIN1", "aéÿ\x7f\x80\x85\x9f\xa0ÀÅ"),
        ("EUC_JP", "aあ漢ｱ\x7f"),
        # Letters that have the number, or a byte, of a control character elsewhere.
        ("WIN1252", "aé€\x7f\xa0ÀÅ"),
        ("SQL_ASCII", "aé€😀\x7f\x80\x85\x9f\xa0\u2028ÀÅ"),
    ],
    indirect=["encoded_url"],
)
def test_the_names_do_not_depend_on_the_encoding(encoded_url, characters):
    """Names are the same in every database encoding, on which patterns depend."""
    keys = [text.format(character) for character in characters for text in ("{}", "{}+", "k{}")]
    written = [json.dumps({"key": key, "n": 7}, ensure_ascii=False) for key in keys]
    settings = conninfo.make_conninfo(encoded_url, client_encoding="UTF8")
    with psycopg.connect(settings, autocommit=True) as connection:
        install(connection)
        check_names(
            connection, encoded_url, Rule(Command, ("n", "key"), "account_id", "t"), written
        )
        if characters[1] == "é":
            size = dataclasses.make_dataclass("Command", [("größe", str)])
            rule = Rule(size, ("größe",), None, "zähler")
            check_names(connection, encoded_url, rule, ['{"größe": "1"}', '{"groesse": "1"}'])


class Upper:
    """A descriptor that shows a text in capitals."""

    def __set_name__(self, owner, name):
        self._name = f"_{name}"

    def __get__(self, instance, owner=None):
        return "D" if instance is None else vars(instance)[self._name].upper()

    def __set__(self, instance, value):
        vars(instance)[self._name] = value


@dataclass
class Shown:
    key: str = Upper()  # type: ignore[assignment]


@dataclass
class Watched:
    key: str

    def __getattribute__(self, name):
        value = object.__getattribute__(self, name)
        return value.upper() if name == "key" else value


@dataclass
class Made:
    key: str

    def __post_init__(self):
        self.key = self.key.upper()


def test_a_class_that_makes_something_of_its_key_has_the_last_word(connection, store, database_url):
    """The class decides on its key, which the data may not show."""
    component = Component("some", id="key")
    for class_ in (Shown, Watched, Made):
        name = class_.__name__
        component.handle(class_, key=Key("key", per=None, shared=True))(lambda *_: None)
        write_raw(connection, f"some:command-{name}", name, Jsonb({"key": name.lower()}))
    consumers.drain(component, database_url)
    copies = [copy.stream_name for copy in store.read_category("someTransaction")]
    assert copies == [f"someTransaction-{name}" for name in ("SHOWN", "WATCHED", "MADE")]


def test_the_server_takes_parts_of_every_kind_as_they_are_written(connection, database_url):
    """The server extracts keys of every kind, and leaves other forms to the reader."""
    fields = [("a", uuid.UUID), ("b", date), ("c", Decimal), ("d", Word), ("wrong", int)]
    rule = Rule(dataclasses.make_dataclass("Command", fields), ("a", "b", "c", "d"), None, "t")
    id_ = str(uuid.UUID(int=5))
    good = {"a": id_, "b": "2026-02-28", "c": Decimal("1.5"), "d": "two words", "wrong": "x"}
    others = [{"a": id_.replace("0", "A")}, {"b": "2026-02-29"}, {"c": Decimal("1.50")}]
    encode = msgspec.json.Encoder(decimal_format="number").encode
    written = [encode(good | other).decode() for other in ({}, *others)]
    taken, *left = reserved(connection, database_url, rule.by_fields("some"), written)
    assert taken == (f"-{id_}+2026-02-28+1.5+two words", None)
    assert left == [(None, "undecodable")] * 3  # as the reader looks at all of it


def test_equal_values_are_one_key():
    """Equal numbers are one key, however they are written."""

    def names(hint, *values):
        command = dataclasses.make_dataclass("Command", [("key", hint)])
        component = Rule(command, ("key",), None, "t").by_fields("some")
        ran = run_in_memory(component, [command(value) for value in values])
        return list(ran.reservations), [letter.reason for letter in ran.dead_letters]

    assert names(Decimal, *map(Decimal, ("1.50", "1.5", "15E-1"))) == (["tsome-1.5"], [])
    assert names(Decimal, *map(Decimal, ("-0.0", "0", "0E+3"))) == (["tsome-0"], [])
    assert names(Decimal, Decimal("1E+2")) == (["tsome-100"], [])
    assert names(Decimal, Decimal("1E+3000")) == ([], ["key"])
