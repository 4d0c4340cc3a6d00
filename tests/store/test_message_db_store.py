"""Our client and consumers on a store that Message DB installed and no search_path finds."""

import uuid

import pytest
from psycopg import connect, errors

from reservation import MessageStore, Metadata, Write
from reservation.admin import install
from reservation.errors import ExpectedVersionError, MessageIdConflictError
from tests.apps.bank import RESERVED, broken, drain, event_types
from tests.support.controls import COMMANDS, deposit, open_, withdraw
from tests.support.message_db import imitate, write


@pytest.fixture
def database_url(make_database, message_db_template):
    """Let every database of this module be one that Message DB installed."""
    return make_database(message_db_template)


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
        assert not installed.notices
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


def test_a_peer_and_we_share_it(peer, store):
    """message-db-py and our client read each other's messages and respect their versions."""
    assert peer.write(COMMANDS, "Deposit", {"n": 1}) == 0
    assert store.write(deposit("d2"), COMMANDS, expected_version=0) == 1
    with pytest.raises(ValueError, match="Wrong expected version"):
        peer.write(COMMANDS, "Deposit", {}, expected_version=0)
    assert [m["id"] for m in peer.read("account:command")] == [
        m.id for m in store.read_category("account:command")
    ]


TEXT_ALONE = """
CREATE FUNCTION public.copy() RETURNS trigger LANGUAGE plpgsql SET search_path = message_store AS $$
BEGIN
  PERFORM write_message(gen_random_uuid()::varchar, 'copy-1', 'T', '{}', NULL, 5);
  RETURN NEW;
END $$;
CREATE TRIGGER copy BEFORE INSERT ON message_store.messages
  FOR EACH ROW WHEN (NEW.stream_name = 'copied-1') EXECUTE FUNCTION public.copy()
"""


def test_a_wrong_version_is_recognized_from_our_function_and_by_its_text(connection, store):
    """Message DB's function, which a trigger may call, says by its text alone what was wrong."""
    store.write(deposit(), COMMANDS)
    with pytest.raises(ExpectedVersionError, match=r"Wrong expected version: -1 \(Stream: account"):
        store.write_initial(deposit(), COMMANDS)
    connection.execute(TEXT_ALONE)
    with pytest.raises(ExpectedVersionError, match=r"Wrong expected version: 5 \(Stream: copy-1"):
        store.write(deposit(), "copied-1")


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
    handled = drain(connection)
    assert event_types(store) == [
        "Opened",
        "Deposited",
        "Withdrawn",
        "WithdrawalRejected",
        "Deposited",
    ]
    assert len(list(store.read_category(RESERVED))) == 4
    assert handled.counts == {"reserved": 4, "duplicate": 2, "handled": 5}
    assert broken(connection) == {}
