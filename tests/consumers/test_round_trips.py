"""What a consumer takes in few round trips: the same as by more, and no more of them."""

import secrets

import pytest
from structlog.testing import capture_logs

from bank import account
from bank.messages import Deposited, Open, Opened
from reservation import Component, Key
from tests.apps.bank import RESERVED, drain, event_types
from tests.support.consuming import hosted, logging, until
from tests.support.controls import COMMANDS, deposit, open_, withdraw

SENT = "account:command"


def deposited(key, account_id="1"):
    """Return an event."""
    sent = deposit(key, account=account_id)
    return Deposited(key, account_id, sent.amount, sent.time, sent.time, 0)


def test_a_batch_is_reserved_in_one_round_trip_and_handled_in_few(connection, store, exchanges):
    """Ten more batches of reserving and ten of handling are few more round trips."""

    def round_trips(name, count):
        store.write([deposit(f"{name}{n}") for n in range(count)], COMMANDS)
        exchanges.clear()
        drained = drain(connection, batch_size=50)
        assert (drained.counts["reserved"], drained.counts["handled"]) == (count, count)
        return len(exchanges)

    round_trips("a", 50)
    few, many = round_trips("b", 50), round_trips("c", 550)
    assert (many - few) / 10 <= 5  # one to reserve, and what it takes to handle


def test_commands_of_a_batch_are_counted_by_what_becomes_of_them(connection, store):
    """Reissues, conflicts and commands that need the component's code are told apart in a batch."""
    store.write([deposit("d0"), deposit("d1"), deposit("d0")], COMMANDS)
    assert drain(connection).counts == {"reserved": 2, "duplicate": 1, "handled": 2}
    store.write([deposit("d1"), deposit("d2"), deposit("d0", "99"), open_("456")], COMMANDS)
    store.write([withdraw("w1"), deposit("k" * 700)], COMMANDS)
    counts = {"reserved": 3, "duplicate": 1, "conflict": 1, "handled": 4}
    assert drain(connection).counts == counts
    copies = [message.stream_name for message in store.read_category(RESERVED)]
    assert copies == [f"{RESERVED}-123+{key}" for key in ("d0", "d1", "d2", "w1", "k" * 700)]


@pytest.mark.parametrize("state", ["09000", "23514", "P0001", "UE001", "RV001", "RV002", "RV003"])
def test_a_refusal_at_the_commit_is_that_of_a_message(connection, store, state):
    """What a deferred trigger refuses is a dead letter, whatever the trigger calls it."""
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE 'refused' USING ERRCODE = '{state}'; END $$;"
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON message_store.messages "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        f"WHEN (NEW.stream_name = '{RESERVED}-123+bad') EXECUTE FUNCTION refuse()"
    )
    store.write([deposit("d1"), deposit("bad"), deposit("d2")], COMMANDS)
    counts = drain(connection).counts
    assert (counts["reserved"], counts["dead"], counts["handled"]) == (1, 1, 1)  # d2 is parked


def test_batches_grow_again_after_one_that_was_large(connection, store):
    """After a batch that ended early for its bytes, each reads more than the one before."""
    large = Component("account", id="account_id")
    large.handle(type(deposit()), key="deposit_id")(lambda *_: None)

    @large.initiate(Open)
    def begin(command: Open, context) -> Opened:
        return Opened(command.account_id, "x" * 2_000, command.time, command.time)

    store.write([open_(str(n)) for n in range(3)], COMMANDS)
    store.write([deposit(f"d{n}") for n in range(300)], COMMANDS)
    with capture_logs() as logged:
        drain(connection, large, batch_size=100, batch_bytes=1_000)
    read = [line["read"] for line in logged if line.get("category") == SENT and "read" in line]
    assert max(read) > 64
    assert sum(read) == 303


def test_a_consumer_that_is_woken_all_the_time_renews_its_lease(connection, store, database_url):
    """However soon each message follows, the lease is renewed when that is due."""
    with hosted(account, database_url) as thread:

        def renewed():
            query = "SELECT max(expires_at) FROM reservation.heartbeats WHERE member > 0"
            return connection.execute(query).fetchone()[0]

        first, sent = until(renewed, thread), 0

        def renewed_amid_messages():
            nonlocal sent
            sent += 1
            store.write(deposit(f"d{sent}"), COMMANDS)
            until(lambda: store.stream_version(f"{RESERVED}-123+d{sent}") == 0, thread)
            return renewed() > first

        until(renewed_amid_messages, thread)


def test_another_transaction_in_the_way_is_no_refusal(connection, store, database_url):
    """A lock of the category that others hold is waited for, and reported as that."""
    with logging(account, database_url) as logged:
        logged.wait_until("consumer_started", category=SENT)
        with connection.transaction():
            store.lock_categories([f"{RESERVED}-1"])
            store.write(deposit("d1"), "account:command-1")
            connection.execute("COMMIT; BEGIN")
            store.lock_categories([f"{RESERVED}-1"])
            logged.wait_until("lock_awaited", category=SENT)
        until(lambda: event_types(store) == ["Deposited"])
        assert not logged.named("message_dead")


def test_entities_are_what_their_whole_streams_make_them(connection, store, database_url):
    """However large events are, whoever writes them, and whatever was read along with messages."""
    made, seen = Component("made", entity=list, id="account_id"), {}
    made.project(Deposited)(lambda entity, event: entity.append(event.deposit_id))

    @made.handle(type(deposit()), key=Key("deposit_id", into="madeCopy"))
    def handle(command, entity, context):
        seen[command.deposit_id] = len(entity)  # a batch that lost a race is decided again
        return deposited(command.deposit_id, command.account_id)

    def send(key, account_id):
        store.write(deposit(key, account=account_id), f"madeCopy-{account_id}+{key}")

    def versions():
        return [store.stream_version(f"made-{account_id}") for account_id in "123"]

    # Of random text, which the server cannot compress.
    store.write([deposited(secrets.token_urlsafe(90_000)) for _ in range(3)], "made-1")
    store.write([deposited(secrets.token_urlsafe(30_000)) for _ in range(3)], "made-2")
    for n, account_id in enumerate(["1", "2", "3", "1"]):
        send(f"d{n}", account_id)
    with hosted(made, database_url) as thread:
        until(lambda: versions() == [4, 3, 0], thread)
        assert seen == {"d0": 3, "d1": 3, "d2": 0, "d3": 4}
        store.write([deposited(f"by hand {n}", "3") for n in range(5)], "made-3")
        send("d4", "3")
        send("d5", "2")
        until(lambda: versions() == [4, 4, 6], thread)
        for n in range(6, 26):
            send(f"d{n}", "3")
        until(lambda: versions() == [4, 4, 26], thread)
    later = {f"d{n}": n + 1 for n in range(6, 26)}
    assert seen == {"d0": 3, "d1": 3, "d2": 0, "d3": 4, "d4": 6, "d5": 4} | later
