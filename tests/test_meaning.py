"""Reissues across versions: two commands of one key are compared as what they mean today."""

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import Cursor

from reservation import Component
from reservation.messages.comparison import same_content
from tests.bank import batch
from tests.changing import raw
from tests.shops import HOWS, PAIRS, SENT, Sent, new, old, shop

SIZES = [1, 2, 1000]


def sent_to(connection, component, size, *messages):
    """Send messages, take the commands to their end, and return what became of them."""
    for message in messages:
        raw(connection, SENT, *message)
    one, counts = batch(connection, "shop:command", component), Counter[str]()
    while (result := one.run(size)).read:
        counts += result.counts
    return counts


@pytest.mark.parametrize("together", [False, True], ids=["later", "together"])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("first", "again", "same"), PAIRS.values(), ids=PAIRS)
def test_a_reissue_is_what_it_means(connection, how, first, again, same, together):
    """Whichever of the two came first, in its batch or before, and wherever the copy is kept."""
    component = shop(how)
    if together:
        counts = sent_to(connection, component, 10, first, again)
    else:
        counts = sent_to(connection, component, 10, first)
        counts += sent_to(connection, component, 10, again)
    assert (counts["duplicate"], counts["conflict"]) == (int(same), int(not same))
    reasons = connection.execute("SELECT reason FROM reservation.dead_letters").fetchall()
    assert reasons == ([] if same else [("conflict",)])


@pytest.mark.parametrize(
    ("first", "again", "outcome"),
    [
        (new(price="secret"), new(), "conflict"),
        (new(), new(price="secret"), "conflict"),
        (new(price="secret"), new(price="secret"), "duplicate"),
        (new(price="secret"), new(price="secret", currency="EUR"), "conflict"),
        (("Buy", new()[1], 3), new(), "conflict"),
    ],
)
def test_what_cannot_be_decoded_is_compared_as_it_is_stored(connection, first, again, outcome):
    """A first copy that nobody can read any more stays in conflict with everything else."""
    counts = sent_to(connection, shop("server"), 10, first, again)
    assert counts == {"reserved": 1, outcome: 1}


@dataclass(frozen=True)
class Exits:
    """Ends its process when it is decoded, unless somebody is careful."""

    shop_id: str
    buy_id: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.note:
            raise SystemExit(3)


def test_a_class_that_raises_anything_makes_a_conflict(connection):
    """It ends no consumer."""
    component = Component("shop", id="shop_id")
    component.reserve(Exits, key=lambda command: "a", into="shopTransaction")
    component.handle(Exits)(lambda *_: None)
    raw(connection, "shopTransaction-a", "Exits", {"shopId": "1", "buyId": "a", "note": "x"})
    counts = sent_to(connection, component, 1, ("Exits", {"shopId": "1", "buyId": "a"}, None))
    assert counts == {"conflict": 1}


@dataclass(frozen=True)
class Other:
    shop_id: str
    buy_id: str


def test_another_command_of_the_key_is_in_conflict(connection):
    """And so is one that nobody declares."""
    component = shop("server")
    component.reserve(Other, key="buy_id", into="shopTransaction")
    component.handle(Other)(lambda *_: None)
    raw(connection, "shopTransaction-b", "Unknown", {"shopId": "1", "buyId": "b"})
    other: Sent = ("Other", {"shopId": "1", "buyId": "b"}, None)
    same_key: Sent = ("Other", {"shopId": "1", "buyId": "a"}, None)
    assert sent_to(connection, component, 10, new(), same_key, other) == {
        "reserved": 1,
        "conflict": 2,
    }


def test_what_is_reserved_under_a_former_name_of_its_stream_is_compared_too(connection):
    """The letter names the stream that it is in."""
    component = Component("shop", id="shop_id")
    component.reserve(
        Other, key="buy_id", entity="shop_id", into="shopTransaction", formerly="buy_id"
    )
    component.handle(Other)(lambda *_: None)
    data = {"shopId": "1", "buyId": "a"}
    raw(connection, "shopTransaction-a", "Other", data | {"old": 1})
    raw(connection, "shopTransaction-b", "Other", {"shopId": "2", "buyId": "b"})
    counts = sent_to(
        connection, component, 10, ("Other", data, None), ("Other", data | {"buyId": "b"}, None)
    )
    assert counts == {"duplicate": 1, "conflict": 1}
    ((error,),) = connection.execute("SELECT error FROM reservation.dead_letters").fetchall()
    assert "the key of shopTransaction-b," in error


# Batches


@pytest.mark.parametrize("how", HOWS)
def test_a_batch_takes_a_constant_number_of_statements(connection, how, monkeypatch):
    """However many of its commands the server finds to be different."""
    executed = []

    def execute(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        executed.append(query)
        return as_it_was(self, query, *arguments, **options)

    component, as_it_was, numbers = shop(how), Cursor.execute, []
    for size in (1, 2, 50):
        stored = [old(buyId=f"{size}.{n}", shopId=f"{size}.{n}") for n in range(size)]
        sent_to(connection, component, 100, *stored)
        for n, (_, data, _) in enumerate(stored):
            raw(connection, SENT, *new(**data, price=1.5 + n % 2))
        one = batch(connection, "shop:command", component)
        with monkeypatch.context() as patched:
            patched.setattr(Cursor, "execute", execute)
            assert one.run(100).counts["duplicate"] == (size + 1) // 2
        numbers.append(len(executed))
        executed.clear()
    first, *others = numbers
    assert first > 3
    assert set(others) == {first + 2}, numbers  # of the letters, where there are conflicts


messages = st.builds(
    lambda kind, key, price, currency, extra: (
        old(buyId=key, cents=price * 50)
        if kind == "old"
        else new(
            buyId=key, price=price / 2, **({"currency": currency} if currency else {}), **extra
        )
    ),
    st.sampled_from(["old", "new"]),
    st.sampled_from("ab"),
    st.integers(1, 2),
    st.sampled_from([None, "EUR", "USD"]),
    st.dictionaries(st.sampled_from(["sent", "note"]), st.sampled_from("xy"), max_size=2),
)


@settings(max_examples=25)
@given(drawn=st.lists(messages, min_size=2, max_size=8), how=st.sampled_from(HOWS[:-1]))
def test_the_outcome_is_the_same_for_every_size_of_the_batch(connection, drawn, how):
    """And it is that of a model which decodes all of them."""
    expected, first = Counter[str](), dict[str, Any]()
    for type_, data, _ in drawn:
        price = Decimal(data["cents"]) / 100 if type_ == "Order" else Decimal(str(data["price"]))
        meaning = (price, data.get("currency", "EUR"))
        known = first.setdefault(data["buyId"], meaning)
        expected["duplicate" if known == meaning else "conflict"] += 1
    expected["duplicate"] -= len(first)
    expected["reserved"] = len(first)
    for size in SIZES:
        connection.execute("TRUNCATE message_store.messages, reservation.dead_letters")
        connection.execute("TRUNCATE reservation.positions, reservation.groups CASCADE")
        counts = sent_to(connection, shop(how), size, *drawn)
        counts.pop("handled", None)  # of copies within the category
        assert counts == +expected


# Content


@dataclass
class Line:
    article: str
    pieces: int = 1


@dataclass
class Order:
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Any] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)
    total: Decimal = Decimal(0)
    when: str = ""
    note: Any = None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Order(), Order(), True),
        (Order([Line("a")]), Order([Line("a", 1)]), True),
        (Order([Line("a")]), Order([Line("a", 2)]), False),
        (Order([Line("a"), Line("b")]), Order([Line("b"), Line("a")]), False),
        (Order([Line("a")]), Order([Line("a"), Line("a")]), False),
        (Order(by_name={"a": 1, "b": 2}), Order(by_name={"b": 2, "a": 1}), True),
        (Order(by_name={"a": 1}), Order(by_name={"b": 1}), False),
        (Order(by_name={"a": 1}), Order(by_name={"a": 1, "b": None}), False),
        (Order(tags={"a", "b"}), Order(tags={"b", "a"}), True),
        (Order(tags={"a"}), Order(tags={"b"}), False),
        (Order(total=Decimal("1.0")), Order(total=Decimal("1.00")), True),
        (Order(note=1), Order(note=1.0), True),
        (Order(note=1), Order(note=True), False),
        (Order(note=False), Order(note=0), False),
        (Order(note=True), Order(note=True), True),
        (Order(note="1"), Order(note=1), False),
        (Order(note=None), Order(note=0), False),
        (Order(note=[1, "a"]), Order(note=[1.0, "a"]), True),
        (Order(when="then"), Order(when="now"), True),
        (Line("a"), Order(), False),
        ("a", "a", False),
    ],
)
def test_contents_are_compared_field_by_field(one, other, same):
    """By value, and without what may differ."""
    assert same_content(one, other, ["when"]) is same
    assert same_content(other, one, ["when"]) is same
