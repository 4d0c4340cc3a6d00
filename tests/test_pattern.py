"""The reservation pattern: a command takes effect once, however often it is sent."""

import json
import uuid
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal

import pytest
from psycopg.types.json import Jsonb

from bank.messages import Open, Withdraw
from reservation import Component, MessageStore, Metadata, follow
from reservation.errors import (
    DecodeError,
    ExpectedVersionError,
    HandlerError,
    IdempotenceKeyError,
    LockTimeoutError,
    MessageError,
    MessageIdConflictError,
    PositionLostError,
    UnknownTypeError,
)
from reservation.messages.message import followed_id
from reservation.postgres.connection import connect
from reservation.store.writing import batch as written_batch
from tests.bank import RESERVED, batch, batches, broken, drain, event_types
from tests.controls import COMMANDS, LATER, close, deposit, open_, withdraw


def write_raw(connection, stream_name, type_, data, metadata=None):
    """Write a message as any client can, whatever its shape."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s, %s)",
        [stream_name, type_, data, metadata],
    )


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


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_reissue_has_no_effect_whenever_it_comes(connection, store, when):
    """A reissue has no effect, before or after the reservation or the handling."""
    store.write([open_(), deposit(), withdraw()], COMMANDS)
    reissues = [open_(time=LATER), deposit(time=LATER), withdraw(time=LATER)]
    if when == "before":
        store.write(reissues, COMMANDS)
    commands = batch(connection, "account:command")
    counts = commands.run(100).counts
    if when == "between":
        store.write(reissues, COMMANDS)
        counts += commands.run(100).counts
    reserved = batch(connection, RESERVED)
    counts += reserved.run(100).counts
    if when == "after":
        store.write(reissues, COMMANDS)
        counts += commands.run(100).counts
        counts += reserved.run(100).counts
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn"]
    # Opened directly, two copies handled; one duplicate for each reissue.
    assert counts == Counter(handled=3, reserved=2, duplicate=3)
    assert broken(connection) == {}


def test_a_redelivery_has_no_effect(connection, store):
    """After positions were set back, everything is read again without effect."""
    store.write([open_(), deposit(), withdraw(), close()], COMMANDS)
    batches(connection)
    everything = list(store.read_category("account")) + list(store.read_category(RESERVED))
    connection.execute("UPDATE reservation.positions SET position = 0")
    results = batches(connection)
    assert sum(result.read for result in results) == 6
    assert list(store.read_category("account")) + list(store.read_category(RESERVED)) == everything


def test_an_effect_that_no_handler_guards_is_still_written_once(connection, store):
    """Event ids that follow from the command keep the store from storing an event twice."""

    @dataclass(frozen=True)
    class Paid:
        account_id: str
        n: int

    calls = []
    careless = Component("careless", id="account_id")
    careless.reserve(type(deposit()), into="carelessTransaction", key="deposit_id")

    @careless.handle(type(deposit()))
    def pay(command, entity, context):
        calls.append(command)
        return follow(command, Paid, n=len(calls))

    store.write(deposit(), "careless:command-123")
    batches(connection, careless)
    connection.execute("UPDATE reservation.positions SET position = 0")
    store.write(deposit("d2"), "careless:command-123")
    batch(connection, "careless:command", careless).run(100)
    reserved = batch(connection, "carelessTransaction", careless)
    with pytest.raises(MessageIdConflictError):
        reserved.run(100)
    called = len(calls)
    assert reserved.run(100, careful=True).counts == Counter(redelivered=1, handled=1)
    assert len(calls) == called + 1
    assert [m.type for m in store.read_stream("careless-123")] == ["Paid", "Paid"]


def test_events_that_are_too_long_together_are_written_in_parts(connection, store, monkeypatch):
    """Events that are too long for one statement are written in parts."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(5))], COMMANDS)
    batch(connection, "account:command").run(100)
    monkeypatch.setattr(written_batch, "MOST_BYTES", 1500)
    reserved = batch(connection, RESERVED)
    with pytest.raises(MessageError, match="5 messages are"):
        reserved.run(100)
    for _ in range(5):
        assert reserved.run(1).counts == Counter(handled=1)
    assert event_types(store) == ["Opened", *["Deposited"] * 5]


def test_an_id_that_another_message_took_does_not_count_as_handled(connection, store):
    """An event id used by another message does not count as the command's handling."""
    command_id = uuid.uuid4()
    taken = followed_id(str(command_id), "account-123", 0)
    store.write(deposit(account="9"), "account:command-9", id=taken)
    store.write(open_(), COMMANDS, id=command_id)
    commands = batch(connection, "account:command")
    with pytest.raises(MessageIdConflictError, match=str(taken)):
        commands.run(100)
    with pytest.raises(MessageError, match=f"of 2 messages from Deposit.*{taken}"):
        commands.run(100, careful=True)
    assert commands.run(1).counts == Counter(reserved=1)
    with pytest.raises(MessageError, match=f"of Open at {COMMANDS}, global position 2 .*{taken}"):
        commands.run(1, careful=True)
    assert event_types(store) == []


def test_a_conflict_is_distinguished_from_a_duplicate(connection, store):
    """The same key with other content is a conflict; the first command stands."""
    store.write([open_(), deposit(), withdraw()], COMMANDS)
    batches(connection)
    store.write(
        [
            open_(customer="another"),
            deposit(amount="99"),
            withdraw(amount="4.250"),  # the same number
            withdraw("d1", amount="10.50"),  # another type under the same key
        ],
        COMMANDS,
    )
    (result,) = batches(connection)
    assert result.counts == Counter(conflict=3, duplicate=1)
    assert [(message.position, name) for message, name in result.conflicts] == [
        (4, "accountTransaction-123+d1"),
        (6, "accountTransaction-123+d1"),
        (3, "account-123"),
    ]
    assert event_types(store) == ["Opened", "Deposited", "Withdrawn"]


def test_conflicts_within_one_batch_are_detected_too(connection, store):
    """Within a batch, commands are compared with the first of their key."""
    store.write([deposit(), deposit(amount="99"), deposit(time=LATER)], COMMANDS)
    (first, *_) = batches(connection)
    assert first.counts == Counter(reserved=1, conflict=1, duplicate=1)


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
    payment.reserve(type(deposit()), into="paymentTransaction", key=lambda d: f"{d.deposit_id}-x")
    payment.handle(type(deposit()))(lambda command, entity, context: None)
    store.write([deposit("d1"), deposit("d1")], "payment:command-123")
    drain(connection, payment)
    (copy,) = store.read_category("paymentTransaction")
    assert copy.stream_name == "paymentTransaction-d1-x"


@pytest.mark.parametrize(
    ("type_", "data", "error", "problem"),
    [
        ("Deposit", None, DecodeError, "has no data"),
        ("Deposit", Jsonb([1]), DecodeError, "Expected `object`, got `array`"),
        ("Deposit", Jsonb("text"), DecodeError, "Expected `object`"),
        ("Deposit", Jsonb({"depositId": "d9"}), DecodeError, "missing required field"),
        (
            "Deposit",
            Jsonb({"depositId": "", "accountId": "1", "amount": 1, "time": "2026-01-01T00:00:00Z"}),
            IdempotenceKeyError,
            "field deposit_id is empty",
        ),
        (
            "Close",
            Jsonb({"accountId": "", "time": "2026-01-01T00:00:00Z"}),
            IdempotenceKeyError,
            "field account_id is empty",
        ),
        ("Rename", Jsonb({}), UnknownTypeError, r"account\.ignore\('Rename'\)"),
        ("Deposited", Jsonb({}), UnknownTypeError, "declare a handler for Deposited"),
    ],
)
def test_a_message_that_cannot_be_handled_keeps_the_position_before_it(
    connection, store, type_, data, error, problem
):
    """Nothing of the batch is written, and the error names the message."""
    store.write(deposit("d1"), COMMANDS)
    write_raw(connection, COMMANDS, type_, data)
    commands = batch(connection, "account:command")
    with pytest.raises(error, match=problem) as caught:
        commands.run(100)
    assert f"{type_} at {COMMANDS}, global position 2" in str(caught.value)
    assert connection.execute("SELECT position FROM reservation.positions").fetchone() == (0,)
    assert list(store.read_category(RESERVED)) == []
    assert commands.run(1).counts == Counter(reserved=1)
    with pytest.raises(error):
        commands.run(1)


@pytest.mark.parametrize(
    "metadata",
    [
        [1],
        "text",
        None,
        {"properties": None, "correlationStreamName": 3, "causationMessageGlobalPosition": 1.5},
        {"properties": {}, "replyStreamName": None, "causationMessageGlobalPosition": "x"},
    ],
)
def test_metadata_of_another_shape_counts_as_none(connection, store, metadata):
    """Metadata of an unexpected shape counts as none, whoever copies the command."""
    opening = {"accountId": "123", "customerId": "4", "time": "2026-01-01T00:00:00Z"}
    deposit_ = {"depositId": "d", "accountId": "123", "amount": 1, "time": "2026-01-01T00:00:00Z"}
    for type_, data in (("Open", opening), ("Deposit", deposit_), ("Open", opening)):
        write_raw(connection, COMMANDS, type_, Jsonb(data), Jsonb(metadata))
    drain(connection)
    assert event_types(store) == ["Opened", "Deposited"]
    (copy,) = store.read_category(RESERVED)
    for message in (copy, *store.read_stream("account-123")):
        assert len(json.loads(message.metadata_json)) == 3  # where it came from, and no more


def test_a_command_in_a_category_without_an_id_is_handled(connection, store):
    """A command written to the category itself is handled; its data names the entity."""
    write_raw(
        connection,
        "account:command",
        "Open",
        Jsonb({"accountId": "7", "customerId": "c", "time": "2026-01-01T00:00:00Z"}),
    )
    drain(connection)
    assert event_types(store, "7") == ["Opened"]


def test_a_handler_that_raises_is_named_with_its_message(connection, store):
    """The error names the handler and the message and keeps its cause."""
    failing = Component("failing", id="account_id")

    @failing.handle(type(deposit()))
    def handle(command, entity, context):
        raise ZeroDivisionError("by nothing")

    store.write(deposit(), "failing:command-123")
    problem = r"Deposit at failing.*raised ZeroDivisionError in \S*handle \(tests/test_pattern.py"
    with pytest.raises(HandlerError, match=problem) as caught:
        batches(connection, failing)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "by nothing" not in str(caught.value)  # it might repeat what the message holds


@pytest.mark.parametrize("result", [3, "text", {"a": 1}, [deposit(), 3]])
def test_a_handler_returns_events_or_nothing(connection, store, result):
    """A handler that returns anything but events or nothing is an error."""
    wrong = Component("wrong", id="account_id")
    wrong.handle(type(deposit()))(lambda command, entity, context: result)
    store.write(deposit(), "wrong:command-123")
    with pytest.raises(HandlerError, match="returns an event, several or None"):
        batches(connection, wrong)


def test_a_command_that_initiates_must_start_its_stream(connection, store):
    """A command that initiates must return an event, by which reissues are recognized."""
    empty = Component("empty", id="account_id")
    empty.initiate(type(open_()))(lambda command, context: None)
    store.write(open_(), "empty:command-123")
    with pytest.raises(HandlerError, match="returned no event"):
        batches(connection, empty)


def test_an_ignored_type_is_counted_and_passed(connection, store):
    """An ignored type is counted and skipped."""
    component = Component("some", id="account_id")
    component.handle(type(deposit()))(lambda command, entity, context: None)
    component.ignore("Rename")
    write_raw(connection, "some:command-1", "Rename", None)
    (result,) = batches(connection, component)
    assert result.counts == Counter(ignored=1)


def test_a_consumer_that_was_taken_over_commits_nothing(connection, store):
    """A consumer whose category was claimed anew commits nothing."""
    store.write(deposit(), COMMANDS)
    older = batch(connection, "account:command")
    newer = batch(connection, "account:command")
    with pytest.raises(PositionLostError, match="Another process has taken over"):
        older.run(100)
    assert list(store.read_category(RESERVED)) == []
    assert newer.run(100).counts == Counter(reserved=1)


def test_a_lost_race_leaves_nothing_and_is_run_again(connection, store):
    """After a lost race the batch decides again on what the other writer stored."""
    racing = Component("racing", id="account_id")
    calls = []

    @dataclass(frozen=True)
    class Noted:
        account_id: str

    @racing.handle(type(deposit()))
    def handle(command, entity, context):
        if not calls:
            store.write(Noted(command.account_id), "racing-123")
        calls.append(command)
        return Noted(command.account_id)

    store.write(deposit(), "racing:command-123")
    claimed = batch(connection, "racing:command", racing)
    # The handler writes in the batch's own connection, before the batch writes at the version that
    # it had loaded.
    with pytest.raises(ExpectedVersionError):
        claimed.run(100)
    assert store.stream_version("racing-123") == -1
    assert claimed.run(100).counts == Counter(handled=1)
    assert store.stream_version("racing-123") == 0


def test_entities_are_loaded_from_where_they_are(connection, store):
    """The cache of entities reads only new events, also those of other writers."""
    store.write([open_(), deposit(amount="5")], COMMANDS)
    commands, reserved = batch(connection, "account:command"), batch(connection, RESERVED)
    commands.run(100)
    reserved.run(100)
    store.write(close(), COMMANDS)  # written to the account's stream by the other consumer
    store.write(withdraw(amount="5"), COMMANDS)
    commands.run(100)
    reserved.run(100)
    assert event_types(store) == ["Opened", "Deposited", "Closed", "Withdrawn"]


def test_the_cache_of_entities_is_bounded(store):
    """The cache of entities does not grow with their number."""
    from bank import account
    from reservation.entity.cache import EntityCache

    cache = EntityCache(account.entity, account.projection, capacity=2)
    cache.load(store, [f"account-{n}" for n in range(5)])
    assert list(cache._loaded) == ["account-3", "account-4"]


def test_a_batch_that_lost_a_race_wins_under_the_locks(database_url, connection, store):
    """After a lost race the second attempt locks out other writers before it reads."""
    racing = Component("racing", id="account_id")
    with connect(database_url, autocommit=True) as other:
        other.execute("SET lock_timeout = '50ms'")
        outcomes = []

        @dataclass(frozen=True)
        class Noted:
            account_id: str

        @racing.handle(type(deposit()))
        def handle(command, entity, context):
            try:
                outcomes.append(MessageStore(other).write(Noted("123"), "racing-123"))
            except LockTimeoutError:
                outcomes.append("kept out")
            return Noted("123")

        store.write(deposit(), "racing:command-123")
        claimed = batch(connection, "racing:command", racing)
        with pytest.raises(ExpectedVersionError):
            claimed.run(100)
        assert claimed.run(100, careful=True).counts == Counter(handled=1)
        assert outcomes == [0, "kept out"]


def test_the_role_of_message_db_clients_can_run_a_component(database_url, store):
    """The clients' role can send and consume with what the installation grants."""
    with connect(database_url, autocommit=True) as connection:
        connection.execute("SET ROLE message_store")
        MessageStore(connection).write([open_(), deposit(), close()], COMMANDS)
        drain(connection)
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
    (result,) = batches(connection, component)
    assert result.counts == Counter(conflict=1)


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
    component.reserve(Withdraw, into=into, key="withdrawal_id")

    @component.handle(Withdraw)
    def spend(command, entity, context):
        if entity.balance + command.amount > 150:
            return None
        return Spent(command.account_id, command.amount)

    @component.project(Spent)
    def spent(entity, event):
        entity.balance += event.amount

    return component


def test_a_redelivery_that_repeats_its_event_exactly_spoils_no_later_decision(connection, store):
    """An event that the store skips as repeated is not applied to the entity twice."""
    store.write(withdraw("w1", "60"), "purse:command-123")
    batches(connection, purse())
    connection.execute("UPDATE reservation.positions SET position = 0")
    store.write(withdraw("w2", "50"), "purse:command-123")
    component = purse()
    batch(connection, "purse:command", component).run(100)
    reserved = batch(connection, "purseTransaction", component)
    with pytest.raises(MessageIdConflictError, match="was written before"):
        reserved.run(100)
    assert reserved.run(100, careful=True).counts == Counter(redelivered=1, handled=1)
    assert [m.type for m in store.read_stream("purse-123")] == ["Spent", "Spent"]


def test_two_components_handle_the_same_reservations_each_for_itself(connection, store):
    """Two components handle the same reservations independently."""
    ledger, points = purse("ledger", "payments"), purse("points", "payments")
    store.write(withdraw("w1", "60"), "ledger:command-123")
    batches(connection, ledger)
    assert batch(connection, "payments", points).run(100).counts == Counter(handled=1)
    assert store.stream_version("ledger-123") == store.stream_version("points-123") == 0


@pytest.mark.parametrize("text", ["x" * 5000, "\x1b[31m", "a\nb"])
def test_what_a_peer_wrote_is_shortened_and_escaped_in_errors(connection, store, text):
    """An error is one line, whatever names the store holds."""
    write_raw(connection, COMMANDS, text, Jsonb({}))
    with pytest.raises(UnknownTypeError) as caught:
        batches(connection)
    assert len(str(caught.value)) < 1500
    assert str(caught.value).isprintable()


@dataclass(frozen=True)
class Checked:
    account_id: str
    amount: Decimal

    def __post_init__(self):
        if self.amount <= 0:
            raise ValueError(f"bad amount {self.amount} of secret-customer")


@pytest.mark.parametrize("amount", ["-5", '"NaN"'])
def test_an_error_of_a_class_that_checks_itself_shows_kind_and_place(connection, store, amount):
    """The error leaves out the exception's text, which may repeat the message."""
    component = Component("checked", id="account_id")
    component.handle(Checked)(lambda command, entity, context: None)
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'checked:command-1', "
        "'Checked', %s)",
        [f'{{"accountId": "1", "amount": {amount}}}'],
    )
    with pytest.raises(DecodeError, match="Cannot decode Checked at checked:command-1") as caught:
        batches(connection, component)
    assert "secret" not in str(caught.value)


def test_a_handler_that_leaves_the_process_is_an_error(connection, store):
    """A handler that raises SystemExit is an error, not a clean stop."""
    leaving = Component("leaving", id="account_id")

    @leaving.handle(Withdraw)
    def leave(command, entity, context):
        raise SystemExit(0)

    store.write(withdraw(), "leaving:command-123")
    with pytest.raises(HandlerError, match=r"raised SystemExit in \S*leave "):
        batches(connection, leaving)
