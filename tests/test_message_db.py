"""The store as other Message DB clients see it."""

import json

import pytest
from message_db.client import MessageDB
from psycopg import conninfo, errors

from tests.bank import broken, drain
from tests.controls import COMMANDS, deposit


@pytest.fixture
def peer(database_url):
    """Give message-db-py, a client that is not ours, on the test's database."""
    address = conninfo.make_conninfo(database_url, options="-csearch_path=message_store")
    client = MessageDB.from_url(address, max_connections=2)
    yield client
    client.connection_pool.closeall()


def test_what_a_peer_writes_we_read_and_the_other_way_round(peer, store):
    """One store, two clients."""
    data = {"depositId": "d1", "accountId": "123", "amount": 10.5, "time": "2026-01-02T03:04:05Z"}
    assert peer.write(COMMANDS, "Deposit", data, {"correlationStreamName": "x-1"}) == 0
    assert store.write(deposit("d2"), COMMANDS, expected_version=0) == 1
    (theirs, ours) = store.read_stream(COMMANDS)
    assert theirs.decode(type(deposit())) == deposit("d1")
    assert theirs.metadata.correlation_stream_name == "x-1"
    assert [message["data"]["depositId"] for message in peer.read(COMMANDS)] == ["d1", "d2"]
    assert peer.read_last_message(COMMANDS)["id"] == ours.id
    assert [m["position"] for m in peer.read("account:command")] == [0, 1]


def test_commands_that_a_peer_writes_are_reserved_and_handled(peer, connection):
    """Neither its sender nor the reader of the events need know of this framework."""
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


def test_a_peer_is_told_a_wrong_version_in_the_words_it_knows(peer):
    """Existing clients match on the text."""
    peer.write(COMMANDS, "Deposit", {})
    with pytest.raises(ValueError, match=r"P0001-ERROR:  Wrong expected version: -1 \(Stream: ac"):
        peer.write(COMMANDS, "Deposit", {}, expected_version=-1)


def test_groups_share_out_the_streams(peer, store):
    """Every stream belongs to one member, by the hash of its cardinal id."""
    for account in range(20):
        store.write(deposit(account=str(account)), f"account:command-{account}+x")
    read = [
        {m["stream_name"] for m in peer.read_category("account:command", 0, 100, member, 3)}
        for member in range(3)
    ]
    assert sum(map(len, read)) == len(set().union(*read)) == 20


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("get_stream_messages('account')", "Must be a stream name: account"),
        ("get_category_messages('account-1')", "Must be a category: account-1"),
        (
            "get_category_messages('account', correlation => 'x-1')",
            "Correlation must be a category (Correlation: x-1)",
        ),
        (
            "get_category_messages('account', consumer_group_member => 1)",
            (
                "Consumer group member and size must be specified "
                "(Consumer Group Member: 1, Consumer Group Size: <NULL>)"
            ),
        ),
        (
            "get_category_messages('a', consumer_group_member => 0, consumer_group_size => 0)",
            (
                "Consumer group size must not be less than 1 "
                "(Consumer Group Member: 0, Consumer Group Size: 0)"
            ),
        ),
        (
            "get_category_messages('a', consumer_group_member => -1, consumer_group_size => 1)",
            (
                "Consumer group member must not be less than 0 "
                "(Consumer Group Member: -1, Consumer Group Size: 1)"
            ),
        ),
        (
            "get_category_messages('a', consumer_group_member => 1, consumer_group_size => 1)",
            (
                "Consumer group member must be less than the group size "
                "(Consumer Group Member: 1, Consumer Group Size: 1)"
            ),
        ),
        (
            "get_stream_messages('a-1', condition => 'true')",
            "Retrieval with SQL condition is not activated",
        ),
        (
            "get_category_messages('a', condition => 'true')",
            "Retrieval with SQL condition is not activated",
        ),
    ],
)
def test_errors_have_the_published_texts(connection, call, text):
    """SQLSTATE P0001 and the words that clients match on."""
    with pytest.raises(errors.RaiseException) as caught:
        connection.execute(f"SELECT * FROM message_store.{call}")
    assert caught.value.diag.message_primary == text


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("get_stream_messages('account:command-123', NULL, NULL)", ["d0", "d1", "d2"]),
        ("get_stream_messages('account:command-123', 1)", ["d1", "d2"]),
        ("get_stream_messages('account:command-123', 0, 1)", ["d0"]),
        ("get_stream_messages('account:command-123', 0, -1)", ["d0", "d1", "d2"]),
        ("get_category_messages('account:command', NULL, NULL)", ["d0", "d1", "d2"]),
        ("get_category_messages('account:command', batch_size => 2)", ["d0", "d1"]),
        ("get_category_messages('account:command', batch_size => -1)", ["d0", "d1", "d2"]),
        ("get_category_messages('account:command', correlation => 'odd')", ["d1"]),
        ("get_category_messages('account')", []),
        ("get_last_stream_message('account:command-123')", ["d2"]),
        ("get_last_stream_message('account:command-123', 'Other')", []),
    ],
)
def test_defaults_and_nulls_are_those_of_the_contract(connection, store, call, found):
    """A NULL means the default, -1 means no limit, positions are inclusive."""
    from reservation import Metadata

    for n in range(3):
        correlation = Metadata(correlation_stream_name="odd-1") if n == 1 else None
        store.write(deposit(f"d{n}"), COMMANDS, metadata=correlation)
    rows = connection.execute(f"SELECT data FROM message_store.{call}").fetchall()
    assert [json.loads(data)["depositId"] for (data,) in rows] == found


def test_a_condition_narrows_a_read_where_it_is_activated(connection, store):
    """The setting is Message DB's."""
    store.write([deposit("d0"), deposit("d1")], COMMANDS)
    connection.execute("SET message_store.sql_condition = 'on'")
    rows = connection.execute(
        "SELECT position FROM message_store.get_stream_messages(%s, condition => 'position = 1')",
        [COMMANDS],
    ).fetchall()
    assert rows == [(1,)]


def test_names_hash_and_version_are_those_of_the_contract(connection, store):
    """Other clients compute the hash themselves to share out streams."""
    assert connection.execute(
        "SELECT message_store.hash_64('account'), message_store.message_store_version(), "
        "message_store.stream_version('a-1')"
    ).fetchone() == (
        int.from_bytes(bytes.fromhex("e268443e43d93dab"), signed=True),
        "1.3.0",
        None,
    )


@pytest.mark.parametrize(
    "view",
    [
        "category_type_summary",
        "stream_summary",
        "stream_type_summary",
        "type_category_summary",
        "type_stream_summary",
        "type_summary",
    ],
)
def test_the_views_count_what_is_stored(connection, store, view):
    """Counts and percentages, readable by the role that clients use."""
    store.write([deposit("d1"), deposit("d2")], COMMANDS)
    connection.execute("SET ROLE message_store")
    row = connection.execute(f"SELECT * FROM message_store.{view}").fetchone()
    assert [float(value) for value in row[-2:]] == [2, 100]


def test_the_role_of_the_clients_may_read_and_write(connection):
    """It needs nothing but the schema."""
    connection.execute("SET ROLE message_store")
    written = connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'a-1', 'T', '{}')"
    ).fetchone()
    assert written == (0,)
    assert connection.execute("SELECT count(*) FROM message_store.messages").fetchone() == (1,)
