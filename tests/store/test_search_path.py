"""The search_path of who writes: triggers on the log find it, and it misleads no function."""

import uuid
from datetime import timedelta

import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from reservation import MessageStore, Write
from reservation.errors import MissingObjectError, StoreError
from tests.apps.bank import drain, event_types
from tests.store.builders import grant, new_role  # noqa: F401  a fixture
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.message_db import write
from tests.support.stored_positions import store_position

# A schema that has another operator for each of the server's on the types that functions use,
# another function for each that they call, and other types. Each of them raises, or fits nothing.
HOSTILE = """
CREATE SCHEMA hostile;
DO $$
DECLARE
  one record;
BEGIN
  FOR one IN
    SELECT o.oprname, o.oprleft::regtype AS l, o.oprright::regtype AS r,
           o.oprresult::regtype AS result,
           row_number() OVER () AS n
    FROM pg_operator o
    WHERE o.oprleft = ANY (%(types)s::regtype[]) AND o.oprright = ANY (%(types)s::regtype[])
  LOOP
    EXECUTE format(
      'CREATE FUNCTION hostile.operator_%%s(%%s, %%s) RETURNS %%s LANGUAGE plpgsql AS '
      '''BEGIN RAISE ''''hostile operator %%s''''; END''', one.n, one.l, one.r, one.result,
      replace(one.oprname, '%%', '%%%%'));
    EXECUTE format('CREATE OPERATOR hostile.%%s (FUNCTION = hostile.operator_%%s, LEFTARG = %%s, '
                   'RIGHTARG = %%s)', one.oprname, one.n, one.l, one.r);
  END LOOP;
  FOR one IN
    SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments,
           CASE WHEN p.proretset THEN 'SETOF' END AS many
    FROM pg_proc p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind IN ('f', 'a')
      AND pg_get_function_identity_arguments(p.oid) !~ 'internal|cstring|VARIADIC|OUT |"any"'
      AND EXISTS (
        SELECT FROM pg_proc ours
        WHERE ours.pronamespace IN ('message_store'::regnamespace, 'reservation'::regnamespace)
          AND ours.prosrc ~ ('\\m' || p.proname || '\\M *\\('))
  LOOP
    EXECUTE format(
      'CREATE FUNCTION hostile.%%I(%%s) RETURNS %%s pg_catalog.int4 LANGUAGE plpgsql AS '
      '''BEGIN RAISE ''''hostile function %%s''''; END''',
      one.proname, one.arguments, one.many, one.proname);
  END LOOP;
END
$$;
CREATE DOMAIN hostile.text AS bytea;
CREATE DOMAIN hostile.uuid AS bytea;
CREATE DOMAIN hostile.jsonb AS bytea;
CREATE DOMAIN hostile.record AS bytea;
CREATE TABLE hostile.messages (LIKE message_store.messages);
CREATE TABLE hostile.scheduled (n int);
"""
TYPES = ["text", "varchar", "bigint", "integer", "boolean", "jsonb", "numeric", "bit"]

# The functions that write, each as somebody calls it who names everything in full.
CALLS = [
    "SELECT message_store.acquire_lock('account-1')",
    "SELECT message_store.hash_64('account')",
    "SELECT message_store.message_store_version()",
    "SELECT message_store.id('a-1+2'), message_store.cardinal_id('a-1+2')",
    "SELECT message_store.is_category('a'), message_store.category('a-1')",
    "SELECT message_store.stream_version('account-1')",
    "SELECT message_store.write_message(%(text)s, 'account-1', 'T', '{}', NULL, -1)",
    "SELECT * FROM message_store.get_category_messages('account')",
    "SELECT reservation.write_message(%(id)s, 'account-2', 'T', '{}', NULL, NULL)",
    "SELECT reservation.write_messages(%(ids)s, %(streams)s, %(types)s, %(data)s, %(data)s, NULL)",
    "SELECT reservation.write_messages(%(ids)s, %(streams)s, %(types)s, %(data)s, %(data)s, NULL)",
    "SELECT reservation.write_each(%(ids)s, %(streams)s, %(types)s, %(data)s, %(data)s, %(wrong)s)",
    (
        "SELECT reservation.write_each(%(more)s, %(streams)s, %(types)s, %(data)s, %(data)s, "
        "%(wrong)s)"
    ),
    "CALL reservation.commit_message(%(other)s, 'account-2', 'T', '{}', NULL, NULL)",
    "CALL reservation.commit_messages(%(ids)s, %(streams)s, %(types)s, %(data)s, %(data)s, NULL)",
    "CALL reservation.commit_each(%(ids)s, %(streams)s, %(types)s, %(data)s, %(data)s, NULL)",
    "SELECT reservation.readable_text(%(large)s)",
    "SELECT * FROM reservation.reserve(%(commands)s, %(keys)s, '{}')",
    (
        "SELECT * FROM reservation.reserve_next('c', 'x:command', %(partitions)s, %(epochs)s, 0, "
        "10, %(rules)s, '{}', NULL, 100, '1s')"
    ),
    (
        "SELECT reservation.schedule_messages(%(due)s, %(streams)s, %(types)s, %(data)s, %(data)s, "
        "%(times)s)"
    ),
    "SELECT * FROM reservation.write_scheduled(10)",
]


def arguments(connection):
    """Return the arguments of the calls: two messages, and what else they name."""
    store_position(connection, "c", "x:command", 0)
    now, epoch = connection.execute("SELECT now(), epoch FROM reservation.positions").fetchone()
    ids = [uuid.uuid4() for _ in range(8)]
    return {
        "id": ids[0],
        "text": str(ids[1]),
        "other": ids[2],
        "ids": ids[3:5],
        "more": [ids[5], ids[3]],
        "due": ids[6:8],
        "times": [now, now],
        "streams": ["x:command-3", "other-3"],
        "types": ["T", "T"],
        "data": [Jsonb({"k": "1"})] * 2,
        "large": Jsonb({"k": "1" * 10_000}),
        "wrong": [None, 7],
        "commands": [1, 2, 2],
        "keys": ["accountTransaction-1", "accountTransaction-2", "accountTransaction-2"],
        "partitions": [0],
        "epochs": [epoch],
        "rules": Jsonb(
            [{"type": "T", "into": "x", "pattern": "^x", "field1": "k", "kind1": "string"}]
        ),
    }


def test_functions_that_leave_the_search_path_are_not_misled_by_it(connection):
    """Every function without a search_path of its own works where each name is another's."""
    values = arguments(connection)
    connection.execute(
        HOSTILE.replace("%(types)s", "'{" + ",".join(TYPES) + "}'").replace("%%", "%")
    )
    connection.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'refused'; END $$; "
        "CREATE TRIGGER refuse BEFORE INSERT ON message_store.messages FOR EACH ROW "
        "WHEN (NEW.stream_name = 'refused-1') EXECUTE FUNCTION public.refuse()"
    )
    connection.execute("SET track_functions = 'all'")
    connection.execute("SET search_path = hostile, pg_catalog")
    with connection.transaction():
        for call in CALLS:
            found = connection.execute(call, values)
            if "reserve_next" in call:
                (read, duplicates) = found.fetchone()[-2:]
                assert read > duplicates > 0
        values["streams"] = ["refused-1", "account-4"]
        values["due"] = [uuid.uuid4(), uuid.uuid4()]
        for call in CALLS[-2:]:
            connection.execute(call, values)
        connection.execute("SET LOCAL search_path = pg_catalog")
        (left,) = connection.execute("SELECT count(*) FROM reservation.scheduled").fetchone()
        assert left == 1
        missed = connection.execute(
            "SELECT p.oid::regprocedure::text FROM pg_proc p "
            "WHERE p.pronamespace::regnamespace::text IN ('message_store', 'reservation') "
            "AND p.prosqlbody IS NULL "
            "AND NOT coalesce(p.proconfig::text LIKE '%search_path=%', false) "
            "AND NOT EXISTS (SELECT FROM pg_stat_xact_user_functions s WHERE s.funcid = p.oid)"
        ).fetchall()
    assert missed == []


MISLEADING = """
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.raises(text, text) RETURNS boolean LANGUAGE plpgsql AS
  $$ BEGIN RAISE 'hostile operator'; END $$;
CREATE OPERATOR hostile.= (FUNCTION = hostile.raises, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR hostile.<> (FUNCTION = hostile.raises, LEFTARG = text, RIGHTARG = text);
"""


def test_consumers_are_not_misled_by_the_search_path_of_their_database(connection, database_url):
    """Clients and consumers set their sessions up where operators are others'."""
    connection.execute(MISLEADING)
    name = sql.Identifier(connection.info.dbname)
    connection.execute(
        sql.SQL("ALTER DATABASE {} SET search_path = hostile, pg_catalog").format(name)
    )
    with MessageStore.open(database_url) as store:
        store.write_batch([Write(open_(), COMMANDS), Write(deposit(), COMMANDS)])
        store.write(deposit("later"), COMMANDS, after=timedelta(0))
        drain(connection)
        assert event_types(store) == ["Opened", "Deposited", "Deposited"]


@pytest.fixture
def outbox(connection):
    """Give a connection whose search_path alone has the table that a trigger writes to."""
    connection.execute(
        "CREATE SCHEMA app; "
        "CREATE TABLE app.outbox (stream_name text, type text); "
        "CREATE FUNCTION app.note() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN INSERT INTO outbox VALUES (NEW.stream_name, NEW.type); RETURN NULL; END $$; "
        "CREATE TRIGGER note AFTER INSERT ON message_store.messages "
        "FOR EACH ROW EXECUTE FUNCTION app.note()"
    )
    name = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} SET search_path = app").format(name))
    connection.execute("SET search_path = app")
    return connection


def noted(connection):
    """Return what the trigger has noted, in its order."""
    return connection.execute("SELECT stream_name, type FROM app.outbox").fetchall()


def test_a_trigger_finds_the_search_path_of_whoever_writes(outbox):
    """A trigger that relies on the caller's search_path works with each way to write."""
    store = MessageStore(outbox)
    write(outbox, "a-1")
    store.write(deposit("d1"), "b-1")
    store.write_batch([Write(deposit("d2"), "c-1"), Write(deposit("d3"), "c-2")])
    with outbox.transaction():
        store.write(deposit("d4"), "d-1")
    again = uuid.uuid4()
    store.write(deposit("d5"), "e-1", id=again)
    store.write_batch([Write(deposit("d5"), "e-1", id=again), Write(deposit("d6"), "e-2")])
    assert [name for name, _ in noted(outbox)] == [
        "a-1",
        "b-1",
        "c-1",
        "c-2",
        "d-1",
        "e-1",
        "e-2",
    ]


def test_a_trigger_finds_the_search_path_of_a_consumer(outbox):
    """Copies, events and what was scheduled are written with the search_path of the consumer."""
    store = MessageStore(outbox)
    store.write(open_(), COMMANDS)
    store.write(deposit(), COMMANDS)
    store.write(deposit("d2"), COMMANDS, after=timedelta(0))
    drain(outbox)
    stored = outbox.execute(
        "SELECT stream_name, type FROM message_store.messages ORDER BY global_position"
    ).fetchall()
    assert {"Opened", "Deposited"} <= {type_ for _, type_ in stored}
    assert noted(outbox) == stored


def test_the_error_of_a_trigger_is_no_missing_schema(outbox):
    """What a trigger does not find is named, and not taken for a store that is not installed."""
    outbox.execute("SET search_path = public")
    with pytest.raises(StoreError) as caught:
        MessageStore(outbox).write(deposit(), COMMANDS)
    assert not isinstance(caught.value, MissingObjectError)
    assert str(caught.value) == (
        'The database refused: relation "outbox" does not exist; look for code in the database '
        "that names it, such as a trigger on message_store.messages"
    )


def test_a_sender_writes_with_the_search_path_of_the_function_that_writes_for_it(outbox, new_role):  # noqa: F811
    """What writes with the rights of the owner takes no search_path from whoever calls it."""
    role = new_role()
    grant(outbox, "sender", role, ["account:command"])
    as_sender = sql.SQL("SET ROLE {}").format(sql.Identifier(role))
    outbox.execute(as_sender)
    with pytest.raises(StoreError, match='relation "outbox" does not exist'):
        MessageStore(outbox).write(deposit(), COMMANDS)
    outbox.execute("RESET ROLE; ALTER FUNCTION app.note SET search_path = app, pg_temp")
    outbox.execute(as_sender)
    MessageStore(outbox).write(deposit(), COMMANDS)
    outbox.execute("RESET ROLE")
    assert noted(outbox) == [(COMMANDS, "Deposit")]
