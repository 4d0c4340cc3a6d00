"""Sending a command to the component that handles it: the stream follows from the declaration."""

import asyncio
import uuid
from dataclasses import dataclass

import pytest

from bank import account
from reservation import AsyncMessageStore, Component, Metadata
from reservation.errors import (
    ExpectedVersionError,
    IdempotenceKeyError,
    StoreError,
    UnknownTypeError,
)
from reservation.strategies import Processed
from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_


@dataclass
class Ship:
    """A command whose id is a number."""

    parcel: int


@dataclass
class Shipped:
    """No command."""

    parcel: int


def test_a_command_goes_to_the_stream_that_its_component_reads(store, connection):
    """Commands that initiate and commands that are reserved are sent alike, and are handled."""
    message_id = uuid.uuid4()
    assert store.send(open_(), account) == 0
    assert store.send(deposit(), account, id=message_id, metadata=Metadata(reply_stream_name="r"))
    first, second = store.read_stream(COMMANDS)
    assert (first.type, second.type) == ("Open", "Deposit")
    assert second.id == str(message_id)
    assert second.metadata.reply_stream_name == "r"
    assert store.send(deposit(), account, id=message_id, metadata=second.metadata) == 1
    drain(connection, account)
    assert [event.type for event in store.read_stream("account-123")] == ["Opened", "Deposited"]


def test_the_id_is_that_of_the_component(store):
    """The id is taken from the field that the component names, whatever its type is."""
    parcels = Component("parcel", id="parcel")
    parcels.handle(Ship, once=Processed())(lambda command, _, context: None)
    assert store.send(Ship(7), parcels) == 0
    assert store.last_message("parcel:command-7").decode(Ship) == Ship(7)


def test_the_expected_version_is_that_of_the_stream(store):
    """The expected version is compared as `write` compares it."""
    store.send(open_(), account, expected_version=-1)
    with pytest.raises(ExpectedVersionError):
        store.send(deposit(), account, expected_version=-1)


def test_both_clients_send_alike(store, database_url):
    """The client for an event loop sends to the same stream."""

    async def send():
        async with await AsyncMessageStore.open(database_url) as later:
            return await later.send(deposit(), account)

    assert asyncio.run(send()) == 0
    assert store.stream_version(COMMANDS) == 0


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        (Shipped(1), "'parcel' does not handle it"),
        (Ship, "Cannot send Ship to .*: send one command at a time, an instance of its class"),
        ("Deposit", "Cannot send str to the component 'parcel': send one command"),
        ([deposit()], "Cannot send list to the component 'parcel': send one command"),
        (None, "send one command"),
    ],
)
def test_what_the_component_does_not_handle_is_refused(store, what, problem):
    """What the component does not handle is not written anywhere."""
    parcels = Component("parcel", id="parcel")
    parcels.handle(Ship, once=None)(lambda command, _, context: None)
    with pytest.raises(UnknownTypeError, match=problem):
        store.send(what, parcels)


def test_a_class_of_the_same_name_is_another(store):
    """A class is told from another one that has its name."""
    other = dataclass(type("Deposit", (), {"__annotations__": {"account_id": str}}))
    with pytest.raises(UnknownTypeError, match="Cannot send Deposit"):
        store.send(other("123"), account)


def test_a_name_of_a_stream_is_no_component(store):
    """A caller who means `write` is told so."""
    with pytest.raises(StoreError, match=r"not a str; store\.write takes the name of a stream"):
        store.send(deposit(), COMMANDS)


@pytest.mark.parametrize("entity", [None, ""])
def test_an_id_that_names_no_stream_is_refused(store, entity):
    """An entity's id that cannot name a stream is refused before anything is written."""
    with pytest.raises(IdempotenceKeyError, match="account_id"):
        store.send(deposit(account=entity), account)
