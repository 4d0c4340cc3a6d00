"""message-db-py, a client that is not ours, through all of its public interface."""

import threading
import uuid

import pytest
from message_db.client import MessageDB
from message_db.connection import ConnectionPool

from reservation import Metadata, Write
from tests.apps.bank import broken, drain
from tests.support.controls import COMMANDS, deposit, open_

OPTIONS = "-csearch_path=message_store"
KEYS = {"id", "stream_name", "type", "position", "global_position", "data", "metadata", "time"}


def ids(messages):
    """Return the deposits' ids that a peer read."""
    return [message["data"]["depositId"] for message in messages]


def test_what_a_peer_writes_we_read(peer, store):
    """We read data, metadata, type and position of what message-db-py writes."""
    data = {"depositId": "d1", "accountId": "123", "amount": 10.5, "time": "2026-01-02T03:04:05Z"}
    metadata = {"correlationStreamName": "x-1", "properties": {"n": 1}, "unknown": True}
    assert peer.write(COMMANDS, "Deposit", data, metadata) == 0
    (message,) = store.read_stream(COMMANDS)
    assert message.decode(type(deposit())) == deposit("d1")
    assert (message.type, message.position, message.global_position) == ("Deposit", 0, 1)
    assert message.metadata == Metadata(correlation_stream_name="x-1", properties={"n": 1})
    assert [m.id for m in store.read_category("account:command")] == [message.id]
    assert store.last_message(COMMANDS) == message


def test_what_we_write_a_peer_reads(peer, store):
    """message-db-py reads what we write, with data and metadata as objects."""
    message_id = uuid.uuid4()
    metadata = Metadata(correlation_stream_name="x-1", properties={"n": 1})
    store.write(deposit("d1"), COMMANDS, id=message_id, metadata=metadata)
    store.write(deposit("d2"), COMMANDS)
    first, second = peer.read_stream(COMMANDS)
    assert set(first) == KEYS
    assert (first["id"], first["stream_name"], first["type"]) == (
        str(message_id),
        COMMANDS,
        "Deposit",
    )
    assert first["data"] == {
        "depositId": "d1",
        "accountId": "123",
        "amount": 10.5,
        "time": "2026-01-02T03:04:05Z",
    }
    assert first["metadata"] == {"correlationStreamName": "x-1", "properties": {"n": 1}}
    assert second["metadata"] is None
    both = [first, second]
    assert peer.read(COMMANDS) == both
    assert peer.read("account:command") == both
    assert peer.read_category("account:command") == both
    assert peer.read("$all") == both
    assert dict(peer.read_last_message(COMMANDS)) == second


def test_peers_write_under_an_expected_version(peer, store):
    """The expected version counts the writes of both clients."""
    assert peer.write(COMMANDS, "Deposit", {}, expected_version=-1) == 0
    assert store.write(deposit("d1"), COMMANDS, expected_version=0) == 1
    assert peer.write(COMMANDS, "Deposit", {}, expected_version=1) == 2
    with pytest.raises(ValueError, match="Wrong expected version: 1") as caught:
        peer.write(COMMANDS, "Deposit", {}, expected_version=1)
    assert str(caught.value) == (
        "P0001-ERROR:  Wrong expected version: 1 (Stream: account:command-123, Stream Version: 2)"
    )
    assert store.stream_version(COMMANDS) == 2


def test_a_peer_s_batch_is_written_whole_or_not_at_all(peer, store):
    """A batch of message-db-py is written as a whole or not at all."""
    batch = [("Deposit", {"n": 0}), ("Deposit", {"n": 1}, {"correlationStreamName": "x-1"})]
    assert peer.write_batch(COMMANDS, batch) == 1
    assert peer.write_batch(COMMANDS, batch, expected_version=1) == 3
    with pytest.raises(ValueError, match="Wrong expected version: 1"):
        peer.write_batch(COMMANDS, batch, expected_version=1)
    with pytest.raises(ValueError, match="23502-ERROR:  null value in column"):
        peer.write_batch(COMMANDS, [("Deposit", {}), (None, {})])
    stored = list(store.read_stream(COMMANDS))
    assert [m.position for m in stored] == [0, 1, 2, 3]
    assert [m.metadata.correlation_stream_name for m in stored] == [None, "x-1", None, "x-1"]


def test_a_peer_pages_through_streams_and_categories(peer, store):
    """message-db-py pages through streams and categories with inclusive positions."""
    store.write_batch(
        [Write(deposit(f"d{n}"), f"account:command-{n % 2}") for n in range(5)]
        + [Write(open_("9"), "other-9")]
    )
    assert ids(peer.read("account:command-0", position=1, no_of_messages=1)) == ["d2"]
    assert ids(peer.read_stream("account:command-1", 1)) == ["d3"]
    assert ids(peer.read("account:command", position=4, no_of_messages=-1)) == ["d3", "d4"]
    assert ids(peer.read_category("account:command", 2, 2)) == ["d1", "d2"]
    assert ids(peer.read("$all", position=3, no_of_messages=2)) == ["d3", "d4"]
    assert peer.read("nothing") == peer.read("nothing-1") == []


def test_a_peer_reads_with_its_own_sql(peer, store):
    """message-db-py's own SQL finds the table and Message DB's columns."""
    store.write([deposit("d1"), deposit("d2"), deposit("d3")], COMMANDS)
    found = peer.read(
        COMMANDS,
        sql="SELECT data::varchar, metadata::varchar, category(stream_name) FROM messages "
        "WHERE stream_name = %(stream_name)s AND position >= %(position)s "
        "ORDER BY position DESC LIMIT %(batch_size)s",
        position=1,
        no_of_messages=1,
    )
    assert ids(found) == ["d3"]
    assert found[0]["category"] == "account:command"


def test_members_of_a_group_share_out_the_streams(peer, store):
    """Every stream belongs to one member of a group, by its cardinal id."""
    for account in range(20):
        store.write(deposit(account=str(account)), f"account:command-{account}+x")
        store.write(deposit(account=str(account)), f"account:command-{account}+y")
    shares = [
        peer.read_category("account:command", consumer_group_member=member, consumer_group_size=3)
        for member in range(3)
    ]
    assert shares == [
        peer.read("account:command", consumer_group_member=member, consumer_group_size=3)
        for member in range(3)
    ]
    accounts = [{m["data"]["accountId"] for m in share} for share in shares]
    assert sum(map(len, shares)) == 40
    assert sum(map(len, accounts)) == len(set().union(*accounts)) == 20


def test_a_peer_lists_the_ids_of_a_category(peer, store):
    """message-db-py lists the stream ids of a category, sorted and without snapshots."""
    store.write_batch(
        [
            Write(deposit(), name)
            for name in ("account-2", "account-1+x", "account-2", "accountOther-3")
        ]
    )
    peer.write("account:snapshot-4", "Snapshot", {})
    assert peer.stream_identifiers("account") == ["1+x", "2"]
    assert peer.stream_identifiers("nothing") == []


def test_a_peer_reads_the_last_message(peer, store):
    """message-db-py reads the last message of a stream, or None."""
    assert peer.read_last_message(COMMANDS) is None
    store.write([deposit("d1"), deposit("d2")], COMMANDS)
    last = peer.read_last_message(COMMANDS)
    assert (last["position"], last["data"]["depositId"], last["metadata"]) == (1, "d2", None)


def test_the_role_of_the_clients_is_enough(database_url):
    """All calls of message-db-py work with the rights of the role message_store."""
    pool = ConnectionPool.from_url(
        database_url, max_connections=1, options=f"{OPTIONS} -crole=message_store"
    )
    client = MessageDB(connection_pool=pool)
    assert client.write(COMMANDS, "Deposit", {}) == 0
    assert client.write_batch(COMMANDS, [("Deposit", {})]) == 1
    for name in (COMMANDS, "account:command", "$all"):
        assert [m["position"] for m in client.read(name)] == [0, 1]
    assert client.read_last_message(COMMANDS)["position"] == 1
    assert client.stream_identifiers("account:command") == ["123"]
    pool.closeall()


def test_a_peer_writes_without_a_search_path(database_url):
    """message-db-py writes without a search_path, because it names the schema."""
    client = MessageDB.from_url(database_url, max_connections=1)
    assert client.write(COMMANDS, "Deposit", {}) == 0
    assert client.write_batch(COMMANDS, [("Deposit", {})], expected_version=0) == 1
    client.connection_pool.closeall()


def test_two_clients_at_once_leave_no_gap(peer, store, database_url):
    """Two clients writing at the same time leave no gap, and neither fails."""

    def write_all():
        for _ in range(25):
            peer.write(COMMANDS, "Deposit", {})

    thread = threading.Thread(target=write_all)
    thread.start()
    for n in range(25):
        store.write([deposit(f"d{n}"), deposit(f"e{n}")], COMMANDS)
    thread.join()
    messages = peer.read("account:command")
    assert [m["position"] for m in messages] == list(range(75))


def test_commands_that_a_peer_writes_are_reserved_and_handled(peer, connection):
    """Commands that message-db-py writes are reserved and handled."""
    time = "2026-01-02T03:04:05.000Z"
    account = {"accountId": "123", "time": time}
    peer.write(COMMANDS, "Open", {**account, "customerId": "456"})
    for _ in range(2):  # the peer gives each a new message id
        peer.write(COMMANDS, "Deposit", {**account, "depositId": "d1", "amount": 10.5})
    peer.write_batch(
        COMMANDS,
        [
            ("Withdraw", {**account, "withdrawalId": "w1", "amount": 4}),
            ("Withdraw", {**account, "withdrawalId": "w2", "amount": 99}),
            ("Close", account),
        ],
    )
    drain(connection)
    events = peer.read_stream("account-123")
    assert [event["type"] for event in events] == [
        "Opened",
        "Closed",
        "Deposited",
        "Withdrawn",
        "WithdrawalRejected",
    ]
    (copy,) = peer.read("accountTransaction-123+d1")
    assert set(events[2]["data"]) == {
        "depositId",
        "accountId",
        "amount",
        "time",
        "processedTime",
        "sequence",
    }
    assert events[2]["data"]["amount"] == 10.5
    assert events[2]["data"]["sequence"] == copy["global_position"]
    assert broken(connection) == {}
