"""Connections set what they rely on, whatever a role has set, and leave nothing behind."""

import json

import psycopg
import pytest
from psycopg import conninfo, sql

import consumers
from bank import account
from reservation import AsyncMessageStore, Component, MessageStore
from reservation.errors import StoreError
from tests.apps.bank import broken, event_types
from tests.store.builders import as_login, new_role
from tests.store.clients import CLIENTS, in_loop
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.hostile import HOSTILE, set_otherwise
from tests.support.pgbouncer import needs_pgbouncer, pgbouncer

__all__ = ["new_role"]  # a fixture


@pytest.fixture
def hostile_url(database_url, connection):
    """Give the address of the test's database with hostile settings."""
    set_otherwise(connection)
    return database_url


def test_a_role_has_its_settings(hostile_url):
    """The role's settings are in force; otherwise the tests below would show nothing."""
    with psycopg.connect(hostile_url) as plain:
        for setting, value in HOSTILE.items():
            (found,) = plain.execute(
                "SELECT setting FROM pg_settings"
                " WHERE lower(name) OPERATOR(pg_catalog.=) lower(%s)",
                [setting],
            ).fetchone()
            assert found in (value, value.removesuffix("ms")), setting


def test_the_consumers_and_the_command_line_work_whatever_is_set(store, hostile_url, connection):
    """Consumers with leases and the command line work under every setting of the role."""
    store.write([open_(), deposit("d1"), deposit("d1")], COMMANDS)
    with hosted(account, hostile_url) as thread:
        until(lambda: event_types(store) == ["Opened", "Deposited"], thread)
        store.write(deposit("d2"), COMMANDS)
        until(lambda: event_types(store) == ["Opened", "Deposited", "Deposited"], thread)
    assert broken(connection) == {}
    env = {"RESERVATION_DATABASE_URL": hostile_url}
    listed = invoke_cli("positions", "list", "--json", env=env)
    assert listed.returncode == 0, listed.stderr
    assert len(json.loads(listed.stdout)["positions"]) == 2
    for arguments in (
        ("status", "--json"),
        ("positions", "reset", "bank:account", "--yes"),
        ("partitions", "bank:account", "2"),
        ("dead-letters", "list"),
        ("store", "install"),
        ("prune", "bank:account", "--reservations-older-than", "1d"),
    ):
        done = invoke_cli(*arguments, env=env)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("client", CLIENTS)
@in_loop
async def test_a_sender_leaves_nothing_behind_in_a_connection_of_the_caller(client, hostile_url):
    """A sender works under the caller's settings and leaves them unchanged."""

    async def settings(connection):
        found = await connection.execute("SELECT name, setting FROM pg_catalog.pg_settings")
        rows = found.fetchall()
        return dict(await rows if client.is_async else rows)

    # Its statements are held to the caller's limit, which a busy machine must not reach.
    options = {"client_encoding": "UTF8", "autocommit": True}
    options["options"] = "-cstatement_timeout=1min"
    async with await client.connect(hostile_url, **options) as connection:
        before = await settings(connection)
        assert before["search_path"] == HOSTILE["search_path"]
        used = client.on(connection)
        for n in range(8):
            await used.write(deposit(f"d{n}"), COMMANDS)
        stream = [message async for message in used.read_stream(COMMANDS)]
        assert [message.decode(type(deposit())) for message in stream] == [
            deposit(f"d{n}") for n in range(8)
        ]
        assert before.items() <= (await settings(connection)).items()


def seen_by_a_handler(connection, database_url, *queries):
    """Return what queries find on the connection that consumers open, and hand to handlers."""
    component, found = Component("asking", id="account_id"), []

    @component.handle(type(deposit()), once=None)
    def ask(command, entity, context):
        found.extend(context.connection.execute(query).fetchone()[0] for query in queries)

    MessageStore(connection).write(deposit(), "asking:command-123")
    consumers.drain(component, database_url)
    return found


def test_our_own_connections_set_what_they_rely_on(connection, hostile_url):
    """They keep the DateStyle, but for its format, and the path behind the server's own names."""
    names = ("DateStyle", "search_path", "row_security", "statement_timeout")
    queries = [*(f"SHOW {name}" for name in names), "SELECT 'a'::text = 'a'::text"]
    expected = ["ISO, DMY", "hostile, public", "off", "0", True]
    assert seen_by_a_handler(connection, hostile_url, *queries) == expected


def test_a_command_keeps_the_limit_of_its_address(connection, database_url):
    """A limit to statements that the address sets ends a command that waits for a lock."""
    limited = conninfo.make_conninfo(database_url, options="-cstatement_timeout=50ms")
    with connection.transaction():
        connection.execute("LOCK TABLE reservation.versions")
        done = invoke_cli("store", "notices", env={"RESERVATION_DATABASE_URL": limited})
    assert done.returncode == 2
    assert "statement timeout" in done.stderr


@pytest.mark.parametrize("path", ["pg_catalog", '"$user","pg_catalog"', "public"])
def test_the_servers_own_functions_are_found_first(connection, database_url, path):
    """The server's own functions are found first, wherever the search path names them."""
    named = conninfo.make_conninfo(database_url, options=f"-csearch_path={path}")
    (schemas,) = seen_by_a_handler(connection, named, "SELECT current_schemas(true)")
    assert schemas[0] == "pg_catalog"


def test_a_policy_that_hides_messages_stops_a_consumer(
    store,
    connection,
    database_url,
    new_role,
):
    """A row security policy that hides messages stops readers and consumers."""
    role = new_role()
    store.write([deposit("d1"), deposit("d2")], COMMANDS)
    connection.execute(
        sql.SQL(
            "GRANT message_store TO {role};"
            "ALTER TABLE message_store.messages ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY later ON message_store.messages TO {role} USING (position > 0)"
        ).format(role=sql.Identifier(role))
    )
    address = as_login(connection, database_url, role)
    with (
        MessageStore.open(address) as reader,
        pytest.raises(StoreError, match="row-level security"),
    ):
        list(reader.read_stream(COMMANDS))
    with pytest.raises(StoreError, match="row-level security"):
        consumers.drain(account, address)


# Behind a pooler.


async def use(store):
    """Write and read, with prepared statements if there were any."""
    for n in range(8):
        await store.write(deposit(f"d{n}"), COMMANDS)
    assert len([message async for message in store.read_stream(COMMANDS)]) == 8
    assert (await store.last_message(COMMANDS)).position == 7


@needs_pgbouncer
@in_loop
async def test_senders_work_behind_a_pooler_of_transactions(database_url, connection, tmp_path):
    """Threads and event loops send through transaction pooling and leave no session state."""
    with pgbouncer(database_url, tmp_path, "transaction", default_pool_size=2) as behind:
        async with await AsyncMessageStore.open(behind) as asynchronous:
            await use(asynchronous)
        with MessageStore.open(behind) as pooled, MessageStore.open(behind) as other:
            for n in range(8):
                (pooled, other)[n % 2].write(deposit(f"e{n}"), COMMANDS)
            assert len(list(pooled.read_category("account:command"))) == 16
            with psycopg.connect(behind, autocommit=True) as plain:
                for setting, value in (("search_path", '"$user", public'), ("row_security", "on")):
                    found = plain.execute(
                        "SELECT current_setting(%s)", [setting], prepare=False
                    ).fetchone()
                    assert found == (value,)


@needs_pgbouncer
@pytest.mark.parametrize("settings", [{}, {"server_round_robin": 1}, {"default_pool_size": 1}])
def test_a_consumer_refuses_a_pooler_of_transactions(database_url, connection, tmp_path, settings):
    """A consumer refuses transaction pooling in one line, before it joins its group."""
    with pgbouncer(database_url, tmp_path, "transaction", **settings) as behind:
        for call in (consumers.run, consumers.drain):
            with pytest.raises(StoreError, match="needs a session of its own") as refused:
                call(account, behind)
            assert "pool_mode=session" in str(refused.value)
            assert "\n" not in str(refused.value)
    assert connection.execute("SELECT count(*) FROM reservation.groups").fetchone() == (0,)


@needs_pgbouncer
def test_a_consumer_works_behind_a_pooler_of_sessions(database_url, store, connection, tmp_path):
    """A consumer works behind session pooling, with its own settings."""
    store.write([open_(), deposit()], COMMANDS)
    with pgbouncer(database_url, tmp_path, "session") as behind, hosted(account, behind) as thread:
        until(lambda: event_types(store) == ["Opened", "Deposited"], thread)
    assert broken(connection) == {}
