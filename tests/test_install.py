"""Putting the store into a database."""

import threading

import pytest

from reservation import MessageStore, install
from reservation.errors import (
    DatabaseUnavailableError,
    LockTimeoutError,
    SchemaError,
    StoreError,
)
from reservation.postgres.connection import connect
from reservation.store.schema.install import (
    _QUERIES,
    Detached,
    attach,
    attached,
    check_installed,
    detach,
)
from reservation.store.schema.scripts import SCHEMA_VERSION
from tests.bank import batch, batches, drain, event_types
from tests.controls import COMMANDS, deposit, open_

# Everything that schema message_store consists of, and the roles of the server.
FINGERPRINT = """
WITH store AS (SELECT oid FROM pg_namespace WHERE nspname = 'message_store')
SELECT 'schema', nspname::text, nspowner::regrole::text, nspacl::text
FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%'
UNION ALL
SELECT 'function', pg_get_functiondef(p.oid), proowner::regrole::text, proacl::text
FROM pg_proc p WHERE pronamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'relation', relname::text || relkind::text, relowner::regrole::text,
       concat_ws(' ', relacl, reloptions, relrowsecurity, relhastriggers,
                 CASE relkind WHEN 'v' THEN pg_get_viewdef(c.oid)
                              WHEN 'i' THEN pg_get_indexdef(c.oid) END)
FROM pg_class c WHERE relnamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'column', attrelid::regclass || '.' || attname, format_type(atttypid, atttypmod),
       concat_ws(' ', attnum, attnotnull, attacl, pg_get_expr(adbin, adrelid))
FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE relnamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'constraint', conname::text, conrelid::regclass::text, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'type', typname::text, typowner::regrole::text, typacl::text
FROM pg_type WHERE typnamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'trigger', tgname::text, tgrelid::regclass::text, pg_get_triggerdef(t.oid)
FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid WHERE relnamespace IN (SELECT oid FROM store)
UNION ALL
SELECT 'default privileges', defaclrole::regrole::text, defaclobjtype::text, defaclacl::text
FROM pg_default_acl
UNION ALL
SELECT 'role', rolname::text, rolconfig::text,
       concat_ws(' ', rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin)
FROM pg_roles WHERE rolname NOT LIKE 'test\\_%'
UNION ALL
SELECT 'member', roleid::regrole::text, member::regrole::text, admin_option::text
FROM pg_auth_members
ORDER BY 1, 2, 3, 4
"""


@pytest.fixture
def message_db(connection):
    """Give a connection to a database that has Message DB's schema, a message, and none of ours."""
    connection.execute("DROP SCHEMA reservation CASCADE")
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, 'old-1', 'Old', '{}')"
    )
    return connection


def stored(connection):
    """Return every message as it is stored."""
    return connection.execute(
        "SELECT m::text FROM message_store.messages m ORDER BY global_position"
    ).fetchall()


def test_an_empty_database_gets_both_schemas(empty_database_url):
    """The first installation creates both schemas and says so."""
    with connect(empty_database_url, autocommit=True) as connection:
        installed = install(connection)
        check_installed(connection)
        assert MessageStore(connection).write(deposit(), COMMANDS) == 0
    assert installed.message_store
    assert installed.message_store_version == "1.3.0"
    assert (installed.from_version, installed.to_version) == (None, SCHEMA_VERSION)


def test_installing_again_changes_nothing(connection, store):
    """Installing again, as deployments do, changes nothing."""
    store.write(deposit(), COMMANDS)
    installed = install(connection)
    assert not installed.message_store
    assert installed.from_version == installed.to_version == SCHEMA_VERSION
    assert store.stream_version(COMMANDS) == 0


def test_an_upgrade_replaces_the_functions_that_an_older_version_installed(connection, store):
    """An upgrade replaces the functions of both schemas and keeps the messages."""
    store.write(deposit(), COMMANDS)
    connection.execute("DELETE FROM reservation.versions WHERE version > 1")
    connection.execute("DROP TABLE reservation.sender_categories, reservation.groups")
    connection.execute(
        "DROP TABLE reservation.members, reservation.leases, reservation.dead_letters, "
        "reservation.snapshots, reservation.states, reservation.state_horizons, "
        "reservation.store_identity CASCADE"
    )
    connection.execute(
        "DROP TABLE reservation.processed_messages, reservation.processed_handlers, "
        "reservation.revisions, reservation.revision_counters, reservation.corrections, "
        "reservation.finding_decisions, reservation.passes"
    )
    connection.execute(
        "DROP FUNCTION reservation.count_update, reservation.refuse_second_position, "
        "reservation.positions_of CASCADE"
    )
    connection.execute(
        "ALTER TABLE reservation.positions DROP COLUMN partition, DROP COLUMN holder, "
        "DROP COLUMN updates, DROP COLUMN generation, "
        "DROP COLUMN attempted, DROP COLUMN attempts, DROP COLUMN message_id CASCADE, "
        "ADD PRIMARY KEY (consumer, category)"
    )
    connection.execute("INSERT INTO reservation.positions VALUES ('account', 'account:command', 7)")
    for old in (
        "message_store.is_category(stream_name varchar)",
        "reservation.may_insert()",
    ):
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {old} RETURNS boolean LANGUAGE sql IMMUTABLE RETURN false"
        )
    installed = install(connection)
    assert (installed.message_store, installed.from_version) == (False, 1)
    answers = connection.execute("SELECT message_store.is_category('a'), reservation.may_insert()")
    assert answers.fetchone() == (True, True)
    kept = connection.execute(
        "SELECT position, partition, holder, partitions, carried, first_position "
        "FROM reservation.positions JOIN reservation.groups USING (consumer, category)"
    )
    assert kept.fetchall() == [(7, 0, None, 1, None, 7)]
    assert store.write(deposit("d2"), COMMANDS) == 1


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
        assert connection.execute("SELECT to_regclass('message_store.messages')").fetchone() == (
            None,
        )


def test_a_role_without_the_right_to_create_is_refused(empty_database_url, connection):
    """The error asks for a role that may create schemas."""
    with connect(empty_database_url, autocommit=True) as poor:
        poor.execute("SET ROLE message_store")
        with pytest.raises(StoreError, match="connect as a role that may"):
            install(poor)


def test_a_missing_schema_is_named_with_the_command_that_mends_it(empty_database_url, connection):
    """A missing or outdated schema is named with the command that repairs it."""
    with connect(empty_database_url, autocommit=True) as empty:
        with pytest.raises(SchemaError, match=r"message_store is missing.*store install"):
            check_installed(empty)
        with pytest.raises(SchemaError, match="reservation store install"):
            MessageStore(empty).write(deposit(), COMMANDS)
    connection.execute("UPDATE reservation.versions SET version = version + 97")
    with pytest.raises(SchemaError, match=r"newer than the .* upgrade the package"):
        check_installed(connection)
    with pytest.raises(SchemaError, match="newer"):
        install(connection)
    connection.execute("UPDATE reservation.versions SET version = -version")
    with pytest.raises(SchemaError, match=r"version -98, this package needs .*store install"):
        check_installed(connection)
    connection.execute("DROP SCHEMA reservation CASCADE")
    with pytest.raises(SchemaError, match=r"lacks the schema reservation.*store install"):
        check_installed(connection)


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
    with pytest.raises(DatabaseUnavailableError) as caught:
        connect(address)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(DatabaseUnavailableError):
        MessageStore.open(address)


def test_attaching_and_detaching_leaves_message_db_as_it_was(message_db):
    """After attaching and detaching, all objects, rights and messages are as before."""
    before, old = message_db.execute(FINGERPRINT).fetchall(), stored(message_db)
    installed = attach(message_db)
    assert not installed.message_store
    assert (installed.from_version, installed.to_version) == (None, SCHEMA_VERSION)
    check_installed(message_db)
    store = MessageStore(message_db)
    store.write([open_(), deposit()], COMMANDS)
    drain(message_db)
    written = stored(message_db)
    detached = detach(message_db)
    assert detached.version == SCHEMA_VERSION
    assert {(consumer, category) for consumer, category, _ in detached.positions} == {
        ("account", "account:command"),
        ("account", "accountTransaction"),
    }
    after = message_db.execute(FINGERPRINT).fetchall()
    assert [row for row in after if row[1] != "reservation"] == before
    assert len(before) > 50
    assert stored(message_db) == written
    assert written[: len(old)] == old
    with pytest.raises(SchemaError, match="lacks the schema reservation"):
        check_installed(message_db)


def test_consumers_that_are_attached_again_repeat_no_effect(message_db):
    """After detaching and attaching, consumers read from the start and repeat no effect."""
    attach(message_db)
    store = MessageStore(message_db)
    store.write([open_(), deposit()], COMMANDS)
    batches(message_db)
    detach(message_db)
    attach(message_db)
    assert attached(message_db).positions == ()
    for category in ("account:command", "accountTransaction"):
        assert batch(message_db, category).run(100, careful=True).read > 0
    assert event_types(store) == ["Opened", "Deposited"]


def test_attaching_and_detaching_may_be_repeated(message_db):
    """Attaching and detaching may be repeated."""
    attach(message_db)
    again = attach(message_db)
    assert again.from_version == again.to_version == SCHEMA_VERSION
    assert install(message_db).from_version == SCHEMA_VERSION
    assert detach(message_db).version == SCHEMA_VERSION
    assert detach(message_db) == Detached(None)


def test_attaching_needs_message_db_in_its_version(empty_database_url, message_db):
    """Attaching needs Message DB in the supported version, and the error says how to get it."""
    with connect(empty_database_url, autocommit=True) as empty:
        with pytest.raises(SchemaError, match=r"no message store.*run `reservation store install`"):
            attach(empty)
        assert empty.execute("SELECT to_regnamespace('reservation')").fetchone() == (None,)
    message_db.execute(
        "CREATE OR REPLACE FUNCTION message_store.message_store_version() RETURNS varchar "
        "LANGUAGE sql RETURN '1.2.6'"
    )
    with pytest.raises(SchemaError, match=r"version 1\.2\.6.*migrate it"):
        attach(message_db)
    message_db.execute("DROP FUNCTION message_store.message_store_version")
    with pytest.raises(SchemaError, match=r"version unknown.*migrate it"):
        attach(message_db)
    assert message_db.execute("SELECT to_regnamespace('reservation')").fetchone() == (None,)


@pytest.mark.parametrize(
    "right",
    [
        "INSERT ON message_store.messages",
        "USAGE ON SEQUENCE message_store.messages_global_position_seq",
    ],
)
def test_attaching_needs_the_rights_that_the_functions_use(message_db, right):
    """The role that attaches needs the rights with which the functions run."""
    with message_db.transaction(force_rollback=True):
        message_db.execute(f"REVOKE {right} FROM message_store")
        message_db.execute("SET LOCAL ROLE message_store")
        with pytest.raises(StoreError, match=r"message_store may not read and write .* owner"):
            attach(message_db)


def test_objects_that_depend_on_the_schema_are_named_and_removed(message_db):
    """Detaching lists and removes dependent triggers and views, and keeps other triggers."""
    attach(message_db)
    message_db.execute(
        """
        CREATE FUNCTION reservation.note() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER note AFTER INSERT ON message_store.messages
        EXECUTE FUNCTION reservation.note();
        CREATE FUNCTION public.other() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER other AFTER INSERT ON message_store.messages
        EXECUTE FUNCTION public.other();
        CREATE VIEW public.lag AS SELECT consumer, position FROM reservation.positions;
        CREATE VIEW public.slow AS SELECT * FROM public.lag WHERE position < 10;
        CREATE TABLE public.mine (n int);
        """
    )
    expected = ("trigger note on message_store.messages", "view public.lag", "view public.slow")
    assert attached(message_db).dependents == expected
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
            check_installed(connection)
        else:
            assert detach(connection).version == SCHEMA_VERSION


def test_consumers_of_another_database_do_not_count(connection, empty_database_url):
    """Consumers of another database on the server do not prevent detaching."""
    name = "reservation account account:command"
    with connect(empty_database_url, application_name=name, autocommit=True):
        assert detach(connection).version == SCHEMA_VERSION


def test_detaching_gives_up_on_a_schema_in_use(connection, database_url, monkeypatch):
    """Detaching gives up on a program that holds a lock on the schema."""
    monkeypatch.setitem(_QUERIES, "lock", _QUERIES["lock"].replace(b"10s", b"10ms"))
    with connect(database_url) as reader:
        reader.execute("SELECT FROM reservation.positions")
        with pytest.raises(LockTimeoutError, match="pg_stat_activity shows which"):
            detach(connection)
    check_installed(connection)


def test_a_schema_that_is_not_ours_is_left_alone(message_db):
    """A schema of the same name that is not ours, or is newer, is left alone."""
    message_db.execute("CREATE SCHEMA reservation CREATE TABLE guests (n int)")
    with pytest.raises(SchemaError, match="was not made by this package"):
        detach(message_db)
    message_db.execute("DROP SCHEMA reservation CASCADE")
    attach(message_db)
    message_db.execute("UPDATE reservation.versions SET version = version + 97")
    with pytest.raises(SchemaError, match="newer"):
        detach(message_db)


def test_no_function_means_something_else_under_another_search_path(connection):
    """Every function whose body is parsed at the call sets its own search path.

    A procedure that commits cannot; it names everything in full.
    """
    loose = connection.execute(
        "SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang "
        "WHERE p.pronamespace::regnamespace::text IN ('message_store', 'reservation') "
        "AND p.prosqlbody IS NULL AND p.prokind <> 'p' "
        "AND NOT coalesce(p.proconfig::text LIKE '%search_path=%', false)"
    ).fetchall()
    assert loose == []


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
