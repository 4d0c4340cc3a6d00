"""Sharing a category only where the messages of each entity stay in order."""

import pytest

from bank.messages import Deposit, Deposited
from reservation import Component, Key, Metadata
from reservation.errors import GroupError
from reservation.strategies import PositionInEvents
from tests.apps.bank import drain
from tests.apps.idempotence import effects, purse
from tests.consumers.builders import stored_letter
from tests.support.commands import invoke_cli
from tests.support.controls import TIME, deposit

RESERVED = "purseTransaction"
LEFT_BEHIND = "may have been handled already"
OUTSIDE = "send it again to a stream whose id begins with the entity's"


def reserving(fields="deposit_id", per=None):
    """Return a component that reserves deposits under a key."""
    component = Component("account", id="account_id")
    component.handle(Deposit, key=Key(fields, per=per))(lambda *_: None)
    return component


# What the command line finds by its name in this module.
by_key = reserving()
by_another_field = reserving(per="deposit_id")
by_function = reserving(lambda command: command.account_id)
by_entity = reserving(per="account_id")
by_key_of_entity = reserving(("account_id", "deposit_id"))
purse_by_entity = purse(PositionInEvents(), add_key="deposit_id")


@pytest.fixture
def partition(connection, database_url):
    """Give a function that changes the number of partitions of what a component reads."""

    def run(component, number, *options):
        connection.execute("DELETE FROM reservation.members")
        env = {"RESERVATION_DATABASE_URL": database_url}
        app = f"tests.consumers.test_order:{component}"
        return invoke_cli("partitions", app, str(number), *options, env=env)

    return run


def check(done):
    """Check that a command succeeded."""
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("component", ["by_key", "by_another_field", "by_function"])
def test_streams_that_the_entity_does_not_lead_are_not_shared(partition, connection, component):
    """A category whose streams the entity does not lead has one partition only."""
    for options in ((), ("--category", "accountTransaction")):
        done = partition(component, 2, *options)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("Error: accountTransaction cannot have 2 partitions")
        assert "per='account_id')), with former_key=" in line
    assert connection.execute("SELECT count(*) FROM reservation.groups").fetchone() == (0,)
    check(partition(component, 2, "--category", "account:command"))


@pytest.mark.parametrize("component", ["by_entity", "by_key_of_entity"])
def test_streams_that_the_entity_leads_are_shared(partition, component):
    """Streams that the entity leads may be in several partitions."""
    check(partition(component, 16))


def test_a_group_that_has_several_partitions_already_is_refused(partition, connection):
    """A group with several partitions is refused; reducing it to one is allowed."""
    check(partition("by_entity", 4))
    with pytest.raises(GroupError, match="accountTransaction cannot have 4 partitions"):
        drain(connection, by_key)
    check(partition("by_key", 1))
    drain(connection, by_key)


def test_a_message_outside_its_entitys_partition_is_no_false_duplicate(
    partition, connection, store
):
    """A message outside its entity's partition is a dead letter, not a false duplicate."""
    check(partition("purse_by_entity", 2, "--category", "purse:command"))
    store.write(deposit("d1"), "purse:command-random")
    store.write(deposit("d2", account="9"), "purse:command-9+anything")
    counts = drain(connection, purse(PositionInEvents())).counts
    assert counts == {"dead": 1, "handled": 1}
    assert stored_letter(connection).reason == "key"
    assert OUTSIDE in stored_letter(connection).error


def test_a_message_outside_its_partition_concerns_handlers_that_ask_for_the_sequence(
    partition, connection, store
):
    """A handler that keeps the sequence in its entity refuses it, and others take it."""
    check(partition("purse_by_entity", 2, "--category", "purse:command"))
    store.write(deposit("d1"), "purse:command-random")
    drain(connection, purse())
    assert OUTSIDE in stored_letter(connection).error
    assert effects(store) == []
    store.write(deposit("d2"), "purse:command-other")
    component = Component("purse", id="account_id")
    component.message(Deposited)
    component.handle(Deposit, once=None)(lambda *_: None)
    connection.execute("DELETE FROM reservation.dead_letters")
    assert drain(connection, component).counts == {"handled": 1}


@pytest.mark.parametrize("once", [None, PositionInEvents()])
def test_with_one_partition_the_order_is_that_of_the_category(connection, store, once):
    """With one partition messages are in the order of the category, wherever senders write."""
    for n in range(3):
        store.write(deposit(f"d{n}"), f"purse:command-random{n}")
    assert drain(connection, purse(once)).counts == {"handled": 3}
    assert effects(store) == ["Deposited"] * 3


def left_behind(connection, store, partition):
    """Leave reservations as 16 partitions do, of which one was ahead, and make them one."""
    check(partition("purse_by_entity", 16, "--category", RESERVED))
    for n in range(3):
        store.write(deposit(f"d{n}"), f"{RESERVED}-d{n}")
    connection.execute(
        "UPDATE reservation.moves SET position = 2"
        " WHERE partition = reservation.partition_of('purseTransaction-d1', 16)"
    )
    store.write(
        Deposited("d1", "123", deposit("d1").amount, TIME, TIME, 2),
        "purse-123",
        metadata=Metadata(
            causation_message_stream_name="purseTransaction-d1",
            causation_message_position=0,
            causation_message_global_position=2,
            local_properties={"sequence": 2},
        ),
    )
    check(partition("purse_by_entity", 1, "--category", RESERVED))


BY_KEY = Key("deposit_id", per=None)


@pytest.mark.parametrize(("once", "batch_size"), [(None, 1), (PositionInEvents(), 10)])
def test_a_message_left_behind_by_former_partitions_is_no_false_duplicate(
    partition, connection, store, database_url, once, batch_size
):
    """It is a dead letter, also when it is retried after the partitions changed again."""
    left_behind(connection, store, partition)
    component = purse(once, add_key=BY_KEY)
    counts = drain(connection, component, batch_size=batch_size).counts
    assert counts == {"dead": 1, "handled": 1}
    env = {"RESERVATION_DATABASE_URL": database_url}
    for _ in range(2):
        left = stored_letter(connection)
        assert (left.stream_name, left.state, left.reason) == (f"{RESERVED}-d0", "dead", "key")
        assert LEFT_BEHIND in left.error
        for number in (2, 1):
            check(partition("purse_by_entity", number, "--category", RESERVED))
        check(invoke_cli("dead-letters", "retry", "--all", env=env))
        drain(connection, component)
    assert effects(store) == ["Deposited"] * 2
