"""``reservation check --full``: every message, decoded on Spark's workers."""

import json

import pytest

from tests.apps.bank import RESERVED, drain
from tests.apps.changing import raw
from tests.support.controls import COMMANDS, deposit, open_, withdraw


@pytest.fixture
def checked(command):
    """Give a function that runs the command."""

    def run(*options):
        done = command("check", "bank:account", "--json", *options)
        assert done.stderr == ""
        assert "secret" not in done.stdout
        return done.returncode, json.loads(done.stdout)

    return run


def test_the_workers_find_what_a_sample_of_everything_shows(connection, store, checked):
    """Each message is decoded once, and what cannot be is counted by category and type."""
    store.write([open_(), deposit(), withdraw()], COMMANDS)
    drain(connection)
    raw(connection, COMMANDS, "Rename", {})
    raw(connection, COMMANDS, "Deposit", {"amount": "secret"})
    data = {"depositId": "d9", "accountId": "9", "amount": 1, "time": "2026-01-01T00:00:00Z"}
    raw(connection, f"{RESERVED}-d9", "Deposit", data | {"branch": "x"})
    raw(connection, "account-9", "MoneyDeposited", {})
    status, full = checked("--full")
    assert (status, full["full"], full["sample"], full["inOrder"]) == (1, True, None, False)
    _, sampled = checked("--sample", "10000")
    for changing in ("time", "full", "sample"):
        full.pop(changing), sampled.pop(changing)
    assert full == sampled
    assert all(one["exact"] for one in full["types"])
    kinds = {one["kind"] for one in full["findings"] if one["severity"] == "finding"}
    assert kinds == {"reservation-names", "unknown-type", "unreadable"}


def test_every_message_is_decoded_and_not_a_sample(connection, store, checked):
    """One that cannot be decoded is found in the middle of many."""
    store.write([deposit(f"d{n}") for n in range(300)], COMMANDS)
    connection.execute("UPDATE message_store.messages SET data = '{}' WHERE global_position = 123")
    status, found = checked("--full")
    types = {(one["category"], one["type"]): one for one in found["types"]}
    deposits = types["account:command", "Deposit"]
    assert (deposits["messages"], deposits["lookedAt"]) == (300, 300)
    assert (status, deposits["unreadable"]) == (1, 1)
