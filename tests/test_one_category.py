"""Reservation within the command category: the copies are there too, for the same consumer."""

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

import pytest

from bank.messages import Deposit, Withdraw
from consumers.group.positions import HeldPartition, Positions
from reservation import Component, MessageIdInEvents, MessageStore, Metadata, PositionInEvents
from reservation.errors import (
    DeclarationError,
    IdempotenceKeyError,
    LockTimeoutError,
    MessageIdConflictError,
)
from reservation.idempotence.server_keys import server_rules
from reservation.postgres.connection import connect
from tests.bank import batch, batches, new_batch
from tests.controls import LATER, deposit, withdraw
from tests.idempotence import PURSE, drained, effects, purse, redeliver

CATEGORY = "purse:command"


def by_field(once=None, **options):
    """Return a purse whose keys the server takes."""
    component = purse(once, **options)
    component.reserve(Deposit, key="deposit_id", volatile="time")
    component.reserve(Withdraw, key="withdrawal_id")
    return component


def by_function(once=None, **options):
    """Return one whose commands are read whole."""
    component = purse(once, **options)
    component.reserve(Deposit, key=lambda command: command.deposit_id, volatile="time")
    component.reserve(Withdraw, key=lambda command: command.withdrawal_id)
    return component


KINDS = pytest.mark.parametrize("make", [by_field, by_function])


def test_the_server_takes_the_keys_of_fields():
    """The server extracts keys of fields; otherwise the two kinds below would be the same."""
    assert '"into": null' in server_rules(by_field().reservations)
    assert server_rules(by_function().reservations) == "[]"
    assert by_field().reservation_categories == []


@KINDS
def test_the_copy_is_beside_the_command_and_handled_by_the_same_consumer(connection, store, make):
    """The copy is marked as one, in a stream named by the command's stream and the key."""
    metadata = Metadata(correlation_stream_name="order-1", local_properties={"mine": 1})
    store.write(deposit(), PURSE, metadata=metadata)
    assert drained(connection, make()) == {"reserved": 1, "handled": 1}
    (copy,) = store.read_stream(f"{PURSE}+d1")
    (command,) = store.read_stream(PURSE)
    assert (copy.type, copy.decode(Deposit)) == ("Deposit", deposit())
    assert copy.metadata.local_properties == {"reserved": True}
    assert copy.metadata.causation_message_global_position == command.global_position
    assert copy.metadata.correlation_stream_name == "order-1"
    (event,) = store.read_stream("purse-123")
    assert event.metadata.causation_message_stream_name == copy.stream_name
    assert event.metadata.local_properties == {}


@KINDS
def test_a_reissue_is_a_duplicate_and_other_content_a_conflict(connection, store, make):
    """In the same batch or later, a reissue is a duplicate and other content a conflict."""
    sent = [deposit("d1"), deposit("d1", time=LATER), deposit("d1", "99"), deposit("d2")]
    for wanted in (
        {"reserved": 2, "duplicate": 1, "conflict": 1, "handled": 2},
        {"duplicate": 3, "conflict": 1},
    ):
        store.write(sent, PURSE)
        assert drained(connection, make()) == wanted
    assert effects(store) == ["Deposited", "Deposited"]


@KINDS
def test_a_redelivery_takes_no_effect_again(connection, store, make):
    """A redelivered command is a duplicate of its copy, which the strategy recognizes."""
    store.write([deposit("d1"), withdraw("w1", "999")], PURSE)
    component = make(MessageIdInEvents())
    drained(connection, component)
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 4}
    assert effects(store) == ["Deposited"]


@KINDS
def test_without_a_strategy_the_ids_of_the_events_are_the_second_guard(connection, store, make):
    """Without a strategy a batch that is run with care recognizes copies by event ids."""
    store.write([deposit("d1"), deposit("d2")], PURSE)
    drained(connection, make())
    redeliver(connection)
    claimed = batch(connection, CATEGORY, make())
    with pytest.raises(MessageIdConflictError):
        claimed.run(100)
    assert claimed.run(100, careful=True).counts == Counter(duplicate=2, redelivered=2)


@KINDS
def test_a_batch_run_with_care_locks_its_own_category(database_url, connection, store, make):
    """A batch run with care locks its own category, to which it writes."""
    outcomes = []
    component = make()
    store.write(deposit(), PURSE)
    claimed = batch(connection, CATEGORY, component)
    claimed.run(10)
    with connect(database_url, autocommit=True) as other:
        other.execute("SET lock_timeout = '50ms'")

        def handle(command, entity, context):
            with pytest.raises(LockTimeoutError):
                MessageStore(other).write(deposit("d2"), PURSE)
            outcomes.append("held off")

        component.handlers["Deposit"] = handle
        # A new one, which has not written there yet.
        again = batch(connection, CATEGORY, component)
        assert again.run(10, careful=True).counts == Counter(handled=1)
    assert outcomes == ["held off"]


@KINDS
@pytest.mark.parametrize(
    ("sent_to", "stream"),
    [(CATEGORY, "-d1"), (f"{CATEGORY}-1-2", "-1-2+d1"), (f"{CATEGORY}-1+2", "-1+2+d1")],
)
def test_the_name_is_that_of_the_commands_stream_and_the_key(
    connection, store, make, sent_to, stream
):
    """The copy's stream is named by all ids of the command's stream and the key."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::text, %s, 'Deposit', %s)",
        [
            sent_to,
            '{"depositId": "d1", "accountId": "123", "amount": 1, "time": "2026-01-01T00:00:00Z"}',
        ],
    )
    assert drained(connection, make()) == {"reserved": 1, "handled": 1}
    assert store.stream_version(f"{CATEGORY}{stream}") == 0


@KINDS
@pytest.mark.parametrize(
    ("key", "problem"),
    [("a+b", r"holds a '\+'"), ("", "empty"), ("a\n", "control"), ("x" * 2600, "bytes long")],
)
def test_a_key_that_is_ambiguous_with_the_ids_is_refused(connection, store, make, key, problem):
    """A key is refused if another key could lead to the same stream."""
    store.write(deposit(key), PURSE)
    with pytest.raises(IdempotenceKeyError, match=problem):
        drained(connection, make())


@KINDS
@pytest.mark.parametrize("value", [False, "true", 1, None, {"reserved": True}])
def test_only_a_marked_message_is_a_copy(connection, store, make, value):
    """Only a message with the local property of a copy is taken for one."""
    store.write(deposit(), PURSE, metadata=Metadata(local_properties={"reserved": value}))
    assert drained(connection, make()) == {"reserved": 1, "handled": 1}


@KINDS
@pytest.mark.parametrize(
    ("stream", "source"),
    [
        (PURSE, None),
        (PURSE, PURSE),
        (f"{PURSE}+other", None),
        (f"{PURSE}+d1", None),
        (f"{PURSE}+d1", f"{CATEGORY}-9"),
    ],
)
def test_a_sender_cannot_pass_a_command_by_its_reservation(connection, store, make, stream, source):
    """A sender cannot bypass the reservation by marking a command as a copy."""
    metadata = Metadata(
        local_properties={"reserved": True},
        causation_message_stream_name=source,
        causation_message_position=0,
        causation_message_global_position=1,
    )
    for _ in range(3):
        store.write(deposit(time=LATER), stream, metadata=metadata)
    counts = drained(connection, make())
    assert counts == {"reserved": 1, "duplicate": 2, "handled": 1}
    assert effects(store) == ["Deposited"]
    assert store.stream_version(f"{stream}+d1") == 0


@KINDS
def test_a_message_in_the_place_of_a_copy_is_the_only_one_of_its_key(connection, store, make):
    """A message in the place of a copy is the only one of its key; the command finds it."""
    metadata = Metadata(
        local_properties={"reserved": True},
        causation_message_stream_name=PURSE,
        causation_message_position=0,
        causation_message_global_position=1,
    )
    for _ in range(2):  # the second is not the first of the stream
        store.write(deposit(), f"{PURSE}+d1", metadata=metadata)
    store.write(deposit(), PURSE)
    drained(connection, make())
    (copy, again) = store.read_stream(f"{PURSE}+d1")
    causes = [
        event.metadata.causation_message_stream_name for event in store.read_stream("purse-123")
    ]
    assert causes == [copy.stream_name, f"{again.stream_name}+d1"]


@KINDS
def test_a_copy_under_another_key_is_a_dead_letter(connection, store, make):
    """A copy whose key was changed is a dead letter, as it might take effect twice."""
    metadata = Metadata(
        local_properties={"reserved": True},
        causation_message_stream_name=PURSE,
        causation_message_position=0,
        causation_message_global_position=1,
    )
    store.write(deposit(), f"{PURSE}+old", metadata=metadata)
    with pytest.raises(IdempotenceKeyError, match="not the one that its key names"):
        drained(connection, make())
    assert effects(store) == []


def moved(key, formerly):
    """Return a purse that has changed its key."""
    component = purse()
    component.reserve(Deposit, key=key, formerly=formerly, volatile="time")
    return component


def test_a_copy_under_a_former_key_is_found_and_handled(connection, store):
    """A reissue is a duplicate of it, whether it was handled or waits."""
    store.write([deposit("d1"), deposit("d2")], PURSE)
    batch(connection, CATEGORY, moved("deposit_id", None)).run(3)  # the copy of d2 waits
    now = moved(("account_id", "deposit_id"), "deposit_id")
    store.write([deposit("d1", time=LATER), deposit("d2", amount="9"), deposit("d3")], PURSE)
    found = drained(connection, now)
    assert (found["duplicate"], found["conflict"], found["reserved"]) == (1, 1, 1)
    copies = [f"{PURSE}+d1", f"{PURSE}+d2", f"{PURSE}+123+d3"]
    assert all(store.stream_version(name) == 0 for name in copies)
    assert effects(store) == ["Deposited"] * 3


def test_two_versions_find_the_copies_of_each_other(connection, store):
    """In the two deployments of a changed key, whichever reserves first."""
    long = ("account_id", "deposit_id")
    versions = [moved("deposit_id", long), moved(long, "deposit_id")]
    for n, (first, then) in enumerate((versions, versions[::-1])):
        store.write(deposit(f"d{n}"), PURSE)
        assert drained(connection, first) == {"reserved": 1, "handled": 1}
        store.write(deposit(f"d{n}", time=LATER), PURSE)
        assert drained(connection, then) == {"duplicate": 1}
    assert effects(store) == ["Deposited"] * 2


def test_the_property_means_nothing_where_copies_have_a_category_of_their_own(connection, store):
    """With a category for copies, the property does not bypass the reservation."""
    component = purse()
    component.reserve(Deposit, into="purseTransaction", key="deposit_id")
    component.reserve(Withdraw, into="purseTransaction", key=lambda command: command.withdrawal_id)
    metadata = Metadata(local_properties={"reserved": True})
    store.write([deposit(), withdraw()], PURSE, metadata=metadata)
    assert batch(connection, CATEGORY, component).run(10).counts == Counter(reserved=2)
    assert [
        message.metadata.local_properties for message in store.read_category("purseTransaction")
    ] == [
        {},
        {},
    ]


@KINDS
def test_a_copy_is_in_the_partition_of_its_command(connection, store, make):
    """A copy is in its command's partition, so an entity's commands stay in order."""
    component = make()
    connection.execute(
        "INSERT INTO reservation.positions (consumer, category, partition, epoch)"
        " SELECT 'purse', %s, n, 1 FROM generate_series(0, 2) AS n",
        [CATEGORY],
    )
    for n in range(30):
        store.write(
            [deposit(f"d{n}", account=str(n)), deposit(f"d{n}", account=str(n))], f"{CATEGORY}-{n}"
        )
    total = Counter()
    for partition in range(3):  # each alone to its end: what it reserves, it handles
        claimed, positions = (
            new_batch(connection, component, CATEGORY),
            Positions("purse", CATEGORY, 3, [HeldPartition(partition, 0, 1)]),
        )
        counts = Counter()
        while (result := claimed.run(positions, 7)).moved:
            counts += result.counts
        assert counts["reserved"] == counts["handled"] == counts["duplicate"] > 0
        total += counts
    assert total == Counter(reserved=30, handled=30, duplicate=30)


@dataclass(frozen=True)
class Rename:
    account_id: str


def test_it_combines_with_the_other_strategies_in_one_category(connection, store):
    """Commands handled directly and commands copied elsewhere can share the category."""
    component = purse()
    component.reserve(Deposit, key="deposit_id")
    component.reserve(Withdraw, into="purseTransaction", key="withdrawal_id", entity="account_id")
    component.handle(Rename)(lambda *_: None)
    store.write([deposit(amount="10"), Rename("123"), withdraw(amount="10")], PURSE)
    assert drained(connection, component) == {"reserved": 2, "handled": 3}
    assert effects(store) == ["Deposited", "Withdrawn"]


def test_a_transaction_for_each_message(connection, store):
    """Copies may each have their own transaction."""
    component = Component("purse", id="account_id")
    component.reserve(Deposit, key="deposit_id")
    calls = []
    component.handle(Deposit, transaction="message")(lambda *_: calls.append(1))
    store.write([deposit("d1"), deposit("d2")], PURSE)
    results = batches(connection, component)
    assert len(calls) == 2
    assert max(result.counts["handled"] for result in results) == 1


@KINDS
def test_with_a_sequence_in_the_events(connection, store, make):
    """A sequence in the events covers copies and commands in the order of the category."""
    component = make(PositionInEvents(pseudo_events=True))
    store.write([deposit("d1"), withdraw("w1", "999"), deposit("d2")], PURSE)
    drained(connection, component)
    redeliver(connection)
    assert drained(connection, component) == {"duplicate": 6}
    assert effects(store) == ["Deposited", "Deposited"]


def test_a_field_to_lead_with_needs_a_category():
    """A leading field is refused without a reservation category."""
    component = purse()
    with pytest.raises(DeclarationError, match="entity='account_id' leads the streams of a"):
        component.reserve(Deposit, key="deposit_id", entity="account_id")
    with pytest.raises(DeclarationError, match="or leave it out"):
        component.reserve(Deposit, into="purse:command", key="deposit_id")


@dataclass(frozen=True)
class Transfer:
    account_id: str
    first: str
    second: int
    amount: Decimal = Decimal(0)


@pytest.mark.parametrize(
    "key", [("first", "second"), lambda command: [command.first, command.second]]
)
def test_a_key_of_several_parts(connection, store, key):
    """A key of several parts is joined as in a reservation category."""
    component = Component("purse", id="account_id")
    component.reserve(Transfer, key=key)
    component.handle(Transfer)(lambda *_: None)
    store.write([Transfer("123", "a", 1), Transfer("123", "a", 2), Transfer("123", "a", 1)], PURSE)
    assert drained(connection, component) == {"reserved": 2, "duplicate": 1, "handled": 2}
    assert store.stream_version(f"{PURSE}+a+2") == 0
