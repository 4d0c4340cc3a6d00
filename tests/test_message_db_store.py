"""Our client and consumers on a store that Message DB installed and no search_path finds."""

import uuid

import pytest
from psycopg import errors

from reservation import MessageStore, Metadata, Write, install
from reservation.errors import ExpectedVersionError, MessageIdConflictError
from reservation.postgres.connection import connect
from reservation.postgres.error_translation import translated
from tests.bank import RESERVED, batches, broken, event_types
from tests.controls import COMMANDS, deposit, open_, withdraw
from tests.large_calls import growing_calls, store_calls
from tests.large_log import SIZES, fill, run
from tests.message_db import imitate, write

pytestmark = pytest.mark.slow


@pytest.fixture
def template(message_db_template):
    """Let every database of this module be one that Message DB installed."""
    return message_db_template


def functions(connection):
    """Return the definitions of the schema's functions."""
    return connection.execute(
        "SELECT proname, prosrc, proconfig, proacl::text FROM pg_proc "
        "WHERE pronamespace = 'message_store'::regnamespace ORDER BY proname"
    ).fetchall()


def test_installing_leaves_the_store_as_it_is(empty_database_url):
    """Installing into a store of Message DB leaves its functions and messages unchanged."""
    with connect(empty_database_url, autocommit=True) as connection:
        imitate(connection)
        before = functions(connection)
        installed = install(connection)
        assert not installed.message_store
        assert installed.from_version is None
        MessageStore(connection).write(deposit(), COMMANDS)
        connection.execute("DROP SCHEMA reservation CASCADE")
        assert functions(connection) == before
        connection.execute("SET search_path = message_store")
        assert write(connection) == 1


def test_its_functions_need_the_search_path_and_ours_do_not(connection, store):
    """Message DB's functions need a search_path, and ours do not."""
    with pytest.raises(errors.UndefinedFunction):
        write(connection)
    assert store.write(deposit(), COMMANDS) == 0


def test_the_client_writes_and_reads(store):
    """All calls of the client work without a search_path."""
    message_id = uuid.uuid4()
    metadata = Metadata(correlation_stream_name="x-1")
    assert store.write(deposit("d1"), COMMANDS, id=message_id, metadata=metadata) == 0
    assert store.write(deposit("d1"), COMMANDS, id=message_id, metadata=metadata) == 0
    with pytest.raises(MessageIdConflictError):
        store.write(deposit("d2"), COMMANDS, id=message_id)
    assert store.write_batch(
        [
            Write(deposit("d2"), COMMANDS, expected_version=0),
            Write(open_("9"), "account:command-9", expected_version=-1),
        ]
    ) == [1, 0]
    assert [m.position for m in store.read_stream(COMMANDS, position=1)] == [1]
    assert [m.global_position for m in store.read_category("account:command", batch_size=1)] == [
        1,
        2,
        3,
    ]
    assert len(store.read_streams({COMMANDS: 1, "account:command-9": 0})) == 2
    assert store.last_message(COMMANDS).decode(type(deposit())) == deposit("d2")
    assert store.last_message(COMMANDS, "Withdraw") is None
    assert (store.stream_version(COMMANDS), store.stream_version("a-1")) == (1, -1)


def test_a_wrong_version_is_recognized_from_our_function_and_by_its_text(connection, store):
    """A wrong version is recognized from our function, and by its text from Message DB's."""
    store.write(deposit(), COMMANDS)
    with pytest.raises(ExpectedVersionError, match=r"Wrong expected version: -1 \(Stream: account"):
        store.write_initial(deposit(), COMMANDS)
    connection.execute("SET search_path = message_store")
    with pytest.raises(ExpectedVersionError, match="Stream Version: 0") as caught, translated():
        write(connection, expected_version=5)
    assert caught.value.__cause__.diag.constraint_name is None


def test_a_peer_and_we_share_it(peer, store):
    """message-db-py and our client read each other's messages and respect their versions."""
    assert peer.write(COMMANDS, "Deposit", {"n": 1}) == 0
    assert store.write(deposit("d2"), COMMANDS, expected_version=0) == 1
    with pytest.raises(ValueError, match="Wrong expected version"):
        peer.write(COMMANDS, "Deposit", {}, expected_version=0)
    assert [m["id"] for m in peer.read("account:command")] == [
        m.id for m in store.read_category("account:command")
    ]


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_writers_of_one_category_wait_for_each_other(connection, database_url, first):
    """Writers of both kinds take the same lock, so that a reader misses nothing."""
    with connect(database_url, autocommit=True) as other:
        calls = {
            "ours": lambda c: MessageStore(c).write(deposit(), "account:command-1"),
            "theirs": lambda c: write(c, "account:command-2"),
        }
        for locking in (connection, other):
            locking.execute("SET search_path = message_store")
        other.execute("SET lock_timeout = '50ms'")
        second = "theirs" if first == "ours" else "ours"
        with connection.transaction():
            calls[first](connection)
            with pytest.raises(Exception, match="lock timeout"):
                calls[second](other)
        calls[second](other)


def test_the_consumers_take_each_command_once(connection, store, peer):
    """Commands of both clients take effect once, with a reissue of either."""
    account = {"accountId": "123", "time": "2026-01-02T03:04:05Z"}
    store.write_batch(
        [
            Write(open_(), COMMANDS),
            Write(open_(), COMMANDS),
            Write(deposit("d1"), COMMANDS),
            Write(withdraw("w1"), COMMANDS),
            Write(withdraw("w2", "99"), COMMANDS),
        ]
    )
    peer.write(COMMANDS, "Deposit", {**account, "depositId": "d1", "amount": 10.5})
    peer.write(COMMANDS, "Deposit", {**account, "depositId": "d2", "amount": 1})
    results = batches(connection)
    assert event_types(store) == [
        "Opened",
        "Deposited",
        "Withdrawn",
        "WithdrawalRejected",
        "Deposited",
    ]
    assert len(list(store.read_category(RESERVED))) == 4
    assert sum(result.read for result in results) == 11
    assert broken(connection) == {}


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_statement_of_ours_touches_more_than_its_batch(connection, analyzed):
    """No statement scans the log, though the planner cannot look into `category`."""
    connection.execute("ALTER TABLE message_store.messages SET (autovacuum_enabled = off)")
    connection.execute("ALTER SEQUENCE message_store.messages_global_position_seq RESTART 1000000")
    size = SIZES["10,000"]
    fill(connection, size, 1, size.sent)
    if analyzed:
        connection.execute("ANALYZE message_store.messages")
    for name, work in (store_calls(size) | growing_calls(size)).items():
        if "Message DB" not in name:
            counted = run(connection, work.do)
            assert counted.scanned + counted.fetched <= work.rows, name
