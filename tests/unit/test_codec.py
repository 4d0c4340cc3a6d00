"""Messages and metadata as JSON: their form, and what is refused because jsonb does not take it."""

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType

import msgspec
import pytest

from bank.messages import Deposited
from reservation import Metadata
from reservation.messages.message import follow
from reservation.messages.metadata import following_text
from reservation.serialization import codec
from tests.support.controls import TIME, deposit


@dataclass(frozen=True)
class Line:
    unit_price: Decimal


@dataclass(frozen=True)
class Order:
    order_id: str
    order_lines: list[Line]
    by_name: dict[str, Line]
    gift_note: str | None = None
    shipped_at: datetime | None = None
    tags: list[str] = field(default_factory=list)


def test_keys_are_camel_case_and_amounts_are_numbers_digit_for_digit():
    """Keys are camelCase, as Message DB clients expect, and money is never rounded to a float."""
    text = codec.encode(deposit(amount="12345678901234567890.10"))
    assert '"amount":12345678901234567890.10' in text
    assert json.loads(text)["depositId"] == "d1"
    assert codec.decode(type(deposit()), text) == deposit(amount="12345678901234567890.10")


def test_dataclasses_within_a_message_are_converted_too():
    """Nested dataclasses follow the same rules, in lists, mappings and optional fields."""
    order = Order("1", [Line(Decimal("1.50"))], {"a_b": Line(Decimal(2))}, shipped_at=TIME)
    text = codec.encode(order)
    assert json.loads(text)["orderLines"] == [{"unitPrice": 1.5}]
    assert json.loads(text)["byName"] == {"a_b": {"unitPrice": 2}}
    assert codec.decode(Order, text) == order


def test_unknown_fields_are_ignored():
    """Unknown fields of a newer sender are ignored."""
    text = '{"unitPrice": 1, "somethingNew": {"x": [1]}}'
    assert codec.decode(Line, text) == Line(Decimal(1))


@pytest.mark.parametrize("text", ["[]", "null", "3", "{}", '{"unitPrice": "x"}', '{"unitPrice'])
def test_what_does_not_fit_is_refused(text):
    """Data of another shape is an error, not a message with holes."""
    with pytest.raises(msgspec.MsgspecError):
        codec.decode(Line, text)


class Color(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Paint:
    color: Color
    kind: Literal["oil", "water"] = "oil"
    shade: int = 0


@pytest.mark.parametrize(
    "text",
    [
        '{"color": "SECRET"}',
        '{"color": "red", "kind": "SECRET"}',
        '{"color": "SECRET\'s - at home"}',
        '{"color": "red", "shade": "SECRET"}',
    ],
)
def test_an_explanation_leaves_out_the_value_that_did_not_fit(text):
    """Even where msgspec shows it; the field is named."""
    with pytest.raises(msgspec.MsgspecError) as caught:
        codec.decode(Paint, text)
    explained = codec.explain(caught.value)
    assert "SECRET" not in explained
    assert "home" not in explained
    assert "$." in explained


# What is refused

Money = NewType("Money", float)


class Odd(enum.Enum):
    ODD = "SECRET\0"


@dataclass(frozen=True)
class Note:
    memo: str = ""
    total: float = 0.0
    money: Money = Money(0)
    count: int = 0
    price: Decimal = Decimal(0)
    time: datetime | None = None
    lines: list[Line] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    by_name: Mapping[str, Any] = field(default_factory=dict)
    by_price: dict[Decimal, str] = field(default_factory=dict)
    payload: Any = None


def nested(levels: int) -> list[Any]:
    """Return lists in each other."""
    made: list[Any] = []
    for _ in range(levels - 1):
        made = [made]
    return made


def refusal_of(message, **options):
    """Return the error for a message that cannot be encoded."""
    with pytest.raises(msgspec.ValidationError) as caught:
        codec.encode(message, **options)
    return codec.explain(caught.value)


ODD_ZONE = datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32)))
LARGE = Decimal("1E+308")

REFUSED: dict[str, tuple[Any, str, str]] = {
    "infinite": (Note(total=math.inf), "a finite number", "$.total"),
    "a new type": (Note(money=Money(math.nan)), "a finite number", "$.money"),
    "not a number": (Note(price=Decimal("NaN")), "a finite number", "$.price"),
    "in a list": (
        Note(lines=[Line(Decimal(1)), Line(Decimal("-Infinity"))]),
        "a finite number",
        "$.lines[...].unitPrice",
    ),
    "deep in a mapping": (
        Note(by_name={"SECRET": [{"x": math.inf}]}),
        "a finite number",
        "$.byName[...][...][...]",
    ),
    "a decimal key": (Note(by_price={Decimal(1): "x"}), "a key that is a string", "$.byPrice"),
    "a hidden decimal key": (
        Note(payload={Decimal(1): 1}),
        "a key that is a string or an integer",
        "$.payload",
    ),
    "a member of an enum": (Note(payload=Odd.ODD), "without NUL", "$.payload"),
    "digits before": (Note(price=Decimal("12E+131071")), "digits before the point", "$.price"),
    "digits after": (Note(price=Decimal("1.5E-16383")), "16383 after it", "$.price"),
    "zero with digits": (Note(price=Decimal("0E-16384")), "16383 after it", "$.price"),
    "a large exponent": (Note(payload=[Decimal("1E+400000")]), "digits", "$.payload[...]"),
    "many digits": (Note(payload=[Decimal("1" * 131073)]), "digits", "$.payload[...]"),
    "many decimals": (Note(payload=[Decimal("0." + "1" * 16384)]), "digits", "$.payload[...]"),
    "long": (Note(count=10**4299), "an integer of at most 4299 digits", "$.count"),
    "long and negative": (Note(payload=[-(10**4299)]), "digits", "$.payload[...]"),
    "too large for a float": (Note(payload=LARGE), "where no type says", "$.payload"),
    "too large with decimals": (
        Note(payload=[Decimal("1" * 309 + ".5")]),
        "where no type says",
        "$.payload[...]",
    ),
    "too large a property": (
        Metadata(properties={"a": LARGE}),
        "where no type says",
        "$.properties[...]",
    ),
    "a time zone with seconds": (Note(time=ODD_ZONE), "whole minutes", "$.time"),
    "a hidden time zone": (Note(payload=[ODD_ZONE]), "whole minutes", "$.payload[...]"),
    "deep": (Note(payload=nested(500)), "at most 500 levels", "$.payload[...]"),
    "the first of several": (Note(memo="\0", total=math.nan), "without NUL", "$.memo"),
}


@pytest.mark.parametrize(("message", "expected", "path"), REFUSED.values(), ids=REFUSED)
def test_what_jsonb_does_not_take_is_refused_with_its_field(message, expected, path):
    """The error says what was expected and where, and never the value or the key of a mapping."""
    explained = refusal_of(message)
    assert expected in explained
    assert f"- at `{path}`" in explained
    assert "SECRET" not in explained


@pytest.mark.parametrize("bad", ["SECRET\0", "SECRET\ud800"])
@pytest.mark.parametrize(
    ("path", "make"),
    [
        ("$.memo", lambda bad: Note(bad)),
        ("$.tags[...]", lambda bad: Note(tags=["good", bad])),
        ("$.byName[...]", lambda bad: Note(by_name={"SECRET": bad})),
        ("$.byName", lambda bad: Note(by_name={bad: "SECRET"})),
        ("$.payload[...][...]", lambda bad: Note(payload={"SECRET": [1, bad]})),
        ("$.payload[...]", lambda bad: Note(payload=[{bad: 1}])),
        ("$.properties[...]", lambda bad: Metadata(properties={"SECRET": bad})),
        ("$.localProperties", lambda bad: Metadata(local_properties={bad: 1})),
        ("$.replyStreamName", lambda bad: Metadata(reply_stream_name=bad)),
    ],
)
def test_text_that_the_store_cannot_hold_is_refused_with_its_field(path, make, bad):
    """NUL characters and lone surrogates, which jsonb refuses."""
    explained = refusal_of(make(bad))
    assert f"- at `{path}`" in explained
    assert ("NUL" in explained) == bad.endswith("\0")
    assert "SECRET" not in explained


@pytest.mark.parametrize("levels", [501, 2_000, 200_000])
def test_data_nested_too_deep_is_refused(levels):
    """However deep it is, in both directions."""
    assert refusal_of(Note(payload=nested(levels))).startswith("Expected at most 500 levels")
    with pytest.raises(msgspec.ValidationError, match="500 levels"):
        codec.decode(Note, '{"payload":' + "[" * 200_000 + "]" * 200_000 + "}")


def test_a_number_that_is_none_is_not_read_either():
    """Where its field is a Decimal, JSON could say it as a text."""
    for number in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(msgspec.ValidationError, match="finite number"):
            codec.decode(Line, f'{{"unitPrice": "{number}"}}')


@pytest.mark.parametrize(
    "note",
    [
        Note("E+ NaN Infinity é\U0001f600"),
        Note("\\u0000"),
        Note("\\\\u0000"),
        Note('"\\u0000'),
        Note("[" * 600, tags=["{"] * 600, payload=[[{}]] * 600),
        Note(payload=nested(499)),
        Note(payload=10**4298),
        Note(count=10**4298, total=1e300, price=LARGE),
        Note(price=Decimal("0." + "1" * 16383)),
        Note(time=datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=19)))),
    ],
    ids=lambda note: repr(note)[:40],
)
def test_what_only_looks_wrong_is_written_and_read(note):
    """Words, backslashes and brackets within texts, what is wide, and all up to the limits."""
    assert codec.decode(Note, codec.encode(note)) == note


def test_a_message_that_is_too_long_is_refused_with_its_largest_field():
    """A message over the limit in bytes is refused, and the error names its largest field."""
    note = Note("é" * 40, tags=["x"] * 5)
    size = len(codec.encode(note).encode())
    assert codec.encode(note, max_bytes=size)
    explained = refusal_of(note, max_bytes=size - 1)
    assert f"at most {size - 1} bytes of JSON, got {size}" in explained
    assert "the largest field has 82 - at `$.memo`" in explained
    whole = codec.DEFAULT_MAX_BYTES
    assert f"at most {whole} bytes" in refusal_of(Note("x" * whole))
    assert "`$.properties`" in refusal_of(Metadata(properties={"a": "x" * whole}))


def test_an_object_without_a_form_in_json_is_refused():
    """Even where the field's type allows it."""
    with pytest.raises(TypeError):
        codec.encode(Note(payload=object()))
    with pytest.raises(TypeError):
        codec.encode({"memo": "no dataclass"})


# Classes


@dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    first: str
    second: int = 2
    third: list[Decimal] = field(default_factory=list)


@dataclass
class Base:
    first: str
    second: int = field(default=2, init=False)


@dataclass
class Derived(Base):
    third: Decimal | None = None


@dataclass(slots=True)
class DerivedWithSlots(Base):
    third: Decimal | None = None


@pytest.mark.parametrize(
    ("class_", "text", "fields"),
    [
        (Slotted, '{"first": "a"}', {"first": "a", "second": 2, "third": []}),
        (Slotted, '{"third": [1.50], "first": "a"}', {"third": [Decimal("1.50")]}),
        (Base, '{"first": "a"}', {"first": "a", "second": 2}),
        (Base, '{"second": 5, "first": "a"}', {"first": "a", "second": 5}),
        (Derived, '{"first": "a"}', {"first": "a", "third": None}),
        (Derived, '{"third": 5, "first": "a"}', {"second": 2, "third": Decimal(5)}),
        (DerivedWithSlots, '{"third": 5, "first": "a"}', {"second": 2, "third": Decimal(5)}),
    ],
)
def test_any_kind_of_dataclass_can_be_decoded(class_, text, fields):
    """Any kind of dataclass can be decoded, with defaults and factories."""
    made = codec.decode(class_, text)
    assert {name: getattr(made, name) for name in fields} == fields
    assert codec.decode(class_, codec.encode(made)) == made
    if class_ is Slotted:
        assert made.third is not codec.decode(class_, text).third


class Upper:
    """A descriptor of a class that keeps texts in capitals."""

    def __set_name__(self, owner, name):
        self.name = f"_{name}"

    def __get__(self, instance, owner=None):
        if instance is None:
            raise AttributeError
        return instance.__dict__[self.name]

    def __set__(self, instance, value):
        instance.__dict__[self.name] = value.upper()


@dataclass
class Shouted:
    word: str = Upper()


def test_a_descriptor_of_a_class_sees_what_is_decoded():
    """A descriptor of a class sees what is decoded into its field."""
    assert codec.decode(Shouted, '{"word": "hello"}').word == "HELLO"


@dataclass
class Loud:
    word: str

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value.upper())


def test_what_is_decoded_is_set_without_code_of_the_class():
    """A class that changes what is set to its attributes gets its fields as they are stored."""
    assert codec.decode(Loud, '{"word": "hello"}').word == "hello"
    assert Loud("hello").word == "HELLO"


def test_what_is_decoded_is_made_anew_and_can_be_changed():
    """What is decoded is an object of its own, with the attributes that Python's code would set."""
    first, second = (codec.decode(type(deposit()), codec.encode(deposit())) for _ in range(2))
    assert vars(first) == vars(deposit()) == vars(second)
    object.__setattr__(first, "deposit_id", "other")
    assert second == deposit()


@dataclass
class Checked:
    amount: Annotated[int, msgspec.Meta(gt=0)]
    doubled: int = 0

    def __post_init__(self):
        if self.amount == 13:
            raise ValueError("SECRET")
        self.doubled = self.amount * 2


def test_a_message_that_its_class_refuses_is_neither_written_nor_read():
    """A message that its class refuses is neither written nor read."""
    assert codec.decode(Checked, '{"amount": 4}').doubled == 8
    with pytest.raises(msgspec.ValidationError) as caught:
        codec.decode(Checked, '{"amount": 13}')
    assert codec.explain(caught.value).startswith("ValueError in Checked.__post_init__ ")
    with pytest.raises(msgspec.ValidationError, match=r"\$.amount"):
        codec.decode(Checked, '{"amount": -4}')
    assert "`$.amount`" in refusal_of(Checked(-4))


def test_a_field_for_the_constructor_alone_is_not_written():
    """A class with a field for the constructor alone cannot be read back."""

    @dataclass
    class Made:
        amount: int
        rate: InitVar[int] = 1

    assert codec.encode(Made(1, 2)) == '{"amount":1}'
    with pytest.raises(TypeError, match="InitVar"):
        codec.decode(Made, '{"amount":1}')


# Metadata


def test_metadata_leaves_out_what_is_not_there():
    """Nulls and empty properties are left out of stored metadata."""
    assert Metadata().encode() is None
    text = Metadata(correlation_stream_name="x-1", properties={"a_b": 1}).encode()
    assert json.loads(text or "") == {"correlationStreamName": "x-1", "properties": {"a_b": 1}}


def test_a_correlation_that_no_index_takes_is_refused():
    """A correlation stream name that is too long for the index is refused."""
    assert Metadata(correlation_stream_name="é" * 1300).encode()
    assert Metadata(correlation_stream_name="transfer-" + "x" * 9999).encode()
    with pytest.raises(msgspec.ValidationError, match=r"2602 - at `\$.correlationStreamName`"):
        Metadata(correlation_stream_name="é" * 1301).encode()


def test_metadata_that_follows_names_its_cause_and_copies_all_but_local_properties():
    """Metadata that follows names its cause and hands on all but local properties and version."""
    source = Metadata(
        correlation_stream_name="transfer-1",
        reply_stream_name="transfer-1",
        schema_version=2,
        properties={"user": 7},
        local_properties={"here": True},
    )
    assert source.follow("account:command-1", 4, 44) == Metadata(
        causation_message_stream_name="account:command-1",
        causation_message_position=4,
        causation_message_global_position=44,
        correlation_stream_name="transfer-1",
        reply_stream_name="transfer-1",
        properties={"user": 7},
    )


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{}",
        "null",
        "[]",
        "7",
        '{"correlationStreamName": "transfer-1", "replyStreamName": "r-1"}',
        '{"correlationStreamName": 7, "replyStreamName": ["r-1"], "properties": "none"}',
        '{"correlationStreamName": true, "replyStreamName": null, "properties": null}',
        '{"properties": {"amount": 1.50, "more": [{"a": 1e2}]}, "schemaVersion": 2}',
        '{"localProperties": {"mine": 1}, "causationMessagePosition": 3}',
        '{"properties": {"long": "' + "x" * 700 + '"}, "replyStreamName": "r-1"}',
        '{"properties": ' + 250 * '{"a":' + "1" + 250 * "}" + "}",
    ],
)
def test_following_stored_metadata_equals_following_its_decoded_form(text):
    """Following stored metadata gives the same as following its decoded form."""
    at = ("account:command-1", 4, 44)
    assert Metadata.following(text, *at) == Metadata.decode(text).follow(*at)
    assert repr(Metadata.following(text, *at)) == repr(Metadata.decode(text).follow(*at))
    made = following_text(text, *at)
    checked = text is not None and ("correlation" in text or len(text) > 600)
    assert made == (None if checked else Metadata.following(text, *at).encode())


def test_a_message_that_follows_takes_the_attributes_of_the_same_name():
    """A message that follows copies attributes of the same name; the caller gives the others."""
    deposited = follow(deposit(), Deposited, processed_time=TIME, sequence=9)
    assert (deposited.deposit_id, deposited.amount) == ("d1", Decimal("10.50"))
    with pytest.raises(TypeError, match="sequence"):
        follow(deposit(), Deposited, processed_time=TIME)


@pytest.mark.parametrize(
    "odd",
    [
        '"properties": ' + 600 * "[" + 600 * "]",
        '"properties": {"a": ' + 600 * "[" + 600 * "]" + "}",
        '"localProperties": {"a": "' + 17 * 1024 * 1024 * "x" + '"}',
        '"correlationStreamName": "' + 3000 * "x" + '-1"',
    ],
)
def test_metadata_that_cannot_be_handed_on_is_left_out(odd):
    """Metadata of another client that cannot be handed on is left out; no message is refused."""
    metadata = Metadata.decode('{"replyStreamName": "reply-1", ' + odd + "}")
    assert metadata.reply_stream_name == "reply-1"
    assert metadata.follow("a-1", 0, 1).encode() is not None
    assert metadata == Metadata(reply_stream_name="reply-1")
