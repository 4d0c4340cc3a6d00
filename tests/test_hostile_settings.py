"""Connections set what they rely on, whatever a role has set, and leave nothing behind."""

import json

import psycopg
import pytest
from psycopg import conninfo, sql

from bank import account
from reservation import AsyncMessageStore, MessageStore
from reservation.errors import StoreError
from reservation.postgres.connection import connect
from tests.bank import RESERVED, batches, broken, event_types, session
from tests.clients import CLIENTS, in_loop
from tests.controls import COMMANDS, deposit, open_
from tests.hostile import HOSTILE, set_otherwise
from tests.pgbouncer import needs_pgbouncer, pgbouncer
from tests.processes import PATIENCE, Started, run_cli

pytestmark = pytest.mark.slow


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
    with Started(hostile_url) as started:
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        store.write(deposit("d2"), COMMANDS)
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        assert started.stop() == 0
    assert event_types(store) == ["Opened", "Deposited", "Deposited"]
    assert broken(connection) == {}
    env = {"RESERVATION_DATABASE_URL": hostile_url}
    listed = run_cli("positions", "list", "--json", env=env)
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
        done = run_cli(*arguments, env=env)
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


def test_our_own_connections_set_what_they_rely_on(hostile_url):
    """Our connections set what they rely on, and keep DateStyle and the limits of an address."""
    with connect(hostile_url) as ours:
        assert ours.execute("SHOW DateStyle").fetchone() == ("ISO, DMY",)
        assert ours.execute("SHOW search_path").fetchone() == ("hostile, public",)
        assert ours.execute("SHOW statement_timeout").fetchone() == ("0",)
        assert ours.execute("SHOW row_security").fetchone() == ("off",)
        assert ours.execute("SELECT 'a'::text = 'a'::text").fetchone() == (True,)
    limited = conninfo.make_conninfo(hostile_url, options="-cstatement_timeout=5s")
    with connect(limited) as ours:
        assert ours.execute("SHOW statement_timeout").fetchone() == ("5s",)


@pytest.mark.parametrize("path", ["pg_catalog", '"$user", "pg_catalog"', "public"])
def test_the_servers_own_functions_are_found_first(database_url, path):
    """The server's own functions are found first, wherever the search path names them."""
    named = conninfo.make_conninfo(database_url, options=f"-csearch_path={path.replace(' ', '')}")
    with connect(named) as ours:
        (found,) = ours.execute("SELECT current_schemas(true)").fetchone()
    assert found[0] == "pg_catalog"


def test_a_policy_that_hides_messages_stops_a_consumer(store, connection, database_url):
    """A row security policy that hides messages stops a consumer."""
    role = f"reader_{connection.info.dbname}"
    store.write([deposit("d1"), deposit("d2")], COMMANDS)
    connection.execute(
        sql.SQL(
            "CREATE ROLE {role} LOGIN IN ROLE message_store;"
            "ALTER TABLE message_store.messages ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY later ON message_store.messages TO {role} USING (position > 0)"
        ).format(role=sql.Identifier(role))
    )
    try:
        with connect(conninfo.make_conninfo(database_url, user=role), autocommit=True) as reader:
            with pytest.raises(StoreError, match="row-level security"):
                list(MessageStore(reader).read_stream(COMMANDS))
            with pytest.raises(StoreError, match="row-level security"):
                batches(reader, account)
    finally:
        connection.execute(
            sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=sql.Identifier(role))
        )


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
        with pytest.raises(StoreError, match="needs a session of its own"), session(behind):
            pass
        if not settings:
            with Started(behind) as started:
                assert started.process.wait(PATIENCE) == 2
                (line,) = [text for text in started.log.splitlines() if text.startswith("Error: ")]
            assert "pool_mode=session" in line
            assert "Traceback" not in started.log
    assert connection.execute("SELECT count(*) FROM reservation.groups").fetchone() == (0,)


@needs_pgbouncer
def test_a_consumer_works_behind_a_pooler_of_sessions(database_url, store, connection, tmp_path):
    """A consumer works behind session pooling, with its own settings."""
    store.write([open_(), deposit()], COMMANDS)
    with (
        pgbouncer(database_url, tmp_path, "session") as behind,
        Started(behind) as started,
    ):
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        assert started.stop() == 0
    assert broken(connection) == {}
