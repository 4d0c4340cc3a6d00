"""What a message costs does not grow with what its entity holds, where that cannot be changed."""

import json
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from reservation import Write
from tests.apps.bank import drain
from tests.consumers.test_immutable_entities import Book, Booked, Hotel, Inn, Motel, hotel_of
from tests.support.commands import invoke_cli

ROOT = Path(__file__).parents[2]
APP = "tests.soak.test_large_entities"
ITEMS = 50_000

inn, motel = hotel_of(Inn), hotel_of(Motel)


def with_items(store, hotel_id, items):
    """Store the events of a hotel with so many bookings."""
    store.write([Booked(f"{hotel_id}-{n}") for n in range(items)], f"hotel-{hotel_id}")


def seconds_for(connection, store, entity, hotel_id):
    """Return how long 200 messages of a hotel take, once it is loaded."""
    at = []

    def handler(one, command):
        at.append(time.perf_counter())
        return Booked(command.booking_id)

    store.write_batch(
        [
            Write(Book(f"{hotel_id}-{n}-new", hotel_id), f"hotel:command-{hotel_id}")
            for n in range(201)
        ]
    )
    assert drain(connection, hotel_of(entity, handler)).counts == {"handled": 201}
    return at[-1] - at[0]


@pytest.mark.parametrize("entity", [Hotel, Inn])
def test_what_a_message_costs_does_not_grow_with_its_entity(connection, store, entity):
    """With 50,000 items it is far from the hundredfold that a copy for each message takes."""
    with_items(store, "1", ITEMS)
    small = min(seconds_for(connection, store, entity, f"2{n}") for n in range(3))
    large = seconds_for(connection, store, entity, "1")
    assert large < small * 10 + 0.1


def test_entities_whose_copies_take_long_are_named_once(connection, store, database_url):
    """The log says once what a copy takes and what to do, and a check says it beforehand."""

    def check(name):
        words = ["check", f"{APP}:{name}", "--app-dir", str(ROOT), "--json"]
        done = invoke_cli(*words, "--database-url", database_url)
        return json.loads(done.stdout)["findings"]

    with_items(store, "1", ITEMS // 5)
    (found,) = check("motel")
    assert (found["kind"], found["severity"], found["name"]) == ("entities", "note", "hotel-1")
    assert "a copy of the Motel takes" in found["text"]
    assert "immutables.Map" in found["action"]
    assert check("inn") == []
    store.write_batch([Write(Book(f"new-{n}"), "hotel:command-1") for n in range(300)])
    with capture_logs() as logs:
        drain(connection, motel)
    (logged,) = [one for one in logs if one["event"] == "entity_copies_slow"]
    assert (logged["entity"], logged["stream_name"]) == ("Motel", "hotel-1")
    assert logged["milliseconds"] > 0
    assert "immutables.Map" in logged["hint"]
