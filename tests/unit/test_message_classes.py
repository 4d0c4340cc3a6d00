"""Messages and entities as dataclasses, msgspec Structs, attrs classes and Pydantic models."""

import dataclasses
import enum
import json
import re
import subprocess
import sys
import uuid
import warnings
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, NewType

import attrs
import msgspec
import pydantic
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError

from consumers.group.compatibility import compare
from reservation import Component, Key
from reservation.declaration.table import declarations
from reservation.entity.projection import Loaded
from reservation.entity.snapshots import Snapshots
from reservation.errors import DeclarationError, EncodeError
from reservation.handlers.copying import copied
from reservation.idempotence.server_keys import server_rules
from reservation.inspection.process_declaration import ProcessDeclaration
from reservation.messages.comparison import same_content
from reservation.messages.message import follow
from reservation.messages.upcasting import code_of
from reservation.messages.written import written_as
from reservation.serialization import codec
from reservation.serialization.adapters.adapter import RefusedValuesError
from reservation.serialization.fields import adapter_of
from reservation.serialization.immutability import never_changes
from reservation.store.writing.write import Write, row_of
from reservation.testing import check_deterministic
from tests.support.controls import TIME, deposit, stored


def as_dataclass(name: str, **fields: Any) -> type:
    """Return a dataclass with fields of these types, or of these types and defaults."""
    made = [
        (field, said[0], dataclasses.field(default=said[1]))
        if isinstance(said, tuple)
        else (field, said)
        for field, said in fields.items()
    ]
    return dataclasses.make_dataclass(name, made)


def as_struct(name: str, **fields: Any) -> type:
    made = [
        (field, *said) if isinstance(said, tuple) else (field, said)
        for field, said in fields.items()
    ]
    return msgspec.defstruct(name, made)


def as_attrs_class(name: str, **fields: Any) -> type:
    made = {
        field: attrs.field(type=said[0], default=said[1])
        if isinstance(said, tuple)
        else attrs.field(type=said)
        for field, said in fields.items()
    }
    return attrs.make_class(name, made)


def as_model(name: str, **fields: Any) -> type:
    made = {
        field: said if isinstance(said, tuple) else (said, ...) for field, said in fields.items()
    }
    return pydantic.create_model(name, __config__=ConfigDict(arbitrary_types_allowed=True), **made)


KINDS = [as_dataclass, as_struct, as_attrs_class, as_model]
every_kind = pytest.mark.parametrize("kind", KINDS)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


Money = NewType("Money", Decimal)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

# The type of a field, a value of it, and its JSON.
TYPES: dict[str, tuple[Any, Any, str]] = {
    "text": (str, "é\n", '"é\\n"'),
    "integer": (int, 12345678901234567890, "12345678901234567890"),
    "float": (float, 1.5, "1.5"),
    "boolean": (bool, True, "true"),
    "bytes": (bytes, b"\xff\x00", '"/wA="'),
    "decimal": (Decimal, Decimal("1234567890123456789.10"), "1234567890123456789.10"),
    "new type": (Money, Money(Decimal("0.10")), "0.10"),
    "uuid": (uuid.UUID, ID, f'"{ID}"'),
    "time with zone": (
        datetime,
        datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        '"2026-01-02T03:04:05.000006Z"',
    ),
    "time without zone": (datetime, TIME.replace(tzinfo=None), '"2026-01-02T03:04:05"'),
    "date": (date, date(2026, 1, 2), '"2026-01-02"'),
    "time of day": (time, time(3, 4), '"03:04:00"'),
    "span": (timedelta, timedelta(days=1, seconds=2), '"P1DT2S"'),
    "enum": (Color, Color.BLUE, '"blue"'),
    "enum of numbers": (Level, Level.LOW, "1"),
    "literal": (Literal["oil", "water"], "oil", '"oil"'),
    "absent": (int | None, None, "null"),
    "present": (int | None, 3, "3"),
    "union": (int | str, "3", '"3"'),
    "list": (list[Decimal], [Decimal("1.0")], "[1.0]"),
    "tuple": (tuple[int, str], (1, "a"), '[1,"a"]'),
    "open tuple": (tuple[date, ...], (date(2026, 1, 2),), '["2026-01-02"]'),
    "set": (set[int], {7}, "[7]"),
    "frozen set": (frozenset[Color], frozenset({Color.RED}), '["red"]'),
    "mapping": (dict[str, list[int]], {"a_b": [1]}, '{"a_b":[1]}'),
    "mapping of ids": (dict[uuid.UUID, int], {ID: 1}, f'{{"{ID}":1}}'),
    "anything": (Any, {"a_b": [1, None]}, '{"a_b":[1,null]}'),
    "annotated": (Annotated[int, msgspec.Meta(gt=0)], 1, "1"),
}


@pytest.mark.parametrize(("hint", "value", "text"), TYPES.values(), ids=TYPES)
def test_fields_of_one_type_have_one_form_in_json(hint, value, text):
    """So a class can become one of another kind, and reissues stay duplicates."""
    classes = [kind("Sent", the_value=hint) for kind in KINDS]
    texts = {codec.encode(class_(the_value=value)) for class_ in classes}
    assert texts == {f'{{"theValue":{text}}}'}
    for class_ in classes:
        read = codec.decode(class_, *texts).the_value
        assert (read, type(read)) == (value, type(value))


WRONG = {
    "text": (str, 1, '"the_value":"a"'),
    "number": (int, "SECRET", '"theValue":"SECRET"'),
    "number in text": (int, "1", '"theValue":"1"'),
    "enum": (Color, "SECRET", '"theValue":"SECRET"'),
    "date": (date, "SECRET", '"theValue":"SECRET"'),
    "list": (list[int], ["SECRET"], '"theValue":["SECRET"]'),
}


@every_kind
@pytest.mark.parametrize(("hint", "value", "text"), WRONG.values(), ids=WRONG)
def test_a_value_of_another_type_is_neither_written_nor_read(kind, hint, value, text):
    """All kinds are equally strict, and the field is named without the value."""
    class_ = kind("Sent", the_value=hint)
    made = (getattr(class_, "model_construct", None) or class_)(the_value=value)
    for refused in (lambda: codec.encode(made), lambda: codec.decode(class_, f"{{{text}}}")):
        with pytest.raises((msgspec.MsgspecError, ValueError)) as caught:
            refused()
        explained = codec.explain(caught.value)
        assert "SECRET" not in explained
        assert "\n" not in explained
        assert "the_value" in explained or "theValue" in explained


@every_kind
def test_missing_fields_have_their_defaults_and_others_are_required(kind):
    """Unknown fields are ignored."""
    class_ = kind("Sent", first=str, second=(int, 2), third=(Color, Color.RED))
    read = codec.decode(class_, '{"first":"a","unknown":1}')
    assert (read.first, read.second, read.third) == ("a", 2, Color.RED)
    with pytest.raises(msgspec.ValidationError) as caught:
        codec.decode(class_, '{"second":1}')
    assert codec.explain(caught.value) == "Object missing required field `first`"


# Classes that contain each other


@dataclass
class LineOfDataclass:
    unit_price: Decimal


class LineOfStruct(msgspec.Struct):
    unit_price: Decimal


@attrs.define
class LineOfAttrs:
    unit_price: Decimal = attrs.field(validator=attrs.validators.gt(0))


class LineOfModel(BaseModel):
    unit_price: Decimal = Field(gt=0)


LINES = [LineOfDataclass, LineOfStruct, LineOfAttrs, LineOfModel]


@every_kind
@pytest.mark.parametrize("line", LINES)
def test_a_class_of_any_kind_holds_those_of_any_other(kind, line):
    """In lists, tuples, mappings and optional fields; each is made by its own constructor."""
    held = kind(
        "Held",
        one=line,
        many=list[line],
        named=dict[str, line],
        rest=(tuple[line, ...], ()),
        no=(line | None, None),
    )
    one = line(unit_price=Decimal("1.50"))
    whole = held(one=one, many=[one], named={"a_b": one}, rest=(one, one))
    text = codec.encode(whole)
    price = {"unitPrice": 1.5}
    assert json.loads(text) == {
        "one": price,
        "many": [price],
        "named": {"a_b": price},
        "rest": [price, price],
        "no": None,
    }
    read = codec.decode(held, text)
    assert read == whole
    assert [type(part) for part in (read.one, read.many[0], read.named["a_b"], read.rest[1])] == [
        line
    ] * 4


@every_kind
@pytest.mark.parametrize("line", [LineOfAttrs, LineOfModel])
def test_what_a_nested_class_refuses_is_named_by_its_path(kind, line):
    """The path and the reason are the same however the outer class is made."""
    held = kind("Held", all_lines=dict[str, list[line]])
    with pytest.raises(ValueError, match="0") as caught:
        codec.decode(held, '{"allLines":{"SECRET":[{"unitPrice":1},{"unitPrice":-12345}]}}')
    explained = codec.explain(caught.value)
    assert explained.endswith(" - at `$.allLines[...][...].unitPrice`")
    assert "12345" not in explained
    assert "SECRET" not in explained


@every_kind
@pytest.mark.parametrize("line", LINES)
def test_a_field_that_may_be_unset_stays_so(kind, line):
    """As msgspec has it: it is not stored."""
    unset = msgspec.UNSET
    patch = kind(
        "Patch", line=(line | msgspec.UnsetType, unset), note=(str | msgspec.UnsetType, unset)
    )
    assert codec.encode(patch()) == "{}"
    assert codec.decode(patch, "{}") == patch()
    filled = patch(line=line(unit_price=Decimal(1)))
    assert codec.encode(filled) == '{"line":{"unitPrice":1}}'
    assert codec.decode(patch, '{"line":{"unitPrice":1}}') == filled


class Cat(msgspec.Struct, tag=True):
    lives_left: int


class Dog(msgspec.Struct, tag=True):
    lives_left: int


@every_kind
def test_tags_tell_structs_of_a_union_apart(kind):
    """A tag is stored with its Struct, also where there is no union."""
    zoo = kind("Zoo", star=Cat | Dog, cages=dict[str, list[Cat | Dog]], last=(Dog | None, None))
    whole = zoo(star=Cat(9), cages={"a": [Dog(1), Cat(2)]}, last=Dog(3))
    text = codec.encode(whole)
    assert '"star":{"type":"Cat","livesLeft":9}' in text
    read = codec.decode(zoo, text)
    assert read == whole
    assert type(read.cages["a"][0]) is Dog


class Sale:
    class Line(BaseModel):
        price: int


class Return:
    class Line(BaseModel):
        reason: str


@every_kind
def test_nested_classes_may_have_the_same_name(kind):
    """Also in an entity with snapshots, whose shape is compared with theirs."""
    order = kind("Order", sold=(Sale.Line | None, None), returned=(Return.Line | None, None))
    Component("order", entity=order, id="order_id", snapshot_every=2)
    whole = order(sold=Sale.Line(price=1), returned=Return.Line(reason="late"))
    assert codec.decode(order, codec.encode(whole)) == whole


# Names


class Renamed(msgspec.Struct, rename="kebab"):
    amount_cents: int


class NamedByField(msgspec.Struct):
    amount_cents: int = msgspec.field(name="amt")
    other_field: int = 1


class Aliased(BaseModel):
    amount_cents: int = Field(alias="amt")
    other_field: int = 1


class Generated(BaseModel):
    model_config = ConfigDict(alias_generator=to_pascal)
    amount_cents: int


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    amount_cents: int = Field(alias="amt")


class WrittenOtherwise(BaseModel):
    amount_cents: int = Field(serialization_alias="out", validation_alias="in")


class Choosing(BaseModel):
    amount_cents: int = Field(7, validation_alias=AliasChoices("amt", "cents"))


@attrs.define
class Private:
    _amount_cents: int = attrs.field()
    other_field: int = attrs.field(default=1, alias="other_alias")


@attrs.define
class BothNames:
    _amount: int
    Amount: int


NAMES: list[tuple[type, str, list[str]]] = [
    (Renamed, '{"amount-cents":3}', []),
    (NamedByField, '{"amt":3,"otherField":1}', []),
    (Aliased, '{"amt":3,"otherField":1}', []),
    (Generated, '{"AmountCents":3}', []),
    (ByName, '{"amt":3}', ['{"amount_cents":3}']),
    (WrittenOtherwise, '{"out":3}', ['{"in":3}']),
    (Choosing, '{"amountCents":3}', ['{"cents":3}', '{"amt":3,"cents":4}']),
    (
        Private,
        '{"amountCents":3,"otherAlias":1}',
        ['{"AmountCents":3,"otherField":1}', '{"amountCents":3,"AmountCents":4}'],
    ),
    (BothNames, '{"amount":3,"Amount":4}', []),
]


@pytest.mark.parametrize(("class_", "text", "others"), NAMES)
def test_names_that_a_class_gives_are_stored(class_, text, others):
    """What is written is read, and what else a class says that it reads."""
    message = codec.decode(class_, text)
    assert codec.encode(message) == text
    assert [codec.decode(class_, other) for other in others] == [message] * len(others)


def test_a_field_with_several_names_may_be_missing_only_if_it_has_a_default():
    """The name that is written is the one in the error."""
    assert codec.decode(Choosing, "{}").amount_cents == 7
    with pytest.raises(ValueError, match="Object missing required field `amt`"):
        codec.decode(ByName, "{}")


def test_a_dataclass_may_become_an_attrs_class():
    """What is stored of a private field is read."""
    of_dataclass = as_dataclass("Private", _amount_cents=int, other_field=int)(3, 4)
    assert codec.decode(Private, codec.encode(of_dataclass)) == Private(3, 4)


@pytest.mark.parametrize("class_", [Aliased, Private, NamedByField])
def test_a_message_that_follows_is_made_by_names_of_fields(class_):
    """Whatever the names are in JSON or in the constructor."""
    source = codec.decode(class_, next(text for one, text, _ in NAMES if one is class_))
    assert follow(source, class_) == source
    assert follow(source, class_, other_field=4).other_field == 4
    with pytest.raises(TypeError):
        follow(source, class_, unknown=1)


# What classes check and change


class Checking(BaseModel):
    word: str = ""
    by_name: dict[str, pydantic.PositiveInt] = {}
    code: Literal["a", "b"] = "a"
    at: pydantic.AwareDatetime | None = None
    link: pydantic.HttpUrl | None = None

    @pydantic.field_validator("word")
    @classmethod
    def check_word(cls, value):
        if value == "SECRET":
            raise ValueError(f"{value} is bad")
        return value.upper()

    @pydantic.model_validator(mode="after")
    def check_all(self):
        assert self.word != "WHOLE", "SECRET"
        return self


class CustomErrors(BaseModel):
    card: str = ""

    @pydantic.field_validator("card")
    @classmethod
    def check_card(cls, value):
        type_, _ = value.split()
        raise PydanticCustomError(type_, f"{value} refused")


def positive(instance, attribute, value):
    if value < 0:
        raise ValueError(f"SECRET {value}")


@attrs.frozen
class Converting:
    word: str = attrs.field(default="", converter=str.upper)
    count_of: int = attrs.field(default=0, validator=[attrs.validators.lt(100), positive])

    def __attrs_post_init__(self):
        if self.word == "WHOLE":
            raise ValueError("SECRET")


REFUSED: list[tuple[type, str, str]] = [
    (Checking, '{"word":"SECRET"}', "ValueError in Checking.check_word .* - at `\\$.word`"),
    (Checking, '{"word":"whole"}', "AssertionError in Checking.check_all .*"),
    (
        Checking,
        '{"byName":{"SECRET":-1}}',
        "Input should be greater than 0 - at `\\$.byName\\[...\\]`",
    ),
    (Checking, '{"link":"SECRET"}', "Invalid value \\(url_parsing\\) - at `\\$.link`"),
    (Checking, '{"at":"2026-01-02T00:00:00"}', "Input should have timezone info - at `\\$.at`"),
    *(
        (CustomErrors, f'{{"card":"{type_} SECRET"}}', f"{reason} - at `\\$.card`")
        for type_, reason in {
            "value_error": "Invalid value \\(value_error\\)",
            "assertion_error": "Invalid value \\(assertion_error\\)",
            "greater_than": "Invalid value \\(greater_than\\)",
            "string_type": "Input should be a valid string",
            "card_refused": "Invalid value \\(card_refused\\)",
        }.items()
    ),
    (Converting, '{"countOf":100}', "Refused by <Validator for x < 100> - at `\\$.countOf`"),
    (Converting, '{"countOf":-1}', "ValueError in positive .* - at `\\$.countOf`"),
    (Converting, '{"word":"whole"}', "ValueError in Converting.__attrs_post_init__ .*"),
]


@pytest.mark.parametrize(("class_", "text", "explained"), REFUSED)
def test_what_a_class_refuses_is_its_field_and_the_reason(class_, text, explained):
    """On one line, without a value."""
    with pytest.raises(RefusedValuesError) as caught:
        codec.decode(class_, text)
    shown = codec.explain(caught.value)
    assert "\n" not in shown
    assert "SECRET" not in shown
    assert re.fullmatch(explained, shown), shown


def test_several_refused_fields_are_all_named():
    """As Pydantic finds them."""
    with pytest.raises(RefusedValuesError) as caught:
        codec.decode(Checking, '{"byName":{"a":-1},"link":"x"}')
    assert codec.explain(caught.value).count(" - at `$.") == 2


def test_what_a_class_changes_is_changed_when_it_is_read():
    """Pydantic's validators and the converters of attrs have run."""
    assert codec.decode(Checking, '{"word":"low"}').word == "LOW"
    assert codec.decode(Converting, '{"word":"low"}').word == "LOW"


@pytest.mark.parametrize(
    "message",
    [
        LineOfModel(unit_price=1).model_copy(update={"unit_price": Decimal(-1)}),
        as_dataclass("Held", lines=list[LineOfModel])(
            [LineOfModel.model_construct(unit_price=Decimal(-1))]
        ),
        Checking.model_construct(by_name={"a": 0}),
    ],
)
def test_what_a_class_would_refuse_to_read_is_not_written(message):
    """However the instance came to be: the error is its sender's."""
    with pytest.raises(EncodeError, match=r"Input should be greater than 0 - at `\$"):
        row_of(Write(message, "purse-1"), ID)


class Appending(BaseModel):
    tags: list[str] = []
    anything: Any = None

    @pydantic.field_validator("tags", "anything", mode="before")
    @classmethod
    def mark(cls, value):
        if isinstance(value, list) and "x" not in value:
            value.append("x")
        return value


class Growing(Appending):
    @pydantic.field_validator("anything", mode="before")
    @classmethod
    def grow(cls, value):
        value.append("y")
        return value


def test_code_of_a_class_gets_no_values_of_the_message_that_is_written():
    """Here it would change them, and what is written."""
    message = Appending(tags=["a"], anything=["b"])
    assert codec.encode(message) == '{"tags":["a","x"],"anything":["b","x"]}'
    assert (message.tags, message.anything) == (["a", "x"], ["b", "x"])
    message = Growing(tags=["x"], anything=["SECRET"])
    with pytest.raises(
        EncodeError, match=r"Decoding would change it; .* - at `\$\.anything`"
    ) as caught:
        row_of(Write(message, "purse-1"), ID)
    assert "SECRET" not in str(caught.value)
    assert message.anything.count("y") == 1


class CentsOfModel(BaseModel):
    the_amount: int

    @pydantic.field_validator("the_amount")
    @classmethod
    def in_cents(cls, value):
        return value * 100


@attrs.define
class CentsOfAttrs:
    the_amount: int = attrs.field(converter=lambda value: value * 100)


@dataclass
class CentsOfDataclass:
    the_amount: int

    def __post_init__(self):
        self.the_amount *= 100


class CentsOfStruct(msgspec.Struct):
    the_amount: int

    def __post_init__(self):
        self.the_amount *= 100


CENTS = [CentsOfModel, CentsOfAttrs, CentsOfDataclass, CentsOfStruct]


@pytest.mark.parametrize("class_", CENTS)
@every_kind
def test_what_a_class_would_change_again_is_not_written(kind, class_):
    """It would be read as another message."""
    message = class_(the_amount=5)
    with pytest.raises(
        EncodeError, match=r"Decoding would change it; .* - at `\$\.theAmount`"
    ) as caught:
        row_of(Write(message, "purse-1"), ID)
    assert "500" not in str(caught.value)
    held = kind("Held", count=int, lines=list[class_])(count=1, lines=[message])
    with pytest.raises(EncodeError, match=r"Decoding would change it; .* - at `\$\.lines`"):
        row_of(Write(held, "purse-1"), ID)
    message.the_amount = 0
    assert codec.encode(message) == '{"theAmount":0}'


def test_a_message_that_is_read_as_an_equal_one_is_written():
    """Whatever the order of a set, the digits of a number, or the type that a text came from."""

    class Free(BaseModel):
        names: set[str]
        price: Decimal
        anything: Any

        @pydantic.field_validator("price")
        @classmethod
        def rounded(cls, value):
            return value.quantize(Decimal("1.00"))

    parts = (TIME, Decimal("0.1234567890123456789"), {ID: {1}})
    names = {f"name {n}" for n in range(50)}
    codec.encode(Free.model_construct(names=names, price=Decimal("1.5"), anything=parts))


def test_a_message_as_it_is_read_is_no_message_to_write():
    """Although its class is a Struct."""
    with pytest.raises(EncodeError, match="a message as it is read; decode it"):
        row_of(Write(stored(deposit()), "purse-1"), ID)


def test_types_of_pydantic_are_stored_as_pydantic_writes_them():
    """A link is text, and a time that has to have a zone is a time."""
    message = Checking(link="http://a.example", at=TIME, word="a")
    text = codec.encode(message)
    assert json.loads(text)["link"] == "http://a.example/"
    assert codec.decode(Checking, text) == message


class Computed(BaseModel):
    amount: int
    note: str = Field("", exclude=True)
    _seen: int = 0

    @pydantic.computed_field
    @property
    def doubled(self) -> int:
        return self.amount * 2


def test_computed_private_and_excluded_fields_are_not_stored():
    """They are none of the message's content."""
    message = Computed(amount=1, note="x")
    message._seen = 4
    assert codec.encode(message) == '{"amount":1}'
    assert same_content(message, Computed(amount=1))


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    amount: int


class ForbiddingStruct(msgspec.Struct, forbid_unknown_fields=True):
    amount: int


@pytest.mark.parametrize("class_", [Forbidding, ForbiddingStruct])
def test_unknown_fields_are_refused_where_the_class_forbids_them(class_):
    """By Pydantic's and msgspec's own settings."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `other`"):
        codec.decode(class_, '{"amount":1,"other":2}')


def test_a_model_knows_which_fields_were_given():
    """A default is the model's own, and its factory may look at other fields."""

    class Late(BaseModel):
        first: int
        second: int = Field(default_factory=lambda data: data["first"] + 1)

    read = codec.decode(Late, '{"first":4}')
    assert (read.second, read.model_fields_set) == (5, {"first"})


class Versioned(BaseModel):
    __schema_version__: ClassVar[int] = 2
    __stored_as__: ClassVar[str] = "Former"
    amount: int


class VersionedStruct(msgspec.Struct):
    __schema_version__: ClassVar[int] = 2
    __stored_as__: ClassVar[str] = "Former"
    amount: int


@attrs.define
class VersionedAttrs:
    __schema_version__: ClassVar[int] = 2
    __stored_as__: ClassVar[str] = "Former"
    amount: int


@pytest.mark.parametrize("class_", [Versioned, VersionedStruct, VersionedAttrs])
def test_a_class_of_any_kind_says_how_it_is_written(class_):
    """By the same two attributes."""
    assert written_as(class_) == ("Former", 2)
    assert codec.encode(class_(amount=1)) == '{"amount":1}'


# What is refused


class Rooted(pydantic.RootModel[list[int]]):
    pass


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    account_id: str


class Serializing(BaseModel):
    account_id: str

    @pydantic.field_serializer("account_id")
    def write(self, value):
        return value


class Plainly(BaseModel):
    account_id: Annotated[str, pydantic.PlainSerializer(lambda value: value)]


class Secret(BaseModel):
    account_id: pydantic.SecretStr


class Pathed(BaseModel):
    account_id: str = Field(validation_alias=AliasPath("account", "id"))


class Excluded(BaseModel):
    account_id: str = Field(exclude=True)


class Undecided(BaseModel):
    account_id: str
    line: LineOfModel | Forbidding


class Arbitrary(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    account_id: str
    value: complex


class Unfinished(BaseModel):
    account_id: "NobodyKnows"  # noqa: F821


class Array(msgspec.Struct, array_like=True):
    account_id: str


class Twice(BaseModel):
    account_id: str = Field(alias="same")
    other_id: str = Field(alias="same")


@attrs.define
class Untyped:
    account_id = attrs.field()


@attrs.define
class SharedDefault:
    account_id: str
    items: list[str] = []  # noqa: RUF008


@pydantic.dataclasses.dataclass
class Mingled:
    account_id: str


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from pydantic import v1

    class First(v1.BaseModel):
        account_id: str

    class Encoding(BaseModel):
        model_config = ConfigDict(json_encoders={str: repr})
        account_id: str


UNFIT: dict[type, str] = {
    int: "int is not a dataclass; decorate it with @dataclass, or make it a msgspec.Struct, an "
    "attrs class or a Pydantic model",
    Rooted: "Rooted is a RootModel, .* give it a field",
    First: "First is a model of Pydantic 1; derive it from the BaseModel of Pydantic 2",
    Mingled: "Mingled is a dataclass of Pydantic; derive it from pydantic.BaseModel, or .*",
    Extra: "Extra has extra='allow', .* declare a field of the type dict.*",
    Serializing: "Serializing has a serializer, .* leave it out, or .*",
    Encoding: "Encoding has a serializer, .* leave it out, or .*",
    Plainly: "Plainly cannot be a message: its field account_id has a serializer .*",
    Secret: "Secret cannot be a message: its field account_id holds a SecretStr, .*",
    Pathed: "Pathed cannot be a message: its field account_id has an AliasPath, .*",
    Excluded: "Excluded cannot be a message: its field account_id has exclude=True .*",
    Undecided: "Undecided cannot be a message: .* union.*",
    Arbitrary: "Arbitrary cannot be a message: its field value holds a complex, .*",
    Unfinished: "Unfinished refers to NobodyKnows, which is not defined yet; define it before",
    Array: "Array is a Struct with array_like=True, .* leave array_like=True out",
    Twice: "Twice cannot be a message: Multiple fields .*",
    Untyped: "Untyped cannot be a message: its field account_id has no type; annotate it",
    SharedDefault: "SharedDefault cannot be a message: its field items has a default that may "
    "change, .* give the field a factory= instead",
}


@pytest.mark.parametrize(("class_", "problem"), UNFIT.items())
@pytest.mark.parametrize("how", [{"key": "account_id"}, {"once": None}])
def test_a_class_without_a_form_is_refused_when_it_is_declared(class_, problem, how):
    """In one line that names it and says what to do."""
    account = Component("account", id="account_id")
    with pytest.raises(DeclarationError) as caught:
        account.handle(class_, **how)(lambda command, entity, context: None)
    assert re.fullmatch(problem, str(caught.value)), str(caught.value)


# Keys


class KeyedStruct(msgspec.Struct):
    account_id: str
    deposit_id: int = msgspec.field(name="dep")


@attrs.define
class KeyedAttrs:
    account_id: str
    deposit_id: int


class KeyedModel(BaseModel):
    account_id: str = Field(alias="acc")
    deposit_id: int


def rules(class_: type) -> dict[str, Any] | None:
    """Return what the server is told of the keys of a command."""
    account = Component("account", id="account_id")
    account.handle(class_, key="deposit_id")(lambda command, entity, context: None)
    made = json.loads(server_rules(declarations(account).server_keys))
    return made[0] if made else None


@pytest.mark.parametrize(
    ("class_", "fields"),
    [
        (KeyedStruct, ("accountId", "dep")),
        (KeyedAttrs, ("accountId", "depositId")),
        (KeyedModel, ("acc", "depositId")),
    ],
)
def test_the_server_takes_keys_of_each_kind(class_, fields):
    """Under the names that are stored."""
    made = rules(class_)
    assert (made["field1"], made["field2"]) == fields
    assert (made["kind1"], made["kind2"]) == ("string", "number")


class Validated(KeyedModel):
    @pydantic.field_validator("deposit_id")
    @classmethod
    def next_one(cls, value):
        return value + 1


class Limited(KeyedModel):
    deposit_id: int = Field(gt=0)


class Stripped(KeyedModel):
    model_config = ConfigDict(str_strip_whitespace=True)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    class ValidatedAsBefore(KeyedModel):
        @pydantic.validator("deposit_id")
        @classmethod
        def next_one(cls, value):
            return value + 1

    class RootValidated(KeyedModel):
        @pydantic.root_validator(skip_on_failure=True)
        @classmethod
        def next_one(cls, values):
            return values | {"deposit_id": values["deposit_id"] + 1}


class EitherName(KeyedModel):
    model_config = ConfigDict(populate_by_name=True)


@attrs.define
class ConvertedKey:
    account_id: str
    deposit_id: int = attrs.field(converter=abs)


class PostInit(msgspec.Struct):
    account_id: str
    deposit_id: int

    def __post_init__(self):
        self.deposit_id += 1


@pytest.mark.parametrize(
    "class_",
    [
        *(Validated, ValidatedAsBefore, RootValidated, Limited, Stripped),
        *(EitherName, ConvertedKey, PostInit),
    ],
)
def test_the_server_takes_no_key_that_the_class_may_change(class_):
    """Such a command is read, and its class makes the key."""
    assert rules(class_) is None


@pytest.mark.parametrize("class_", [Validated, ValidatedAsBefore, RootValidated])
def test_validators_are_part_of_a_class_s_code(class_):
    """Also those of Pydantic's former decorators."""
    assert str(code_of(class_.next_one)) in str(adapter_of(class_).code(class_, code_of))


@every_kind
def test_fields_that_may_differ_are_named_as_they_are_stored(kind):
    """So that the server leaves them out of its comparison."""
    class_ = kind("Open", account_id=str, open_id=str, sent_at=str)
    account = Component("account", id="account_id")
    account.handle(class_, key=Key("open_id", ignoring="sent_at"))(
        lambda command, entity, context: None
    )
    one, other = (class_(account_id="1", open_id="a", sent_at=sent) for sent in "xy")
    assert not same_content(one, other)
    assert same_content(one, other, ["sent_at"])


# Entities


class FrozenStruct(msgspec.Struct, frozen=True):
    total: int = 0
    names: tuple[str, ...] = ()


@attrs.frozen
class FrozenAttrs:
    total: int = 0
    names: tuple[str, ...] = ()


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)
    total: int = 0
    names: tuple[str, ...] = ()


class FrozenWithPrivate(FrozenModel):
    _seen: int = 0


@pytest.mark.parametrize("class_", [FrozenStruct, FrozenAttrs, FrozenModel])
def test_an_entity_that_cannot_be_changed_is_shared(class_):
    """Its class says so, by whichever setting."""
    assert never_changes(class_)
    entity = class_()
    assert copied(entity) is entity


@every_kind
def test_an_entity_that_can_be_changed_is_copied(kind):
    """A change of the copy does not show in the original."""
    entity = kind("Entity", names=list[str])(names=["a"])
    other = copied(entity)
    other.names.append("b")
    assert entity.names == ["a"]
    assert not never_changes(type(entity))


@dataclass
class CountingDataclass:
    names: list[str]
    inner: Any = None
    made: int = 0

    def __post_init__(self):
        self.made += 1


class CountingStruct(msgspec.Struct, dict=True):
    names: list[str]
    inner: Any = None
    made: int = 0

    def __post_init__(self):
        self.made += 1


@attrs.define
class CountingAttrs:
    names: list[str]
    inner: Any = None
    made: int = 0

    def __attrs_post_init__(self):
        self.made += 1


class CountingModel(BaseModel):
    names: list[str]
    inner: Any = None
    made: int = 0

    def model_post_init(self, _context):
        self.made += 1


@pytest.mark.parametrize(
    "class_", [CountingDataclass, CountingStruct, CountingAttrs, CountingModel]
)
def test_a_copy_of_an_entity_is_not_made_by_its_class_again(class_):
    """What the class does with a new instance would change the entity."""
    entity = class_(names=["a"], inner={"a": class_(names=[])})
    other = copied(entity)
    assert other == entity
    assert (other.made, other.inner["a"].made) == (1, 1)
    other.names.append("b")
    other.inner["a"].names.append("b")
    assert (entity.names, entity.inner["a"].names) == (["a"], [])


def test_a_copy_of_a_struct_holds_what_the_struct_holds():
    """Itself, one value twice, and attributes that are no fields."""
    entity = CountingStruct(names=["a"])
    entity.inner, entity.same = entity, entity.names
    other = copied(entity)
    assert other is not entity
    assert other.inner is other
    assert other.same is other.names is not entity.names


def test_a_model_with_private_attributes_can_be_changed():
    """Frozen or not, these can be set."""
    assert not never_changes(FrozenWithPrivate)


def test_an_entity_that_would_lose_a_private_attribute_is_no_snapshot():
    """It would come back changed."""
    snapshots = Snapshots(None, Computed, every=1, revision="1")
    loaded = {"purse-1": Loaded(Computed(amount=1), version=3, started=True)}
    assert snapshots.writing(loaded)[1] == []
    loaded["purse-1"].entity._seen = 4
    loaded["purse-1"].version = 6
    assert snapshots.writing(loaded)[1] == ["purse-1"]


def with_event(event: type) -> ProcessDeclaration:
    """Return what a process declares that writes and reads an event."""
    purse = Component("purse", entity=as_dataclass("Purse", total=(int, 0)), id="purse_id")
    purse.project(event)(lambda entity, event: None)
    purse.handle(as_dataclass("Pay", purse_id=str), key="purse_id")(
        lambda command, entity, context: None
    )
    return ProcessDeclaration.of(purse)


def test_an_event_can_be_read_under_any_of_a_field_s_names():
    """So a member of a group that writes one of them runs beside one that writes another."""
    by_alias = ConfigDict(populate_by_name=True)
    former = with_event(pydantic.create_model("Paid", amount=(int, ...)))
    renamed = with_event(
        pydantic.create_model("Paid", __config__=by_alias, amount=(int, Field(alias="sum")))
    )
    stored = ProcessDeclaration.from_json(renamed.to_json())
    assert [one.text for one in compare(stored, former)] == [
        "handlers here write the event Paid, which it cannot read, because the event lacks amount"
    ]


@every_kind
def test_a_handler_is_tested_with_classes_of_each_kind(kind):
    """It gets and returns them, and changes an entity that is one."""
    pay = kind("Pay", purse_id=str, amount=Decimal)
    paid = kind("Paid", purse_id=str, amount=Decimal)
    purse_class = kind("Purse", total=(Decimal, Decimal(0)))
    purse = Component("purse", entity=purse_class, id="purse_id", snapshot_every=2)

    @purse.handle(pay, key="purse_id")
    def handle(command, entity, context):
        return context.follow(command, paid)

    @purse.project(paid)
    def add(entity, event):
        entity.total += event.amount

    handled = check_deterministic(purse, pay(purse_id="1", amount=Decimal("1.50")))
    assert handled.events == [paid(purse_id="1", amount=Decimal("1.50"))]


# Without the libraries

_UNUSED = """
import sys
from dataclasses import dataclass
sys.modules |= dict.fromkeys(["attr", "attrs", "pydantic", "pydantic_core"])
from reservation import Component
from reservation.serialization import codec
import consumers

@dataclass
class Deposit:
    account_id: str
    deposit_id: str

account = Component("account", id="account_id")
account.handle(Deposit, key="deposit_id")(lambda command, entity, context: None)
account.check()
assert codec.decode(Deposit, codec.encode(Deposit("1", "a"))) == Deposit("1", "a")
try:
    codec.encode(object())
except TypeError:
    print("done")
"""


def test_no_library_is_needed_for_classes_that_are_not_there():
    """An import of one of them would fail here."""
    done = subprocess.run([sys.executable, "-c", _UNUSED], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("done\n", "")
