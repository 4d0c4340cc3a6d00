"""Keys that the server extracts name the same stream as the declaration."""

import dataclasses
import itertools
import json
import os
import uuid
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NewType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import conninfo, sql

from reservation import MessageStore, install
from reservation.errors import DecodeError, IdempotenceKeyError
from reservation.idempotence.reserve import Reservation
from reservation.idempotence.server_keys import read_commands, server_rules
from reservation.postgres.connection import connect
from reservation.serialization.codec import camel_case
from reservation.store.partition import Partition
from reservation.store.statements import run

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
NAMES = ["account_id", "key", "a__b", "_n", "x_ID", "größe_ß", "type", "into", "n1_2", "idT"]


@st.composite
def declarations(draw):
    """Draw the reservation of a new command."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=7, unique=True))
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
    return Reservation(
        command,
        into=draw(st.sampled_from(["transaction", "a+b:c", "ü$1", "\\1.*", "x y'\""])),
        key=tuple(draw(st.lists(st.sampled_from(names), min_size=1, max_size=6))),
        entity=draw(st.none() | st.sampled_from(names)),
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
    written = [f"{json.dumps(camel_case(name))}: {value}" for name, value in values.items()]
    return "{" + ", ".join(written) + "}"


def taken(connection, declared, written, type_="Command"):
    """Write payloads as any client can; return the messages and the streams that were named."""
    category = f"odd{next(_numbers)}:command"
    connection.cursor().executemany(
        "INSERT INTO message_store.messages (stream_name, position, type, data)"
        " VALUES (%s, 0, %s, %s)",
        [(f"{category}-{n}", type_, data) for n, data in enumerate(written)],
    )
    rules = server_rules(declared)
    return run(connection, read_commands(category, Partition(), len(written) + 1, rules))


def named(declared, whole, class_):
    """Return the stream that a message's key names, None if it has no key."""
    try:
        command = whole.decode(class_)
        return declared.stream_name(command)
    except IdempotenceKeyError:
        return None


def key_alone(declared):
    """Return a class that has the fields of the key and no other."""
    fields = {*declared.key, *([declared.entity] if declared.entity else [])}
    return dataclasses.make_dataclass(
        "KeyAlone",
        [
            (field.name, field.type, dataclasses.field(default=field.default))
            for field in dataclasses.fields(declared.command)
            if field.name in fields
        ],
        kw_only=True,
    )


def is_plain(declared, whole):
    """Return whether every part of the key is present and of the plainest kind."""
    data = json.loads(whole.data, parse_float=Decimal) if whole.data else None
    if not isinstance(data, dict):
        return False
    hints = {field.name: field.type for field in dataclasses.fields(declared.command)}
    for name in [*([declared.entity] if declared.entity else []), *declared.key]:
        value = data.get(camel_case(name))
        is_text = hints[name] is str and isinstance(value, str) and value.isprintable()
        is_number = hints[name] is int and type(value) is int and abs(value) < 10**18
        if not (is_number or (is_text and value and "+" not in value)):
            return False
    return True


def check_names(connection, declared, written):
    """Compare the server's names with the declared ones; return how many it left out.

    Only those are counted that it could have named.
    """
    messages, streams = taken(connection, {"Command": declared}, written)
    wholes = {
        message.global_position: message
        for message in MessageStore(connection).read_category(messages[0].stream_name.split("-")[0])
    }
    assert len(messages) == len(written) == len(wholes)
    may_take = server_rules({"Command": declared}) != "[]"
    left = 0
    for message, stream in zip(messages, streams, strict=True):
        whole = wholes[message.global_position]
        if stream is None:
            assert message == whole
            left += may_take and is_plain(declared, whole)
            continue
        assert (message.data, message.metadata_json) == (None, None)
        try:
            expected = named(declared, whole, declared.command)
        except DecodeError:  # which its handling will report; the key is there all the same
            expected = named(declared, whole, key_alone(declared))
        # What is too long for the store is refused when it is read.
        assert stream == expected or (expected is None and len(stream.encode()) > 2600)
    return left


@settings(max_examples=300)
@given(data=st.data(), declared=declarations())
def test_the_server_names_the_stream_that_the_declaration_names_or_none(connection, data, declared):
    """The server names the declared stream or none, and then Python decides."""
    written = data.draw(st.lists(payloads(declared.command), min_size=1, max_size=8))
    assert check_names(connection, declared, written) == 0


@dataclass(frozen=True)
class Command:
    key: str
    n: int = 0
    account_id: str = "a"


@pytest.fixture
def encoded(request, admin, server_url):
    """Give a connection to a store in another encoding, which returns stored text as UTF-8."""
    name = f"encoded_{os.getpid()}_{request.param.lower()}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'")
    admin.execute(create.format(sql.Identifier(name), sql.Literal(request.param)))
    try:
        with connect(conninfo.make_conninfo(server_url, dbname=name), autocommit=True) as opened:
            install(opened)
            yield opened
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize(
    ("encoded", "characters", "left"),
    [
        ("UTF8", "aé€😀\x7f\x80\x85\x9f\xa0\u2028ÀÅ", ""),
        ("LATIN1", "aéÿ\x7f\x80\x85\x9f\xa0ÀÅ", ""),
        ("EUC_JP", "aあ漢ｱ\x7f", ""),
        # Letters that have the number, or a byte, of a control character elsewhere.
        ("WIN1252", "aé€\x7f\xa0ÀÅ", "€"),
        ("KOI8R", "aж─\x7f", "─"),
        ("SQL_ASCII", "aé€😀\x7f\x80\x85\x9f\xa0\u2028ÀÅ", "€😀ÀÅ"),
    ],
    indirect=["encoded"],
)
def test_the_names_do_not_depend_on_the_encoding(encoded, characters, left):
    """Names are the same in every database encoding, on which patterns depend."""
    ids = [
        *characters,
        *(f"{character}+" for character in characters),
        *(f"k{character}" for character in characters),
    ]
    written = [
        json.dumps({"key": key, "n": 7, "accountId": "a"}, ensure_ascii=False) for key in ids
    ]
    declared = Reservation(Command, "transaction", ("n", "key"), "account_id")
    assert check_names(encoded, declared, written) == 2 * len(left)


@pytest.mark.parametrize("encoded", ["UTF8", "LATIN1", "SQL_ASCII"], indirect=True)
def test_names_of_fields_and_categories_may_be_of_any_letters_of_the_encoding(encoded):
    """Field and category names may have any letters of the encoding."""
    command = dataclasses.make_dataclass("Command", [("größe", str)])
    declared = Reservation(command, "zähler", ("größe",))
    assert check_names(encoded, declared, ['{"größe": "1"}', '{"groesse": "1"}']) == 0


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


@pytest.mark.parametrize("class_", [Shown, Watched, Made])
def test_a_class_that_makes_something_of_its_key_has_the_last_word(connection, class_):
    """The class decides on its key, which the data may not show."""
    declared = Reservation(class_, "transaction", ("key",))
    (message,), (stream,) = taken(connection, {"Command": declared}, ['{"key": "a"}'])
    assert stream is None
    assert declared.stream_name(message.decode(class_)) == "transaction-A"


def test_the_server_takes_parts_of_every_kind_as_they_are_written(connection):
    """The server extracts keys of every kind, and leaves other forms to Python."""
    command = dataclasses.make_dataclass(
        "Command", [("a", uuid.UUID), ("b", date), ("c", Decimal), ("d", Word)]
    )
    declared = {"Command": Reservation(command, into="t", key=("a", "b", "c", "d"))}
    good = {"a": str(uuid.UUID(int=5)), "b": "2026-02-28", "c": Decimal("1.5"), "d": "two words"}
    others = [{"a": good["a"].replace("0", "A")}, {"b": "2026-02-29"}, {"c": Decimal("1.50")}]
    encode = msgspec.json.Encoder(decimal_format="number").encode
    written = [encode(good | other).decode() for other in ({}, *others)]
    _, streams = taken(connection, declared, written)
    assert streams == [f"t-{good['a']}+2026-02-28+1.5+two words", None, None, None]


def test_equal_values_are_one_key():
    """Equal numbers are one key, however they are written."""
    command = dataclasses.make_dataclass("Command", [("key", Any)])
    declared = Reservation(command, into="t", key=("key",))
    names = [declared.stream_name(command(Decimal(number))) for number in ("1.50", "1.5", "15E-1")]
    assert names == ["t-1.5"] * 3
    names = [declared.stream_name(command(Decimal(number))) for number in ("-0.0", "0", "0E+3")]
    assert names == ["t-0"] * 3
    assert declared.stream_name(command(Decimal("1E+2"))) == "t-100"
    assert declared.stream_name(command(Count.MANY)) == "t-10"
    with pytest.raises(IdempotenceKeyError, match="bytes long"):
        declared.stream_name(command(Decimal("1E+131071")))
