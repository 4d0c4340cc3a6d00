"""Outages of the server under load: in the middle of a commit, crashed, paused, off the network."""

import time

import pytest
from psycopg import connect, conninfo
from psycopg.errors import DiskFull

from bank.traffic import make_traffic
from reservation import MessageStore
from reservation.admin import install
from tests.apps.bank import READS, RESERVED, broken, event_types, wait_until_drained
from tests.apps.holding import bank
from tests.soak.sending import Sender
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.servers import Missing, OwnContainer, OwnServer
from tests.support.started import PATIENCE, Started

CONSUMERS = "application_name LIKE 'reservation account %%'"
LEASE = 3  # seconds after which a member that is silent counts as gone
WORKERS = ("--workers", "2", "--partitions", "16", "--batch-size", "10")


@pytest.fixture
def server(server_folder):
    """Give an embedded server of this test's own, with the store installed."""
    own = OwnServer(server_folder / "postgres")
    with connect(own.address, autocommit=True) as connection:
        install(connection)
    yield own
    own.close()


SMALL = "/small"


@pytest.fixture
def container(request):
    """Give a server in a container of this test's own, with the store installed."""
    try:
        own = OwnContainer(small_disk=SMALL)
    except Missing as reason:
        if request.config.getoption("--database") == "container":
            raise
        pytest.skip(str(reason))
    with own:
        with connect(own.address, autocommit=True) as connection:
            install(connection)
        yield own


def wait_until_waiting(connection, event):
    """Wait until a consumer waits in the server; return a function that ends it."""
    deadline = time.monotonic() + PATIENCE
    while not (
        rows := connection.execute(
            f"SELECT pid FROM pg_stat_activity WHERE {CONSUMERS} AND wait_event = %s", [event]
        ).fetchall()
    ):
        assert time.monotonic() < deadline
    (pid,) = rows[0]
    return lambda: connection.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])


def test_a_consumer_whose_session_is_ended_just_before_its_commit(connection, store, database_url):
    """A session ended just before the commit commits nothing, and the batch is read again."""
    connection.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(3600); RETURN NULL; END $$"
    )
    connection.execute(
        "CREATE CONSTRAINT TRIGGER dawdle AFTER INSERT ON message_store.messages "
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
        "WHEN (NEW.type = 'Deposited') EXECUTE FUNCTION dawdle()"
    )
    store.write([open_(), deposit(), deposit("d2")], COMMANDS)
    with Started(database_url) as started:
        terminate = wait_until_waiting(connection, "PgSleep")
        connection.execute(
            "CREATE OR REPLACE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RETURN NULL; END $$"
        )
        terminate()
        started.wait_for("database_unavailable", category=RESERVED)
        wait_until_drained(connection, started)
        assert started.stop() == 0
    assert event_types(store) == ["Opened"] + ["Deposited"] * 2
    assert broken(connection) == {}


def test_a_consumer_whose_session_is_ended_just_after_its_commit(server):
    """A consumer that never hears of its commit repeats no effect."""
    with connect(server.address, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        store = MessageStore(connection)
        store.write([open_(), deposit(), deposit("d2")], COMMANDS)
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        connection.execute("SELECT pg_reload_conf()")
        with Started(server.address) as started:
            for types in (["Opened"], ["Opened", "Deposited", "Deposited"]):
                wait_until_waiting(
                    connection, "SyncRep"
                )()  # the group protocol does not wait there
                started.wait_for("database_unavailable")
                assert event_types(store) == types
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
            wait_until_drained(connection, started)
            assert started.stop() == 0
        assert broken(connection) == {}


def test_a_lease_is_renewed_while_a_standby_is_away(server):
    """Commits that wait for it do not end the lease of a batch in hand."""
    with connect(server.address, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = local")
        renewed = "SELECT bool_and(expires_at > now()) FROM reservation.heartbeats WHERE member > 0"

        def outlive(command, context):
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("UPDATE reservation.heartbeats SET expires_at = now()")
            until(lambda: connection.execute(renewed).fetchone() == (True,))
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")

        store = MessageStore(connection)
        store.write([open_(), deposit()], COMMANDS)
        with hosted(bank(outlive), server.address):
            until(lambda: event_types(store) == ["Opened", "Deposited"])


def test_a_group_outlives_a_crash_of_the_server_under_load(server):
    """After a crash the members return one by one, and no partition has two holders."""
    traffic = make_traffic(accounts=20, sends=4000, seed=1)
    with Started(server.address, *WORKERS) as started:
        all_started(started)
        with Sender(server.address, traffic, 1) as sender:
            for _ in range(2):
                for _ in range(2):
                    started.wait_for("batch_committed")
                server.crash()
                started.wait_for("database_unavailable", category=RESERVED)
                server.start()
            finish(server, sender, started)
            assert sender.failures > 0


def all_started(started):
    """Wait until every worker has its part of its category."""
    for category in (*READS, *READS):
        started.wait_for("consumer_started", category=category)


def finish(server, sender, *running):
    """Let everything be sent and handled, and check the invariants."""
    sender.finish()
    with connect(server.address, autocommit=True) as connection:
        wait_until_drained(connection, *running)
        sender.send_late()
        wait_until_drained(connection, *running)
        assert [process.stop() for process in running] == [0] * len(running)
        assert broken(connection, sender.acknowledged) == {}


@pytest.mark.parametrize("outage", ["paused", "killed", "off the network"])
def test_a_group_outlives_an_outage_of_its_container(container, outage):
    """A group survives an outage of the server that is longer than a lease."""
    # A server that is off the network hears of no end of its clients', nor they of its; they find
    # out for themselves, as they do everywhere, but sooner.
    address = f"{container.address}?keepalives_idle=1&keepalives_interval=1&tcp_user_timeout=3000"
    traffic = make_traffic(accounts=20, sends=1500, seed=1)
    with Started(address, *WORKERS) as started:
        all_started(started)
        with Sender(address, traffic, 1) as sender:
            started.wait_for("batch_committed")
            if outage == "paused":
                container.pause()
                time.sleep(LEASE + 2)
                container.unpause()
            elif outage == "killed":
                container.kill()
                started.wait_for("database_unavailable", category=RESERVED)
                container.start()
            else:
                container.disconnect()
                started.wait_for("database_unavailable", category=RESERVED)
                time.sleep(LEASE + 2)
                container.connect()
            finish(container, sender, started)
            assert sender.failures > 0 or outage == "paused"


def test_a_group_outlives_a_disk_that_is_full(container):
    """A full disk makes no dead letters, and everything is handled once there is space."""
    container.own(SMALL)
    with connect(container.address, autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE small LOCATION '{SMALL}'")
        connection.execute("ALTER TABLE message_store.messages SET TABLESPACE small")
        MessageStore(connection).write([open_(), *(deposit(f"d{n}") for n in range(300))], COMMANDS)
        connection.execute("CREATE TABLE filler (text text) TABLESPACE small")
        connection.execute("ALTER TABLE filler ALTER text SET STORAGE PLAIN")
        for length in (7000, 10):
            with pytest.raises(DiskFull):
                fill(connection, length)
        with Started(container.address) as started:
            away = started.wait_for("database_unavailable")
            started.wait_for("database_awaited")
            assert "No space left on device" in away["error"]
            connection.execute("DROP TABLE filler")
            wait_until_drained(connection, started)
            assert started.stop() == 0
            assert "message_dead" not in started.log
        assert event_types(MessageStore(connection)) == ["Opened"] + ["Deposited"] * 300
        assert broken(connection) == {}


def fill(connection, length):
    """Add rows of a length to the filler, until there is no space for more."""
    while True:
        connection.execute(
            "INSERT INTO filler SELECT repeat('x', %s) FROM generate_series(1, 100)", [length]
        )


def test_a_consumer_that_dies_while_the_database_is_away_is_restarted(admin, database_url):
    """The supervisor has seen the database, so it takes the failure for an outage."""
    name = conninfo.conninfo_to_dict(database_url)["dbname"]
    with Started(database_url) as started:
        for category in READS:
            started.wait_for("consumer_started", category=category)
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s",
                [name],
            )
            for category in READS:
                started.wait_for("database_unavailable", category=category)
            started.workers[0].kill()
            died = started.wait_for("process_died")
            away = {"timestamp": ""}
            while away["timestamp"] < died["timestamp"]:  # the one that died said so too
                away = started.wait_for("database_unavailable", category=RESERVED)
            assert "not currently accepting connections" in away["error"]
        finally:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        for category in READS:
            started.wait_for("database_available", category=category)
        with connect(database_url, autocommit=True) as connection:
            MessageStore(connection).write([open_(), deposit()], COMMANDS)
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        assert started.stop() == 0
