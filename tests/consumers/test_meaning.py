"""Reissues across versions: two commands of one key are compared as what they mean today."""

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import Cursor

from reservation import Component, Key
from tests.apps.bank import drain
from tests.apps.changing import raw
from tests.apps.shops import HOWS, PAIRS, SENT, Sent, new, old, shop
from tests.support.stored_positions import store_position


def sent_to(connection, component, size, *messages):
    """Send commands, take all to its end, and return whether they were taken for reissues."""
    for message in messages:
        raw(connection, f"shop:command-{message[1]['shopId']}", *message)
    counts = drain(connection, component, batch_size=size).counts
    outcomes = ("reserved", "duplicate", "conflict")
    return Counter({name: count for name, count in counts.items() if name in outcomes})


@pytest.mark.parametrize("how", HOWS)
def test_a_reissue_is_what_it_means(connection, how):
    """Whichever of the two came first, in its batch or before, and wherever the copy is kept."""
    pairs = {
        (name, when): (*(keyed(one, f"{name}, {when}") for one in (first, again)), same)
        for name, (first, again, same) in PAIRS.items()
        for when in ("later", "together")
    }
    late = [pair for (_, when), pair in pairs.items() if when == "later"]
    together = [pair for (_, when), pair in pairs.items() if when == "together"]
    sent_to(connection, shop(how), 100, *(first for first, _, _ in late))
    rest = [again for _, again, _ in late]
    rest += [one for first, again, _ in together for one in (first, again)]
    counts = sent_to(connection, shop(how), 100, *rest)
    differ = {(name, when) for (name, when), (_, _, same) in pairs.items() if not same}
    conflicts = connection.execute(
        "SELECT m.data->>'buyId' FROM reservation.dead_letters JOIN message_store.messages m "
        "USING (global_position) WHERE reason = 'conflict'"
    )
    assert sorted(key for (key,) in conflicts) == sorted(map(", ".join, differ))
    assert counts["conflict"] == len(differ)
    assert counts["duplicate"] == len(pairs) - len(differ)


def keyed(message: Sent, key: str) -> Sent:
    """Return a command with a key and an entity of its own."""
    type_, data, version = message
    return type_, data | {"buyId": key, "shopId": key}, version


@dataclass(frozen=True)
class Bid:
    """The server takes its key, because its shape never changed."""

    shop_id: str
    buy_id: str
    price: Decimal
    currency: str = "EUR"


def bid(**fields: Any) -> Sent:
    return "Bid", {"shopId": "1", "buyId": "a", "price": 1.5} | fields, None


@pytest.mark.parametrize(
    ("first", "again", "outcome"),
    [
        (bid(price="secret"), bid(), "conflict"),
        (bid(), bid(price="secret"), "conflict"),
        (bid(price="secret"), bid(price="secret"), "duplicate"),
        (bid(price="secret"), bid(price="secret", currency="EUR"), "conflict"),
    ],
)
def test_what_cannot_be_decoded_is_compared_as_it_is_stored(connection, first, again, outcome):
    """A first copy that nobody can read any more stays in conflict with everything else."""
    component = Component("shop", id="shop_id")
    component.handle(Bid, key=Key("buy_id", per=None))(lambda *_: None)
    counts = sent_to(connection, component, 10, first, again)
    assert counts == {"reserved": 1, outcome: 1}


def test_a_first_copy_of_a_newer_version_is_in_conflict(connection):
    """It was reserved by a newer program, and what it means is not known here."""
    raw(connection, "shopTransaction-a", "Buy", new()[1], 3)
    assert sent_to(connection, shop(), 10, new()) == {"conflict": 1}


@dataclass(frozen=True)
class Exits:
    """Ends its process when a note is decoded, once a command without one was."""

    ends: ClassVar[bool] = False
    shop_id: str
    buy_id: str
    note: str = ""

    def __post_init__(self) -> None:
        if self.note and Exits.ends:
            raise SystemExit(3)


def key_of(command: Exits) -> str:
    Exits.ends = not command.note
    return "a"


def test_a_class_that_raises_anything_makes_a_conflict(connection, monkeypatch):
    """It ends no consumer."""
    monkeypatch.setattr(Exits, "ends", False)
    component = Component("shop", id="shop_id")
    component.handle(Exits, key=Key(key_of, per=None))(lambda *_: None)
    raw(connection, "shopTransaction-a", "Exits", {"shopId": "1", "buyId": "a", "note": "x"})
    store_position(connection, "shop", "shopTransaction", 1)  # it was handled before
    counts = sent_to(connection, component, 1, ("Exits", {"shopId": "1", "buyId": "a"}, None))
    assert counts == {"conflict": 1}


@dataclass(frozen=True)
class Other:
    shop_id: str
    buy_id: str


def test_another_command_of_the_key_is_in_conflict(connection):
    """And so is one that nobody declares."""
    component = shop()
    component.handle(Other, key=Key("buy_id", per=None, shared=True))(lambda *_: None)
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
    component.handle(Other, key=Key("buy_id", former_key="buy_id"))(lambda *_: None)
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
    execute, executed, numbers = Cursor.execute, [], []

    def count(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        executed.append(query)
        return execute(self, query, *arguments, **options)

    stored = {
        size: [old(buyId=f"{size}.{n}", shopId=f"{size}.{n}") for n in range(size)]
        for size in (2, 25)
    }
    sent_to(connection, shop(how), 100, *(one for of_size in stored.values() for one in of_size))
    for size, sent in stored.items():
        for n, (_, data, _) in enumerate(sent):
            raw(connection, SENT, *new(**data, price=1.5 + n % 2))
        with monkeypatch.context() as patched:
            patched.setattr(Cursor, "execute", count)
            done = drain(connection, shop(how), batch_size=100)
        assert done.counts["duplicate"] == (size + 1) // 2
        numbers.append(len(executed))
        executed.clear()
    assert max(numbers) < min(numbers) + 8, numbers  # of letters, and of heartbeats


messages = st.builds(
    lambda kind, key, price, currency, extra: (
        old(buyId=key, cents=price * 50)
        if kind == "old"
        else new(
            buyId=key, price=price / 2, **({"currency": currency} if currency else {}), **extra
        )
    ),
    st.sampled_from(["old", "new"]),
    st.sampled_from("abcdef"),
    st.integers(1, 2),
    st.sampled_from([None, "EUR", "USD"]),
    st.dictionaries(st.sampled_from(["sent", "note"]), st.sampled_from("xy"), max_size=2),
)


def compare_sizes(connection, examples):
    """Compare the outcome for each size of the batch with that of a model that decodes all."""

    @settings(max_examples=examples)
    @given(drawn=st.lists(messages, min_size=20, max_size=40), how=st.sampled_from(HOWS[:-1]))
    def check(drawn, how):
        expected, first = Counter[str](), dict[str, Any]()
        for type_, data, _ in drawn:
            price = (
                Decimal(data["cents"]) / 100 if type_ == "Order" else Decimal(str(data["price"]))
            )
            meaning = (price, data.get("currency", "EUR"))
            known = first.setdefault(data["buyId"], meaning)
            expected["duplicate" if known == meaning else "conflict"] += 1
        expected["duplicate"] -= len(first)
        expected["reserved"] = len(first)
        for size in (1, 2, 1000):
            connection.execute("TRUNCATE message_store.messages, reservation.dead_letters")
            connection.execute(
                "TRUNCATE reservation.leases, reservation.moves, reservation.groups CASCADE"
            )
            counts = sent_to(connection, shop(how), size, *drawn)
            assert counts == +expected

    check()


def test_the_outcome_is_the_same_for_every_size_of_the_batch(connection):
    """With few examples; `tests/soak/test_drawn_consumers.py` takes more."""
    compare_sizes(connection, 2)
