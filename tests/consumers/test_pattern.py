"""The reservation pattern: a command takes effect once, however often it is sent."""

import json
import re
import uuid
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

import psycopg
import pytest
from psycopg.types.json import Jsonb

from bank import account
from bank.messages import Open, Withdraw
from consumers.testing import run_in_memory
from reservation import Component, Key, MessageStore, Metadata, Write
from reservation.errors import LockTimeoutError
from tests.apps.bank import RESERVED, broken, drain, event_types
from tests.consumers.builders import read_again, stored_letter, stored_letters, write_raw
from tests.support.controls import COMMANDS, LATER, close, deposit, open_, withdraw


@dataclass(frozen=True)
class Spent:
    account_id: str
    amount: Decimal


@dataclass
class Purse:
    balance: Decimal = Decimal(0)


def purse(name="purse", into="purseTransaction"):
    """Return a component whose handler has no guard and no clock, so its events repeat exactly."""
    component = Component(name, entity=Purse, id="account_id")

    @component.handle(Withdraw, key=Key("withdrawal_id", into=into, per=None))
    def spend(command, entity, context):
        if entity.balance + command.amount > 150:
            return None
        return Spent(command.account_id, command.amount)

    @component.project(Spent)
    def spent(entity, event):
        entity.balance += event.amount

    return component


def handling(handler, command=Withdraw, name="some"):
    """Return a component without an entity that handles a command directly, in one attempt."""
    component = Component(name, id="account_id", attempts=1)
    component.handle(command, once=None)(handler)
    return component


def test_a_command_is_reserved_and_its_copy_handled(connection, store):
    """The copy of a command follows it, in a stream named by its entity and key."""
    store.write(open_(), COMMANDS)
    metadata = Metadata(correlation_stream_name="transfer-1", properties={"user": 7})
    store.write(deposit(), COMMANDS, metadata=metadata)
    drain(connection)
    (copy,) = store.read_stream("accountTransaction-123+d1")
    assert copy.decode(type(deposit())) == deposit()
    assert copy.metadata.causation_message_stream_name == COMMANDS
    assert copy.metadata.causation_message_position == 1
    assert copy.metadata.correlation_stream_name == "transfer-1"
    assert copy.metadata.properties == {"user": 7}
    opened, deposited = store.read_stream("account-123")
    assert (opened.type, deposited.type) == ("Opened", "Deposited")
    assert deposited.metadata.causation_message_global_position == copy.global_position
    assert deposited.metadata.correlation_stream_name == "transfer-1"
    assert f'"sequence": {copy.global_position}' in deposited.data
    assert broken(connection) == {}


@pytest.mark.parametrize(
    ("handled_before", "batch_size"),
    [(False, 100), (False, 1), (True, 100)],
    ids=["in its batch", "after its reservation", "after its handling"],
)
def test_a_reissue_has_no_effect_whenever_it_comes(connection, store, handled_before, batch_size):
    """A reissue has no effect, before or after the reservation or the handling."""
    store.write([open_(), deposit(), withdraw()], COMMANDS)
    counts = drain(connection).counts if handled_before else Counter()
    store.write([open_(time=LATER), deposit(time=LATER), withdraw(time=LATER)], COMMANDS)
    counts = drain(connection, batch_size=batch_size).counts + counts
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn"]
    # Opened directly, two copies handled; one duplicate for each reissue.
    assert counts == {"handled": 3, "reserved": 2, "duplicate": 3}
    assert broken(connection) == {}


def test_a_redelivery_has_no_effect(connection, store):
    """After positions were set back, everything is read again without effect."""
    store.write([open_(), deposit(), withdraw(), close()], COMMANDS)
    drain(connection)
    everything = list(store.read_category("account")) + list(store.read_category(RESERVED))
    read_again(connection)
    assert drain(connection).messages == 6
    assert list(store.read_category("account")) + list(store.read_category(RESERVED)) == everything


def test_an_effect_that_no_handler_guards_is_still_written_once(connection, store):
    """A handler that decides otherwise at a redelivery does not write another event."""
    calls = []
    careless = Component("careless", id="account_id")

    @careless.handle(Withdraw, key="withdrawal_id")
    def pay(command, entity, context):
        calls.append(command)
        return Spent(command.account_id, Decimal(len(calls)))

    store.write(withdraw("w1"), "careless:command-123")
    drain(connection, careless)
    read_again(connection)
    store.write(withdraw("w2"), "careless:command-123")
    counts = drain(connection, careless).counts
    assert (counts["redelivered"], counts["handled"]) == (1, 1)
    assert [m.type for m in store.read_stream("careless-123")] == ["Spent", "Spent"]


@pytest.mark.parametrize("batch_size", [1, 100])
def test_an_id_that_another_message_took_does_not_count_as_handled(connection, store, batch_size):
    """An event id used by another message does not count as the command's handling."""
    command_id = uuid.uuid4()
    _, opened = run_in_memory(account, [Write(open_(), COMMANDS, command_id)]).messages
    store.write(deposit(account="9"), "account:command-9", id=uuid.UUID(opened.id))
    store.write(open_(), COMMANDS, id=command_id)
    counts = drain(connection, batch_size=batch_size).counts
    assert (counts["reserved"], counts["dead"]) == (1, 1)
    dead = stored_letter(connection)
    assert dead.reason == "id_taken"
    assert re.search(f"of Open at {COMMANDS}, global position 2: .*{opened.id}", dead.error)
    assert event_types(store) == []


def test_a_conflict_is_distinguished_from_a_duplicate(connection, store):
    """The same key with other content is a conflict; the first command stands."""
    store.write([open_(), deposit(), withdraw()], COMMANDS)
    drain(connection)
    store.write(
        [
            open_(customer="another"),
            deposit(amount="99"),
            withdraw(amount="4.250"),  # the same number
            withdraw("d1", amount="10.50"),  # another type under the same key
        ],
        COMMANDS,
    )
    assert drain(connection).counts == {"conflict": 3, "duplicate": 1}
    names = ["account-123", "accountTransaction-123+d1", "accountTransaction-123+d1"]
    for name, conflict in zip(names, stored_letters(connection), strict=True):
        assert (conflict.reason, f"the key of {name}, " in conflict.error) == ("conflict", True)
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn"]


def test_conflicts_within_one_batch_are_detected_too(connection, store):
    """Within a batch, commands are compared with the first of their key."""
    store.write([deposit(), deposit(amount="99"), deposit(time=LATER)], COMMANDS)
    counts = drain(connection).counts
    assert counts == {"reserved": 1, "conflict": 1, "duplicate": 1, "handled": 1}


def test_a_withdrawal_needs_funds(connection, store):
    """Later decisions of a batch see the effects of earlier ones."""
    store.write([open_(), deposit(amount="5"), withdraw("w1", "3"), withdraw("w2", "3")], COMMANDS)
    drain(connection)
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn", "WithdrawalRejected"]
    store.write([deposit("d2", "0.99"), withdraw("w3", "2.99"), withdraw("w4", "0.01")], COMMANDS)
    drain(connection)
    assert event_types(store)[4:] == ["Deposited", "Withdrawn", "WithdrawalRejected"]
    assert broken(connection) == {}


def test_an_account_is_closed_once(connection, store):
    """A command that is handled directly relies on the entity's state."""
    store.write([open_(), close(), close()], COMMANDS)
    drain(connection)
    store.write(close(), COMMANDS)
    drain(connection)
    assert event_types(store) == ["Opened", "Closed"]


def test_streams_can_be_named_by_the_key_alone(connection, store):
    """Reservation streams can be named by the key alone, and the key by a function."""
    payment = Component("payment", id="account_id")
    key = Key(lambda d: f"{d.deposit_id}-x", per=None)
    payment.handle(type(deposit()), key=key)(lambda command, entity, context: None)
    store.write([deposit("d1"), deposit("d1")], "payment:command-123")
    drain(connection, payment)
    (copy,) = store.read_category("paymentTransaction")
    assert copy.stream_name == "paymentTransaction-d1-x"


TIME = "2026-01-01T00:00:00Z"


SHAPES = [
    [1],
    "text",
    None,
    {"properties": None, "correlationStreamName": 3, "causationMessageGlobalPosition": 1.5},
    {"properties": {}, "replyStreamName": None, "causationMessageGlobalPosition": "x"},
]


def test_metadata_of_another_shape_counts_as_none(connection, store):
    """Metadata of an unexpected shape counts as none, whoever copies the command."""
    for n, metadata in enumerate(SHAPES):
        opening = {"accountId": str(n), "customerId": "4", "time": TIME}
        deposit_ = {"depositId": "d", "accountId": str(n), "amount": 1, "time": TIME}
        for type_, data in (("Open", opening), ("Deposit", deposit_), ("Open", opening)):
            write_raw(connection, f"account:command-{n}", type_, Jsonb(data), Jsonb(metadata))
    drain(connection)
    for n, metadata in enumerate(SHAPES):
        assert event_types(store, str(n)) == ["Opened", "Deposited"], metadata
        (copy,) = store.read_stream(f"{RESERVED}-{n}+d")
        for message in (copy, *store.read_stream(f"account-{n}")):
            # Where it came from, and no more.
            assert len(json.loads(message.metadata_json)) == 3, metadata


def test_a_command_in_a_category_without_an_id_is_handled(connection, store):
    """A command written to the category itself is handled; its data names the entity."""
    data = {"accountId": "7", "customerId": "c", "time": TIME}
    write_raw(connection, "account:command", "Open", Jsonb(data))
    drain(connection)
    assert event_types(store, "7") == ["Opened"]


def test_a_handler_returns_events_or_nothing(connection, store):
    """A handler that returns anything but events or nothing is an error."""
    results = {"1": 3, "2": "text", "3": {"a": 1}, "4": [deposit(), 3]}
    for account_id in results:
        store.write(withdraw(account=account_id), f"some:command-{account_id}")
    drain(connection, handling(lambda command, entity, context: results[command.account_id]))
    said = {one.stream_name: one.error for one in stored_letters(connection)}
    assert set(said) == {f"some:command-{account_id}" for account_id in results}
    assert [one for one in said.values() if "returns an event, several or None" not in one] == []


def test_a_command_that_initiates_must_start_its_stream(connection, store):
    """A command that initiates must return an event, by which reissues are recognized."""
    empty = Component("empty", id="account_id", attempts=1)
    empty.initiate(type(open_()))(lambda command, context: None)
    store.write(open_(), "empty:command-123")
    drain(connection, empty)
    assert "returned no event" in stored_letter(connection).error


def test_an_ignored_type_is_counted_and_passed(connection):
    """An ignored type is counted and skipped."""
    component = handling(lambda command, entity, context: None)
    component.ignore("Rename")
    write_raw(connection, "some:command-1", "Rename")
    assert drain(connection, component).counts == {"ignored": 1}


def test_a_lost_race_leaves_nothing_and_is_won_under_the_locks(database_url, connection, store):
    """After a lost race the batch decides again, with other writers locked out."""
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("SET lock_timeout = '50ms'")
        outcomes = []

        def handle(command, entity, context):
            try:
                outcomes.append(MessageStore(other).write(Spent("123", Decimal(1)), "some-123"))
            except LockTimeoutError:
                outcomes.append("kept out")
            return Spent("123", Decimal(2))

        component = handling(handle)
        component.message(Spent)
        store.write(withdraw(), "some:command-123")
        assert drain(connection, component).counts == {"handled": 1}
    assert outcomes == [0, "kept out"]
    assert [m.decode(Spent).amount for m in store.read_stream("some-123")] == [1, 2]


def test_a_consumer_that_was_taken_over_commits_nothing(connection, store):
    """What a handler did for a consumer that lost its position is rolled back, and done anew."""
    connection.execute("CREATE TABLE spent (consumer text)")
    calls, by_another = [], []

    def handle(command, entity, context):
        calls.append(command)
        if len(calls) == 1:
            by_another.append(drain(connection, component).counts["handled"])
        context.connection.execute("INSERT INTO spent VALUES ('one')")

    component = handling(handle)
    store.write(withdraw(), "some:command-123")
    counts = drain(connection, component).counts
    assert (by_another, counts["handled"], len(calls)) == ([1], 0, 2)
    assert connection.execute("SELECT count(*) FROM spent").fetchone() == (1,)


def test_decisions_see_what_another_consumer_wrote(connection, store):
    """A consumer that knows an entity reads the events that another wrote since."""
    store.write([open_(), deposit(amount="5")], COMMANDS)
    drain(connection)
    store.write(close(), COMMANDS)  # written to the account's stream by the other consumer
    store.write(withdraw(amount="5"), COMMANDS)
    drain(connection)
    assert event_types(store) == ["Opened", "Deposited", "Closed", "Withdrawn"]


def test_the_role_of_message_db_clients_can_run_a_component(database_url, connection, store):
    """The clients' role can send and consume with what the installation grants."""
    url = psycopg.conninfo.make_conninfo(database_url, options="-c role=message_store")
    with psycopg.connect(url, autocommit=True) as client:
        MessageStore(client).write([open_(), deposit(), close()], COMMANDS)
        drain(client)
    assert event_types(store) == ["Opened", "Closed", "Deposited"]


def test_of_message_dbs_functions_only_two_are_needed(connection, store):
    """We call only two functions of Message DB: others need a search_path of their own."""
    connection.execute(
        """
        DROP FUNCTION message_store.write_message, message_store.get_stream_messages,
          message_store.get_category_messages, message_store.get_last_stream_message,
          message_store.stream_version, message_store.acquire_lock, message_store.is_category,
          message_store.id, message_store.cardinal_id
        """
    )
    store.write([open_(), deposit(), deposit(), deposit(amount="1")], COMMANDS)
    drain(connection)
    assert event_types(store) == ["Opened", "Deposited"]
    assert store.stream_version(COMMANDS) == 3
    assert store.last_message(COMMANDS, "Open").position == 0
    assert len(list(store.read_stream(COMMANDS))) == 4


def test_a_stream_that_something_else_started_makes_an_initiation_a_conflict(connection, store):
    """A stream started by an unknown message makes an initiation a conflict."""
    odd = {"causationMessageGlobalPosition": "x"}
    write_raw(connection, "purse-123", "Spent", Jsonb({}), Jsonb(odd))
    store.write(open_(), "purse:command-123")
    component = Component("purse", entity=Purse, id="account_id")
    component.initiate(Open)(lambda command, context: Spent(command.account_id, Decimal(0)))
    component.message(Spent)
    assert drain(connection, component).counts == {"conflict": 1}


def test_a_redelivery_that_repeats_its_event_exactly_spoils_no_later_decision(connection, store):
    """An event that the store skips as repeated is not applied to the entity twice."""
    store.write(withdraw("w1", "60"), "purse:command-123")
    drain(connection, purse())
    read_again(connection)
    store.write(withdraw("w2", "50"), "purse:command-123")
    counts = drain(connection, purse()).counts
    assert (counts["redelivered"], counts["handled"]) == (1, 1)
    assert [m.type for m in store.read_stream("purse-123")] == ["Spent", "Spent"]


def test_two_components_handle_the_same_reservations_each_for_itself(connection, store):
    """Two components handle the same reservations independently."""
    ledger, points = purse("ledger", "payments"), purse("points", "payments")
    store.write(withdraw("w1", "60"), "ledger:command-123")
    drain(connection, ledger)
    assert drain(connection, points).counts == {"handled": 1}
    assert store.stream_version("ledger-123") == store.stream_version("points-123") == 0


def test_what_a_peer_wrote_is_shortened_and_escaped_in_errors(connection):
    """An error is one line, whatever names the store holds."""
    texts = ["x" * 5000, "\x1b[31m", "a\nb"]
    for n, text in enumerate(texts):
        write_raw(connection, f"account:command-{n}", text, Jsonb({}))
    drain(connection)
    for text, dead in zip(texts, stored_letters(connection), strict=True):
        assert dead.reason == "unknown_type", text
        assert len(dead.error) < 1500, text
        assert dead.error.isprintable(), text


@dataclass(frozen=True)
class Checked:
    account_id: str
    amount: Decimal

    def __post_init__(self):
        if self.amount <= 0:
            raise ValueError(f"bad amount {self.amount} of secret-customer")


def test_an_error_of_a_class_that_checks_itself_leaves_out_its_text(connection):
    """The error leaves out the exception's text, which may repeat the message."""
    component = handling(lambda command, entity, context: None, Checked)
    for n, amount in enumerate((-5, "NaN")):
        data = Jsonb({"accountId": str(n), "amount": amount})
        write_raw(connection, f"some:command-{n}", "Checked", data)
    drain(connection, component)
    for n, dead in zip(range(2), stored_letters(connection), strict=True):
        assert f"Cannot decode Checked at some:command-{n}" in dead.error
        assert "secret" not in dead.error
