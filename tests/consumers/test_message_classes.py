"""Components whose messages and entities are of each kind of class, in a real store."""

import json
from decimal import Decimal
from itertools import permutations

import pytest

from reservation import MessageStore
from reservation.errors import EncodeError
from tests.apps.bank import drain
from tests.apps.changing import raw
from tests.apps.purses import KINDS, Purses

REASONS = {
    "dataclasses": "ValueError in of_dataclasses.<locals>.Pay.__post_init__ (tests/apps/purses.py:",
    "structs": "ValueError in of_structs.<locals>.Pay.__post_init__ (tests/apps/purses.py:",
    "attrs classes": "Refused by <Validator for x > 0> - at `$.amount`",
    "models": "Input should be greater than 0 - at `$.amount`",
}


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


def send(store: MessageStore, purses: Purses, key: str, amount: str = "1.50", **others) -> None:
    store.send(
        purses.pay(purse_id="1", pay_id=key, amount=Decimal(amount), **others), purses.component
    )


def letters(connection) -> list[tuple[str, str]]:
    """Return the reason and the error of each dead letter."""
    return connection.execute(
        "SELECT reason, error FROM reservation.dead_letters WHERE state = 'dead'"
    ).fetchall()


def test_a_component_of_each_kind_takes_each_command_once(connection, store, kind):
    """A reissue is a duplicate, other content is a conflict, and the entity has a snapshot."""
    purses = KINDS[kind]()
    send(store, purses, "a")
    send(store, purses, "b", "2.50")
    assert drain(connection, purses.component).counts["handled"] == 2
    send(store, purses, "a", sent_by="somebody else")
    send(store, purses, "a", "7")
    counts = drain(connection, purses.component).counts
    assert (counts["duplicate"], counts["conflict"]) == (1, 1)
    assert [reason for reason, _ in letters(connection)] == ["conflict"]
    assert [json.loads(m.data) for m in store.read_stream("purse-1")] == [
        {"purseId": "1", "amount": 1.5},
        {"purseId": "1", "amount": 2.5},
    ]
    ((snapshot,),) = connection.execute("SELECT data::text FROM reservation.snapshots").fetchall()
    assert json.loads(snapshot) == {"total": 4.0, "coins": [{"worth": 1.5}, {"worth": 2.5}]}


def test_an_entity_goes_on_from_its_snapshot(connection, store, kind):
    """It is read from there, also where the events before are gone."""
    purses = KINDS[kind]()
    for n in range(3):
        send(store, purses, f"a{n}")
    drain(connection, purses.component)
    connection.execute(
        "DELETE FROM message_store.messages WHERE stream_name = 'purse-1' AND position < 2"
    )
    send(store, purses, "b")
    send(store, purses, "c")
    drain(connection, purses.component)
    ((total,),) = connection.execute("SELECT data->>'total' FROM reservation.snapshots").fetchall()
    assert Decimal(total) == Decimal("7.50")


def test_a_message_that_its_class_refuses_is_dead_at_once_with_the_reason(connection, store, kind):
    """As one that cannot be decoded is; its value is nowhere in the letter."""
    purses = KINDS[kind]()
    raw(connection, "purse:command-1", "Pay", {"purseId": "1", "payId": "x", "amount": -12345})
    send(store, purses, "a")
    drain(connection, purses.component)
    ((reason, error),) = letters(connection)
    assert reason == "undecodable"
    assert REASONS[kind] in error
    assert "12345" not in error
    assert "SECRET" not in error
    assert "\n" not in error


def test_a_message_that_its_class_refuses_is_the_senders_error(store, kind):
    """Where the class lets it be made at all, as a copy of a model."""
    purses = KINDS[kind]()
    if kind != "models":
        with pytest.raises(ValueError, match=r"SECRET|must be"):
            send(store, purses, "a", "-1")
        return
    good = purses.pay(purse_id="1", pay_id="a", amount=1)
    with pytest.raises(EncodeError, match=r"greater than 0 - at `\$.amount`"):
        store.send(good.model_copy(update={"amount": Decimal(-1)}), purses.component)


@pytest.mark.parametrize(("before", "after"), [*permutations(KINDS, 2)])
def test_a_class_may_become_one_of_another_kind(connection, store, before, after):
    """Reissues stay duplicates, by their text and by their meaning, and snapshots stay right."""
    send(store, KINDS[before](), "a")
    send(store, KINDS[before](), "b")
    drain(connection, KINDS[before]().component)
    purses = KINDS[after]()
    send(store, purses, "a")
    # As a sender of before wrote it, who did not know the field yet.
    raw(connection, "purse:command-1", "Pay", {"purseId": "1", "payId": "b", "amount": 1.50})
    send(store, purses, "c", "1")
    send(store, purses, "d", "1")
    counts = drain(connection, purses.component).counts
    assert (counts["duplicate"], counts["conflict"]) == (2, 0)
    ((total,),) = connection.execute("SELECT data->>'total' FROM reservation.snapshots").fetchall()
    assert Decimal(total) == 5
