"""Sharing a category only where the messages of each entity stay in order."""

from types import MappingProxyType

import pytest

from bank.messages import Deposit, Deposited
from consumers.dead_letters.failure import Failure, Reason
from consumers.dead_letters.letters import DueLetter
from consumers.decisions.blocking import FailurePolicy
from consumers.group.administration import apply_changes, find_idle, plan_partitions
from consumers.group.membership import GroupShare
from consumers.group.positions import HeldPartition, Positions
from consumers.loop.consumer import Consumer
from consumers.runtime.stopping import Stop
from reservation import Component, Metadata, PositionInEvents, follow
from reservation.errors import GroupError, IdempotenceKeyError
from reservation.maintenance.entity_order import check_order
from tests.bank import batch, claim, new_batch, session
from tests.controls import COMMANDS, TIME, deposit
from tests.idempotence import counts, drained, effects, purse
from tests.processes import Started, run_cli

APP = """
from dataclasses import dataclass
from reservation import Component

@dataclass(frozen=True)
class Deposit:
    account_id: str
    deposit_id: str

account = Component("account", id="account_id")
account.reserve(Deposit, into="accountTransaction", key="deposit_id")
account.handle(Deposit)(lambda *_: None)
"""
RESERVED = "purseTransaction"
WAY_OUT = "entity='account_id'), with formerly='deposit_id'"


@pytest.fixture
def by_key(tmp_path, database_url):
    """Give the command line of a component that reserves by the key alone."""
    (tmp_path / "app.py").write_text(APP)

    def run(*arguments):
        return run_cli(
            arguments[0],
            "app:account",
            *arguments[1:],
            "--app-dir",
            str(tmp_path),
            env={"RESERVATION_DATABASE_URL": database_url},
        )

    return run


def reserving(**options):
    component = Component("account", id="account_id")
    component.reserve(Deposit, **{"into": "accountTransaction", "key": "deposit_id"} | options)
    component.handle(Deposit)(lambda *_: None)
    return component


@pytest.mark.parametrize(
    "options",
    [{}, {"entity": "deposit_id"}, {"key": lambda command: command.account_id}],
    ids=["key", "another field", "function"],
)
def test_streams_that_the_entity_does_not_lead_are_not_shared(options):
    """A category whose streams the entity does not lead has one partition only."""
    component = reserving(**options)
    check_order(component, "accountTransaction", 1)
    check_order(component, "account:command", 2)
    with pytest.raises(GroupError, match=r"entity='account_id'\), with formerly="):
        check_order(component, "accountTransaction", 2)


@pytest.mark.parametrize(
    "options",
    [{"entity": "account_id"}, {"key": ("account_id", "deposit_id")}, {"into": None}],
    ids=["entity", "key", "within"],
)
def test_streams_that_the_entity_leads_are_shared(options):
    """Streams that the entity leads may be in several partitions."""
    component = reserving(**options)
    for category in ("accountTransaction", "account:command"):
        check_order(component, category, 16)


@pytest.mark.parametrize(
    "arguments",
    [
        ("start", "--workers", "2"),
        ("start", "--partitions", "2"),
        ("start", "--member", "0", "--size", "2"),
        ("start", "--only", "reserved", "--workers", "2"),
        ("partitions", "2"),
        ("partitions", "2", "--category", "accountTransaction"),
    ],
)
def test_command_lines_that_would_share_such_a_category_refuse(by_key, connection, arguments):
    """A command line that would share such a category exits with 2 and stores nothing."""
    done = by_key(*arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: accountTransaction cannot have ")
    assert WAY_OUT in line
    assert connection.execute("SELECT count(*) FROM reservation.groups").fetchone() == (0,)


def test_a_group_that_has_several_partitions_already_is_refused(by_key, connection):
    """A group with several partitions is refused; reducing it to one is allowed."""
    connection.execute(
        "INSERT INTO reservation.groups (consumer, category, partitions)"
        " VALUES ('account', 'accountTransaction', 4)"
    )
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, epoch)"
        " SELECT 'account', 'accountTransaction', n, 1 FROM generate_series(0, 3) AS n"
    )
    done = by_key("start")
    assert done.returncode == 2
    assert "accountTransaction cannot have 4 partitions" in done.stderr
    assert by_key("partitions", "1").returncode == 0


@pytest.mark.parametrize("stored", [False, True])
def test_a_consumer_refuses_by_itself(database_url, connection, stored):
    """A consumer refuses to share such a category also without the command line."""
    if stored:
        connection.execute(
            "INSERT INTO reservation.groups (consumer, category, partitions)"
            " VALUES ('account', 'accountTransaction', 2)"
        )
    share = GroupShare() if stored else GroupShare(2)
    with session(database_url) as opened, Stop() as stop:
        consumer = Consumer(opened, reserving(), "accountTransaction", share=share)
        with pytest.raises(GroupError, match="cannot have 2 partitions"):
            consumer.run(stop)
    members = connection.execute("SELECT count(*) FROM reservation.members").fetchone()
    assert members == (0,)


def test_a_command_category_may_have_several_partitions(by_key):
    """A command category may have several partitions, because the sender named its streams."""
    done = by_key("partitions", "2", "--category", "account:command")
    assert done.returncode == 0, done.stderr


def in_partitions(connection, component, messages):
    """Run a batch of a shared command category; return the counts."""
    category = component.command_category
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, epoch)"
        " SELECT %s, %s, n, 1 FROM generate_series(0, 1) AS n",
        [component.name, category],
    )
    held = [HeldPartition(0, 0, 1), HeldPartition(1, 0, 1)]
    positions = Positions(component.name, category, 2, held)
    return new_batch(connection, component, category).run(
        positions, messages, policy=FailurePolicy()
    )


def test_a_message_outside_its_entitys_partition_is_no_false_duplicate(connection, store):
    """A message outside its entity's partition is a dead letter, not a false duplicate."""
    store.write(deposit("d1"), "purse:command-random")
    store.write(deposit("d2", account="9"), "purse:command-9+anything")
    result = in_partitions(connection, purse(PositionInEvents()), 2)
    assert result.counts == {"dead": 1, "handled": 1}
    (letter,) = result.letters
    assert letter.failure.reason == "key"
    assert "send it to a stream whose id begins with the entity's" in letter.failure.error


def test_a_message_outside_its_partition_is_refused_for_a_handler_that_asks_for_the_sequence(
    connection, store
):
    """The same holds for a handler that keeps the sequence in its entity."""
    store.write(deposit("d1"), "purse:command-random")
    component = purse()
    with pytest.raises(Exception, match="send it to a stream whose id begins with the entity's"):
        in_partitions(connection, component, 1)
    assert effects(store) == []


@pytest.mark.parametrize("once", [None, PositionInEvents()])
def test_with_one_partition_the_order_is_that_of_the_category(connection, store, once):
    """With one partition messages are in the order of the category, wherever senders write."""
    for n in range(3):
        store.write(deposit(f"d{n}"), f"purse:command-random{n}")
    assert drained(connection, purse(once)) == {"handled": 3}
    assert effects(store) == ["Deposited"] * 3


class Carried:
    """A purse whose reservations had 16 partitions at two positions, and now have one."""

    def __init__(self, connection, store, once):
        self.connection = connection
        self.component = purse(once)
        self.component.reserve(Deposit, into=RESERVED, key="deposit_id")
        self.change(16)
        for n in range(3):
            store.write(deposit(f"d{n}"), f"{RESERVED}-d{n}")
        connection.execute(  # as its consumer left it, which was ahead of the others
            "UPDATE reservation.positions SET position = 2"
            " WHERE partition = reservation.partition_of('purseTransaction-d1', 16)"
        )
        store.write(
            follow(deposit("d1"), Deposited, processed_time=TIME, sequence=2),
            "purse-123",
            metadata=Metadata(
                causation_message_stream_name="purseTransaction-d1",
                causation_message_position=0,
                causation_message_global_position=2,
                local_properties={"sequence": 2},
            ),
        )
        self.change(1)

    def change(self, partitions):
        self.connection.execute("DELETE FROM reservation.members")
        resting = find_idle(self.connection, "purse", RESERVED)
        apply_changes(self.connection, [plan_partitions(resting, partitions)])

    def run(self, limit, given_up=MappingProxyType({}), blocked=frozenset()):
        """Read the category to its end, so many messages at once; give what became of them."""
        positions = claim(self.connection, "purse", RESERVED)
        claimed = new_batch(self.connection, self.component, RESERVED)
        results = []
        while (
            result := claimed.run(positions, limit, policy=FailurePolicy(blocked, given_up))
        ).moved:
            results.append(result)
        return counts(results), [letter for result in results for letter in result.letters]


def retry(connection, component, letter):
    """Handle a letter of the reservation category again."""
    positions = claim(connection, component.name, RESERVED)
    stream_name = letter.message.stream_name
    ((partition,),) = connection.execute(
        "SELECT reservation.partition_of(%s, %s)", [stream_name, positions.size]
    ).fetchall()
    due = DueLetter(
        letter.message.global_position, letter.entity, 0, partition, None, letter.message
    )
    connection.execute("UPDATE reservation.dead_letters SET state = 'retry'")
    new_batch(connection, component, RESERVED).retry_transaction.run(positions, [due])


@pytest.mark.parametrize("limit", [1, 10])
def test_a_message_left_behind_by_former_partitions_is_no_false_duplicate(connection, store, limit):
    """A message left behind by former partitions is a dead letter, not a false duplicate."""
    carried = Carried(connection, store, PositionInEvents())
    handled, letters = carried.run(limit)
    assert handled == {"dead": 1, "handled": 1}
    assert [str(letter.message.stream_name) for letter in letters] == ["purseTransaction-d0"]
    assert [letter.failure.reason for letter in letters] == ["key"]
    assert effects(store) == ["Deposited"] * 2


def test_a_message_left_behind_is_refused_for_a_handler_that_asks_for_the_sequence(
    connection, store
):
    """The same holds for a handler that asks for the sequence."""
    carried = Carried(connection, store, None)
    with pytest.raises(IdempotenceKeyError, match="may have been handled before"):
        carried.run(1)


@pytest.mark.parametrize("once", [None, PositionInEvents()])
def test_a_retry_of_a_message_left_behind_is_refused(connection, store, once):
    """A retry of such a letter is refused, however the number of partitions changed since."""
    key_error = {1: (Failure(Reason.KEY, "it asked for the sequence"), 1)}
    carried = Carried(connection, store, once)
    _, (letter,) = carried.run(10, key_error if once is None else {})
    for partitions in (1, 2, 1):
        carried.change(partitions)
        with pytest.raises(IdempotenceKeyError, match="may have been handled before"):
            retry(connection, carried.component, letter)


def test_a_parked_message_left_behind_is_refused_too(connection, store):
    """The same holds for a message that was parked before it was handled."""
    carried = Carried(connection, store, None)
    _, letters = carried.run(10, blocked={"purse-123"})
    assert [letter.parked for letter in letters] == [True, True]
    for partitions in (1, 2, 1):
        carried.change(partitions)
        with pytest.raises(IdempotenceKeyError, match="may have been handled before"):
            retry(connection, carried.component, letters[0])


def test_a_letter_that_its_entity_waited_for_is_handled_again(connection, store):
    """A letter that blocked its entity is handled by a retry, in order."""
    component = purse(PositionInEvents())
    component.reserve(Deposit, into=RESERVED, key="deposit_id")
    for n in range(2):
        store.write(deposit(f"d{n}"), f"{RESERVED}-d{n}")
    policy = FailurePolicy(given_up={1: (Failure(Reason.HANDLER, "it failed"), 3)})
    result = batch(connection, RESERVED, component).run(10, policy=policy)
    assert result.counts == {"dead": 1, "parked": 1}
    for letter in result.letters:
        retry(connection, component, letter)
    assert effects(store) == ["Deposited"] * 2


def test_a_handler_that_does_not_ask_for_the_sequence_is_not_concerned(connection, store):
    """Handlers that do not use the sequence accept messages in any order."""
    store.write(deposit("d1"), "purse:command-random")
    component = Component("purse", id="account_id")
    component.handle(Deposit)(lambda *_: None)
    assert in_partitions(connection, component, 1).counts == {"handled": 1}


def test_more_workers_than_partitions_are_warned_of(connection, store, database_url):
    """A warning says that workers beyond the number of partitions stand by."""
    store.write(deposit(), COMMANDS)
    with Started(database_url) as started:
        for category in ("account:command", "accountTransaction"):
            started.wait_for("consumer_started", category=category)
        started.stop()
    with Started(database_url, "--workers", "2", "--only", "reserved") as started:
        warned = started.wait_for("workers_without_partition", category="accountTransaction")
        assert (warned["level"], warned["workers"], warned["partitions"]) == ("warning", 2, 1)
        assert "`reservation partitions bank:account 2`" in warned["hint"]
        started.wait_for("standing_by")
        started.stop()
        assert started.log.count("workers_without_partition") == 1
