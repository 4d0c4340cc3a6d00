"""The worker's database: the next test finds a new store, whatever the one before left there."""

import pytest
from psycopg import connect

from reservation import MessageStore
from tests.support.controls import COMMANDS, deposit
from tests.support.databases import WorkerDatabase

SEQUENCE = "message_store.messages_global_position_seq"
LEFT = [
    "CREATE TABLE public.left_behind ()",
    "ALTER TABLE message_store.messages ALTER COLUMN data SET STATISTICS 10",
    "CREATE INDEX ON message_store.messages (type)",
    (
        "CREATE TRIGGER t BEFORE UPDATE ON message_store.messages FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    ),
    (
        "CREATE OR REPLACE FUNCTION message_store.message_store_version() RETURNS varchar "
        "LANGUAGE sql AS 'SELECT ''0''::varchar'"
    ),
    "GRANT SELECT ON message_store.messages TO PUBLIC",
    "CREATE POLICY p ON message_store.messages",
    f"ALTER SEQUENCE {SEQUENCE} MAXVALUE 2",
    (
        "UPDATE pg_index SET indisvalid = false "
        "WHERE indexrelid = 'message_store.messages_category'::regclass"
    ),
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET jit = off', current_database()); END $$",
    "UPDATE reservation.store_identity SET id = gen_random_uuid()",
    "DROP SCHEMA reservation CASCADE",
]


@pytest.fixture
def database(admin, server_url, template):
    """Give a worker's database of this test's own."""
    made = WorkerDatabase(admin, server_url, template)
    yield made
    made.drop()


def test_rows_are_removed_and_sequences_start_again(database):
    """The next test has the same database, and its first message the position 1."""
    for _ in range(2):
        with connect(database.take(), autocommit=True) as connection:
            store = MessageStore(connection)
            assert store.write(deposit(), COMMANDS) == 0
            (message,) = store.read_stream(COMMANDS)
            assert message.global_position == 1
            names = connection.execute("SELECT current_database()").fetchall()
        database.give_back()
    with connect(database.take()) as connection:
        assert connection.execute("SELECT current_database()").fetchall() == names


@pytest.mark.parametrize("statement", LEFT)
def test_a_test_that_leaves_more_than_rows_leaves_it_to_nobody(database, statement):
    """Objects, rights, settings and identity: the next test has another database."""
    former = database.take()
    with connect(former, autocommit=True) as connection:
        connection.execute(statement)
    database.give_back()
    assert database.take() != former


def test_a_session_that_is_left_ends_with_its_database(database):
    """What still runs cannot write into the store of the next test."""
    former = database.take()
    with connect(former) as left:
        database.give_back()
        assert database.take() != former
        left.close()
