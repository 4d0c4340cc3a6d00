"""Stream names and JSON, compared with a real PostgreSQL for generated values."""

import dataclasses
import enum
import itertools
import json
import random
import uuid
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from reservation import Metadata, stream_name
from reservation.errors import EncodeError, StreamNameError
from tests.support.controls import COMMANDS, deposit

MAX_BYTES = 2600  # of a stream's name

# Characters that UTF-8 and jsonb can hold; and further ones that a Python text can hold.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
any_texts = st.text(st.characters(categories=None) | st.sampled_from("\0\x1f\ud800\udfff-+:\\"))

# Names are of the same characters, but for the control characters.
name_characters = st.characters(exclude_categories=["Cs", "Cc"])
categories = st.text(name_characters, min_size=1, max_size=30).map(lambda t: t.replace("-", "_"))
last_ids = st.text(name_characters | st.sampled_from("-+:"), min_size=1, max_size=30)
leading_ids = last_ids.map(lambda text: text.replace("+", "-"))


@given(categories, st.lists(leading_ids, max_size=3), last_ids)
def test_a_stream_name_is_parsed_into_its_parts(category, leading, last):
    """A stream name is parsed into the parts it was made of."""
    name = stream_name.of(category, *leading, last)
    assert stream_name.category(name) == category
    assert stream_name.identifier(name) == "+".join([*leading, last])
    assert stream_name.cardinal_id(name) == (leading[0] if leading else last.partition("+")[0])
    assert stream_name.ids(name) == [*leading, *last.split("+")]
    assert not stream_name.is_category(name)
    assert stream_name.category(category) == category
    assert stream_name.is_category(category)
    assert stream_name.check_category(category) == category


@settings(max_examples=50)
@given(name=texts | st.text("a-+:", max_size=8))
def test_client_and_server_parse_every_name_alike(connection, name):
    """Client and server parse every name in the same way, also of other clients."""
    assert connection.execute(
        "SELECT message_store.category(n), message_store.id(n), message_store.cardinal_id(n),"
        " message_store.is_category(n) FROM CAST(%s AS text) AS n",
        [name],
    ).fetchone() == (
        stream_name.category(name),
        stream_name.identifier(name),
        stream_name.cardinal_id(name),
        stream_name.is_category(name),
    )


def is_fit(name):
    """Return whether a name fits the grammar, in other words than the code."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False
    control = any(ord(character) < 32 or 127 <= ord(character) < 160 for character in name)
    return name[:1] not in ("", "-") and not control and length <= MAX_BYTES


@settings(max_examples=50)
@given(name=any_texts | st.builds("{}-{}".format, categories, any_texts))
@example(name="")
@example(name="-1")
@example(name="account-1\n")
@example(name="account-\0")
def test_a_name_is_refused_exactly_where_the_store_could_not_hold_it(store, name):
    """A name is refused if and only if the store cannot hold it."""
    if not is_fit(name):
        with pytest.raises(StreamNameError):
            stream_name.check(name)
        return
    assert stream_name.check(name) == name
    written = f"{name}{'' if stream_name.identifier(name) else '-1'}"
    position = store.write(deposit(), written)
    assert store.stream_version(written) == position
    assert store.last_message(written).stream_name == written


def long_name(seed, length, category_length, widest):
    """Return an incompressible name of a number of bytes."""
    chance = random.Random(seed)
    characters = [chr(chance.randrange(0xA0, widest)) for _ in range(length)]
    name = "".join(characters).replace("-", "_").encode()[:length].decode(errors="ignore")
    name += "x" * (length - len(name.encode()))
    head = name[:category_length] or "a"
    rest = name[len(head) + 1 :]
    made = f"{head}-{rest}"
    return made + "y" * (length - len(made.encode()))


@settings(max_examples=50)
@given(
    seed=st.integers(),
    category_length=st.integers(1, MAX_BYTES // 8),
    widest=st.sampled_from([0x100, 0x800, 0xD800]),
)
def test_the_longest_name_is_written_and_read_and_a_longer_one_refused(
    store, seed, category_length, widest
):
    """The limit for names is the longest incompressible text that the index takes."""
    name = long_name(seed, MAX_BYTES, category_length, widest)
    assume(len(name.encode()) == MAX_BYTES)
    assert store.write(deposit(), name) == 0
    assert [message.stream_name for message in store.read_stream(name)] == [name]
    with pytest.raises(StreamNameError, match="bytes long"):
        store.write(deposit(), name + "z")


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2**40


@dataclass(frozen=True)
class Part:
    unit_price: Decimal
    sold_at: datetime | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Whole:
    by_name: dict[str, Part]
    all_parts: list[Part]


decimals = st.builds(
    lambda sign, digits, exponent: Decimal((sign, digits, exponent)),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.integers(-60, 60) | st.integers(-16383, 4000),
)
zones = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))
datetimes = st.datetimes(timezones=zones)
integers = st.integers() | st.integers(-(10**4299) + 1, 10**4299 - 1)
parts = st.builds(Part, decimals, st.none() | datetimes, st.lists(texts, max_size=2).map(tuple))

plain: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts),
    (int, integers),
    (bool, st.booleans()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (Decimal, decimals),
    (datetime, datetimes),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (bytes, st.binary(max_size=30)),
    (Size, st.sampled_from(Size)),
    (Level, st.sampled_from(Level)),
    (int | str, integers | texts),
    (bool | Decimal, st.booleans() | decimals),
    (Part, parts),
    (Part | None, st.none() | parts),
    (Whole, st.builds(Whole, st.dictionaries(texts, parts, max_size=2), st.lists(parts))),
]
containers = [
    lambda hint, values: (hint, values),
    lambda hint, values: (hint | None, st.none() | values),
    lambda hint, values: (list[hint], st.lists(values, max_size=3)),
    lambda hint, values: (dict[str, hint], st.dictionaries(texts, values, max_size=3)),
    lambda hint, values: (tuple[hint, ...], st.lists(values, max_size=3).map(tuple)),
    lambda hint, values: (list[dict[str, hint]], st.lists(st.dictionaries(texts, values))),
]
fields = [wrap(*hinted) for hinted, wrap in itertools.product(plain, containers)]


@st.composite
def messages(draw):
    """Draw an instance of a new dataclass."""
    chosen = draw(st.lists(st.sampled_from(fields), min_size=1, max_size=5))
    type_: Any = dataclasses.make_dataclass(
        "Message",
        [(f"the_{n}_field", hint) for n, (hint, _) in enumerate(chosen)],
        frozen=draw(st.booleans()),
        slots=draw(st.booleans()),
        kw_only=True,
    )
    return type_(**{f"the_{n}_field": draw(values) for n, (_, values) in enumerate(chosen)})


@settings(max_examples=50)
@given(message=messages())
def test_a_message_is_read_back_equal_from_the_store(store, message):
    """Any message is read back equal through jsonb, which rewrites numbers."""
    store.write(message, COMMANDS)
    assert store.last_message(COMMANDS).decode(type(message)) == message


@dataclass
class Anything:
    payload: Any
    amount: Decimal = Decimal(0)
    memo: str = ""


odd_decimals = st.builds(
    lambda sign, digits, exponent: Decimal((sign, digits, exponent)),
    st.integers(0, 1),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.sampled_from([0, 5, 131060, 131067, 131072, -16383, -16384, 10**9, -(10**9)])
    | st.integers(131060, 131075)
    | st.integers(-16388, -16378),
) | st.sampled_from([Decimal("NaN"), Decimal("-Infinity"), Decimal("sNaN")])
odd_texts = any_texts | st.text('\\u0"[{E+NaN', max_size=12)
odd_payloads = st.recursive(
    odd_texts | st.integers() | st.floats() | st.none() | st.booleans() | odd_decimals,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_texts, inner, max_size=4),
    max_leaves=8,
)


def naive(value: Any) -> str:
    """Return the JSON without any checks."""
    match value:
        case dict():
            return "{" + ",".join(f"{json.dumps(k)}:{naive(v)}" for k, v in value.items()) + "}"
        case list():
            return f"[{','.join(map(naive, value))}]"
        case Decimal():
            return str(value)
    return json.dumps(value)


def is_zero_out_of_range(value: Any) -> bool:
    """Return whether it is a zero such as 0E+200000, whose exponent only a zero may have."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(value, Decimal) and value.is_finite() and not value:
        return value.adjusted() > 131071
    return any(map(is_zero_out_of_range, parts))


@settings(max_examples=100)
@given(payload=odd_payloads, amount=odd_decimals, memo=odd_texts)
def test_the_client_refuses_exactly_what_postgresql_refuses(
    connection, store, payload, amount, memo
):
    """The client refuses exactly the messages that PostgreSQL refuses."""
    assume(not is_zero_out_of_range([payload, amount]))
    message = Anything(payload, amount, memo)
    refused = ""
    try:
        store.write(message, COMMANDS)
    except EncodeError as error:
        refused = str(error)
    if not refused:
        back = store.last_message(COMMANDS).decode(Anything)
        assert (back.amount, back.memo) == (amount, memo)
        return
    assert "- at `$." in refused
    if "no type" not in refused:  # which PostgreSQL takes, and no reader
        with pytest.raises(psycopg.DataError):
            connection.execute("SELECT CAST(%s AS jsonb)", [naive(vars(message))])


@settings(max_examples=50)
@given(properties=st.dictionaries(odd_texts, odd_payloads, max_size=3), name=odd_texts)
def test_metadata_is_stored_or_refused_by_the_client(store, properties, name):
    """Metadata is stored or refused by the client, never by the server."""
    metadata = Metadata(properties=properties, reply_stream_name=name)
    refused = ""
    try:
        store.write(deposit(), COMMANDS, metadata=metadata)
    except EncodeError as error:
        refused = str(error)
    if refused:
        assert "- at `$." in refused
        return
    back = store.last_message(COMMANDS).metadata
    assert (back.reply_stream_name, set(back.properties)) == (name, set(properties))


@settings(max_examples=50)
@given(at=st.datetimes(timezones=st.timezones()) | st.datetimes())
def test_a_time_of_any_zone_is_read_back_as_the_same_moment_or_refused(store, at):
    """A time of any zone is read back as the same moment, or refused for its seconds."""
    message = deposit(time=at)
    if (at.utcoffset() or timedelta()).seconds % 60:
        with pytest.raises(EncodeError, match="whole minutes"):
            store.write(message, COMMANDS)
        return
    store.write(message, COMMANDS)
    back = store.last_message(COMMANDS).decode(type(message)).time
    assert (back.replace(tzinfo=None), back.utcoffset()) == (
        at.replace(tzinfo=None),
        at.utcoffset(),
    )
