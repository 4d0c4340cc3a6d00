"""Keys are what the consumers take them for, by the declared type of each field."""

import json

import pytest

from tests.apps.bank import drain
from tests.apps.changing import raw
from tests.spark.builders import ROOT, numbers_of
from tests.spark.keyed import folding, keyed


@pytest.fixture
def send(connection):
    """Give a function that writes commands, those with the same data for the same entity."""

    def write(type_, *data):
        texts = [json.dumps(one) for one in data]
        for text, one in zip(texts, data, strict=True):
            entity = f"{type_}{texts.index(text)}"
            raw(connection, f"thing:command-{entity}", type_, {"thingId": entity} | one)

    return write


def keys(*values):
    return [{"key": value} for value in values]


@pytest.fixture
def counted(reconcile):
    """Give the counts of a component by the category of the reservations, those that are not 0."""

    def run(name):
        found = reconcile(app=f"tests.spark.keyed:{name}", app_dir=ROOT)
        return {
            part["reservationCategory"]: {
                name: count for name, count in numbers_of(part).items() if count
            }
            for part in found.report["categories"]
        }

    return run


def test_a_value_of_another_type_is_no_key(connection, send, counted):
    """Its command is a dead letter and reserves nothing."""
    send("Named", *keys("5", 5, True, ["5"], {"5": 5}, None, "5", "", "a+b"))
    send("Counted", *keys(5, "5", 5.0, 5.5, True, 5, 10**30))
    send(
        "Parted", *({"thingId": "1", "key": "p"} | part for part in ({}, {"part": 1}, {"part": 2}))
    )
    drain(connection, keyed)
    named = {"commands": 9, "keys": 2, "keyless": 6, "duplicates": 1, "reserved": 2, "dead": 6}
    numbers = {"commands": 7, "keys": 2, "keyless": 4, "duplicates": 1, "reserved": 2, "dead": 4}
    # A field that the data leaves out has its default.
    parted = {"commands": 3, "keys": 2, "duplicates": 1, "reserved": 2}
    assert counted("keyed") == {"named": named, "counted": numbers, "parted": parted}


def test_keys_of_a_function_are_made_by_the_components_own_code(connection, send, counted):
    """As those of a class that changes its fields; a command without one is not reserved."""
    send("Named", *keys("a", "A", "b", "-", None))
    send("Lowered", *keys("c", "C", "d"))
    drain(connection, folding)
    found = counted("folding")
    assert found["named"].items() >= {"commands": 5, "keys": 2, "keyless": 2, "reserved": 2}.items()
    assert found["lowered"].items() >= {"commands": 3, "keys": 2, "reserved": 2}.items()
    assert not {"orphans", "missing", "conflict_mismatches"} & {*found["named"], *found["lowered"]}
