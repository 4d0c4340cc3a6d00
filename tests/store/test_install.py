"""Putting the store into a database, and ours beside Message DB's and away again."""

import json
import threading

import psycopg
import pytest
from psycopg import connect

import consumers
from bank import account
from reservation import MessageStore
from reservation.admin import attach, detach, install
from reservation.errors import (
    DatabaseUnavailableError,
    LockTimeoutError,
    SchemaError,
    StoreError,
)
from tests.apps.bank import drain, event_types
from tests.store.schemas import FINGERPRINT, message_db  # noqa: F401  a fixture
from tests.support.commands import invoke_cli
from tests.support.controls import COMMANDS, deposit, open_

VERSION = 1


def stored(connection):
    """Return every message as it is stored."""
    return connection.execute(
        "SELECT m::text FROM message_store.messages m ORDER BY global_position"
    ).fetchall()


def schemas(connection):
    """Return which of the store's schemas there are."""
    return connection.execute(
        "SELECT to_regnamespace('message_store')::text, to_regnamespace('reservation')::text"
    ).fetchone()


def test_an_empty_database_gets_both_schemas(empty_database_url):
    """The first installation creates both schemas and says so."""
    with connect(empty_database_url, autocommit=True) as connection:
        installed = install(connection)
        assert MessageStore(connection).write(deposit(), COMMANDS) == 0
    assert installed.message_store
    assert installed.message_store_version == "1.3.0"
    assert (installed.from_version, installed.to_version) == (None, VERSION)


def test_installing_again_changes_nothing(connection, store):
    """Installing again, as deployments do, changes nothing."""
    store.write(deposit(), COMMANDS)
    installed = install(connection)
    assert not installed.message_store
    assert installed.from_version == installed.to_version == VERSION
    assert store.stream_version(COMMANDS) == 0


def test_a_new_log_is_not_put_beside_positions_in_an_old_one(connection):
    """A new log beside old positions is refused, since consumers would pass over messages."""
    connection.execute("DROP SCHEMA message_store CASCADE")
    with pytest.raises(SchemaError, match=r"store detach.* then install again"):
        install(connection)
    detach(connection)
    assert install(connection).message_store
    assert MessageStore(connection).write(deposit(), COMMANDS) == 0


def test_two_installations_at_once_wait_for_each_other(empty_database_url):
    """Two installations at the same time wait for each other."""
    results = []

    def run():
        with connect(empty_database_url, autocommit=True) as connection:
            results.append(install(connection))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.message_store for result in results) == [False, False, False, True]


def test_an_installation_that_fails_leaves_nothing(empty_database_url):
    """An installation that fails leaves nothing behind."""
    with connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA reservation")  # somebody else's
        with pytest.raises(Exception, match="already exists"):
            install(connection)
        assert schemas(connection) == (None, "reservation")


def test_a_role_without_the_right_to_create_is_refused(empty_database_url, connection):
    """The error asks for a role that may create schemas."""
    with connect(empty_database_url, autocommit=True) as poor:
        poor.execute("SET ROLE message_store")
        with pytest.raises(StoreError, match="connect as a role that may"):
            install(poor)


def test_a_missing_schema_is_named_with_the_command_that_mends_it(empty_database_url):
    """Consumers and clients say that the store is missing, and what to run."""
    with pytest.raises(SchemaError, match=r"message_store is missing.*store install"):
        consumers.drain(account, empty_database_url)
    empty = MessageStore.open(empty_database_url)
    with empty, pytest.raises(SchemaError, match="reservation store install"):
        empty.write(deposit(), COMMANDS)


def test_another_version_is_named_with_what_mends_it(connection):
    """A schema that is newer, older or missing stops consumers, who say what to do."""
    connection.execute("UPDATE reservation.versions SET version = version + 97")
    with pytest.raises(SchemaError, match=r"newer than the .* upgrade the package"):
        drain(connection)
    with pytest.raises(SchemaError, match="newer"):
        install(connection)
    connection.execute("UPDATE reservation.versions SET version = -version")
    with pytest.raises(SchemaError, match=r"version -98, this package needs .*store install"):
        drain(connection)


def test_a_store_without_our_schema_is_named(message_db, database_url):  # noqa: F811
    """Consumers do not start where Message DB alone is installed."""
    with pytest.raises(SchemaError, match=r"lacks the schema reservation.*store install"):
        consumers.drain(account, database_url)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://someone:hunter2@127.0.0.1:1/nothing",
        "host=/nowhere password=hunter2",
        "postgresql//someone:hunter2@host",
        "nonsense=hunter2",
    ],
)
def test_an_address_that_leads_nowhere_is_named_without_its_password(address):
    """The error for an unreachable address is one line without its password."""
    for use in (MessageStore.open, lambda url: consumers.drain(account, url)):
        with pytest.raises(DatabaseUnavailableError) as caught:
            use(address)
        assert "hunter2" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_attaching_and_detaching_leaves_message_db_as_it_was(message_db):  # noqa: F811
    """After attaching and detaching, all objects, rights and messages are as before."""
    before, old = message_db.execute(FINGERPRINT).fetchall(), stored(message_db)
    installed = attach(message_db)
    assert not installed.message_store
    assert (installed.from_version, installed.to_version) == (None, VERSION)
    MessageStore(message_db).write([open_(), deposit()], COMMANDS)
    drain(message_db)
    written = stored(message_db)
    detached = detach(message_db)
    assert detached.version == VERSION
    assert {(consumer, category) for consumer, category, _ in detached.positions} == {
        ("account", "account:command"),
        ("account", "accountTransaction"),
    }
    after = message_db.execute(FINGERPRINT).fetchall()
    assert [row for row in after if row[1] != "reservation"] == before
    assert len(before) > 50
    assert stored(message_db) == written
    assert written[: len(old)] == old


def test_consumers_that_are_attached_again_repeat_no_effect(message_db):  # noqa: F811
    """After detaching and attaching, consumers read from the start and repeat no effect."""
    attach(message_db)
    store = MessageStore(message_db)
    store.write([open_(), deposit()], COMMANDS)
    drain(message_db)
    detach(message_db)
    attach(message_db)
    assert message_db.execute("SELECT FROM reservation.positions").fetchall() == []
    again = drain(message_db).counts
    assert again.get("duplicate", 0) > 0
    assert "reserved" not in again
    assert event_types(store) == ["Opened", "Deposited"]


def test_attaching_and_detaching_may_be_repeated(message_db):  # noqa: F811
    """Attaching and detaching may be repeated."""
    attach(message_db)
    again = attach(message_db)
    assert again.from_version == again.to_version == VERSION
    assert install(message_db).from_version == VERSION
    assert detach(message_db).version == VERSION
    nothing = detach(message_db)
    assert (nothing.version, nothing.positions, nothing.dependents) == (None, (), ())


def test_attaching_needs_message_db_in_its_version(empty_database_url, message_db):  # noqa: F811
    """Attaching needs Message DB in the supported version, and the error says how to get it."""
    with connect(empty_database_url, autocommit=True) as empty:
        with pytest.raises(SchemaError, match=r"no message store.*run `reservation store install`"):
            attach(empty)
        assert schemas(empty) == (None, None)
    message_db.execute(
        "CREATE OR REPLACE FUNCTION message_store.message_store_version() RETURNS varchar "
        "LANGUAGE sql RETURN '1.2.6'"
    )
    with pytest.raises(SchemaError, match=r"version 1\.2\.6.*migrate it"):
        attach(message_db)
    message_db.execute("DROP FUNCTION message_store.message_store_version")
    with pytest.raises(SchemaError, match=r"version unknown.*migrate it"):
        attach(message_db)
    assert schemas(message_db) == ("message_store", None)


@pytest.mark.parametrize(
    "right",
    [
        "INSERT ON message_store.messages",
        "USAGE ON SEQUENCE message_store.messages_global_position_seq",
    ],
)
def test_attaching_needs_the_rights_that_the_functions_use(message_db, right):  # noqa: F811
    """The role that attaches needs the rights with which the functions run."""
    with message_db.transaction(force_rollback=True):
        message_db.execute(f"REVOKE {right} FROM message_store")
        message_db.execute("SET LOCAL ROLE message_store")
        with pytest.raises(StoreError, match=r"message_store may not read and write .* owner"):
            attach(message_db)


DEPENDENTS = """
CREATE FUNCTION reservation.note() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER note AFTER INSERT ON message_store.messages EXECUTE FUNCTION reservation.note();
CREATE FUNCTION public.other() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER other AFTER INSERT ON message_store.messages EXECUTE FUNCTION public.other();
CREATE VIEW public.lag AS SELECT consumer, position FROM reservation.positions;
CREATE VIEW public.slow AS SELECT * FROM public.lag WHERE position < 10;
CREATE TABLE public.mine (n int);
"""


def test_objects_that_depend_on_the_schema_are_named_and_removed(message_db):  # noqa: F811
    """Detaching lists and removes dependent triggers and views, and keeps other triggers."""
    attach(message_db)
    message_db.execute(DEPENDENTS)
    expected = ("trigger note on message_store.messages", "view public.lag", "view public.slow")
    assert detach(message_db).dependents == expected
    triggers = message_db.execute("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")
    assert triggers.fetchall() == [("other",)]
    assert message_db.execute("SELECT to_regclass('public.mine')").fetchone() != (None,)


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("reservation account account:command", True),
        ("reservation " + "x" * 100, True),
        ("reservation snapshot", False),
        ("reservation spark", False),
        ("reservation", False),
        ("another account", False),
    ],
)
def test_detaching_refuses_while_a_consumer_runs(connection, database_url, name, runs):
    """Detaching refuses while a consumer runs; readers and other programs do not count."""
    with connect(database_url, application_name=name, autocommit=True):
        if runs:
            with pytest.raises(StoreError, match=r"A consumer is running .*: reservation .*stop"):
                detach(connection)
            assert schemas(connection) == ("message_store", "reservation")
        else:
            assert detach(connection).version == VERSION


def test_consumers_of_another_database_do_not_count(connection, empty_database_url):
    """Consumers of another database on the server do not prevent detaching."""
    name = "reservation account account:command"
    with connect(empty_database_url, application_name=name, autocommit=True):
        assert detach(connection).version == VERSION


class Impatient(psycopg.Connection):
    """A connection whose locks are waited for a thousandth of the time."""

    def execute(self, query, *arguments, **named):
        query = query.replace(b"10s", b"10ms") if isinstance(query, bytes) else query
        return super().execute(query, *arguments, **named)


def test_detaching_gives_up_on_a_schema_in_use(database_url):
    """Detaching gives up on a program that holds a lock on the schema."""
    with connect(database_url) as reader, Impatient.connect(database_url) as connection:
        connection.autocommit = True
        reader.execute("SELECT FROM reservation.positions")
        with pytest.raises(LockTimeoutError, match="pg_stat_activity shows which"):
            detach(connection)
        assert schemas(connection) == ("message_store", "reservation")


def test_a_schema_that_is_not_ours_is_left_alone(message_db):  # noqa: F811
    """A schema of the same name that is not ours, or is newer, is left alone."""
    message_db.execute("CREATE SCHEMA reservation CREATE TABLE guests (n int)")
    with pytest.raises(SchemaError, match="was not made by this package"):
        detach(message_db)
    message_db.execute("DROP SCHEMA reservation CASCADE")
    attach(message_db)
    message_db.execute("UPDATE reservation.versions SET version = version + 97")
    with pytest.raises(SchemaError, match="newer"):
        detach(message_db)


def test_no_function_is_bound_to_another_than_the_servers_own(empty_database_url):
    """Functions in the schema public are never called in place of the server's."""
    with connect(empty_database_url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION public.split_part(varchar, text, int) RETURNS text LANGUAGE sql "
            "IMMUTABLE RETURN 'hijacked'"
        )
        install(connection)
        found = connection.execute("SELECT message_store.category('account-1')").fetchall()
        assert found == [("account",)]
        path = connection.execute("SHOW search_path").fetchall()
        assert path == [('"$user", public',)], "the caller's is left as it was"


def test_the_log_may_be_dropped_and_restored_beside_the_functions(connection):
    """No function of ours is bound to the table, so one in its place is read by all of them."""
    bound = connection.execute(
        "SELECT d.objid::regprocedure::text FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid "
        "WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_class'::regclass "
        "AND d.refobjid = 'message_store.messages'::regclass "
        "AND p.pronamespace = 'reservation'::regnamespace"
    ).fetchall()
    assert bound == []


def test_a_function_that_switches_planner_methods_off_switches_jit_off(connection):
    """A plan that cannot avoid such a method has a huge estimated cost, and would be compiled."""
    settings = {
        name: set(config)
        for name, config in connection.execute(
            "SELECT oid::regprocedure::text, proconfig FROM pg_proc "
            "WHERE pronamespace IN ('message_store'::regnamespace, 'reservation'::regnamespace)"
            " AND proconfig IS NOT NULL"
        )
    }
    switching = [
        name for name, own in settings.items() if any(one.startswith("enable_") for one in own)
    ]
    assert len(switching) > 30
    assert [name for name in switching if "jit=off" not in settings[name]] == []


def store_id(database_url):
    """Return the id of a store, as its status shows it."""
    env = {"RESERVATION_DATABASE_URL": database_url}
    return json.loads(invoke_cli("status", "--json", env=env).stdout)["storeId"]


def test_each_installation_has_an_id_of_its_own(connection, database_url, empty_database_url):
    """Installing again keeps the id of a store; each new attachment makes another."""
    with connect(empty_database_url, autocommit=True) as other:
        install(other)
    first = store_id(database_url)
    install(connection)
    assert store_id(database_url) == first
    detach(connection)
    attach(connection)
    assert len({first, store_id(database_url), store_id(empty_database_url)}) == 3


def test_a_missing_identity_is_named(connection):
    """A store whose id is missing, as after a restore without data, is not reconciled."""
    # By the module itself: the commands that ask for it begin with Spark or an archive.
    from reservation.store.schema.identity import store_id

    connection.execute("DELETE FROM reservation.store_identity")
    with pytest.raises(SchemaError, match="store_identity is empty"):
        store_id(connection)
