"""Errors of the database that pass: the consumers wait, and go on where they were."""

import psutil
import psycopg
import pytest
from psycopg import conninfo, sql

from bank import account
from bank.traffic import in_batches, make_traffic
from tests.apps.bank import (
    READS,
    RESERVED,
    broken,
    event_types,
    lengthen_leases,
    wait_until_drained,
)
from tests.apps.holding import HELD, bank
from tests.consumers.builders import hold_up_commits
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, logged, until
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.proxy import Cut, Proxy
from tests.support.started import PATIENCE

COMMIT = "COMMIT\0"  # the whole statement, not BEGIN ISOLATION LEVEL READ COMMITTED


def terminate(admin):
    """End the sessions of the consumers, and return when they are gone."""
    assert admin.execute(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
        "WHERE application_name LIKE 'reservation account %'"
    ).fetchall()


def allow(admin, address, allowed):
    """Let the database take new connections, or none."""
    name = conninfo.conninfo_to_dict(address)["dbname"]
    admin.execute(
        sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
            sql.Identifier(name), sql.Literal(allowed)
        )
    )


@pytest.fixture
def away(admin, database_url):
    """Give a function that ends the sessions of the consumers and lets nobody in again."""

    def leave():
        allow(admin, database_url, False)
        terminate(admin)

    yield leave
    allow(admin, database_url, True)


@pytest.fixture
def log():
    """Give what consumers of this process log."""
    with logged() as found:
        yield found


def started(log):
    """Wait until both consumers have claimed their positions."""
    until(lambda: len(log.named("consumer_started")) == len(READS))


def epochs(connection):
    """Return the epochs of all positions."""
    rows = connection.execute("SELECT epoch FROM reservation.positions").fetchall()
    return [epoch for (epoch,) in rows]


# Lost connections


def test_consumers_that_wait_get_a_new_connection(connection, store, admin, database_url, log):
    """They keep their claim, and connect at once."""
    store.write(open_(), COMMANDS)
    with hosted(account, database_url):
        started(log)
        for n in range(2):
            terminate(admin)
            until(lambda n=n: len(log.named("database_available")) == (n + 1) * len(READS))
            store.write(deposit(f"d{n}"), COMMANDS)
            until(lambda n=n: event_types(store).count("Deposited") == n + 1)
    lost = log.named("database_unavailable")
    assert all(0.05 <= one["delay"] <= 0.1 for one in lost)
    assert any("terminating connection" in one["error"] for one in lost)
    assert epochs(connection) == [1, 1]
    assert broken(connection) == {}


def test_notice_is_awaited_again_on_a_new_connection(store, admin, database_url, log):
    """After a reconnection as at the start."""
    invoke_cli("store", "notices", "on", "--database-url", database_url)
    with hosted(account, database_url):
        until(lambda: len(log.named("notice_awaited")) == len(READS))
        terminate(admin)
        until(lambda: len(log.named("database_available")) == len(READS))
        store.write(open_(), COMMANDS)
        until(lambda: event_types(store) == ["Opened"])


def test_a_batch_whose_connection_is_lost_is_read_again(connection, store, admin, database_url):
    """Each message of it takes effect once."""
    calls = []

    def lose(command, context):
        calls.append(command.deposit_id)
        if calls.count(HELD) == 1 and command.deposit_id == HELD:
            terminate(admin)

    store.write([open_(), deposit(), deposit(HELD), deposit("d3")], COMMANDS)
    with hosted(bank(lose), database_url):
        until(lambda: len(event_types(store)) == 4)
    assert calls.count(HELD) == 2
    assert event_types(store) == ["Opened"] + ["Deposited"] * 3
    assert broken(connection) == {}


@pytest.mark.parametrize("when", list(Cut))
def test_a_commit_whose_outcome_is_unknown_is_harmless(connection, store, database_url, when, log):
    """The stored position decides whether the batch is read again."""
    acknowledged = set()
    with Proxy(database_url) as proxy, hosted(account, proxy.address, batch_size=10):
        started(log)
        for seed in range(3):
            proxy.cut(when, COMMIT)
            traffic = make_traffic(accounts=10, sends=40, seed=seed)
            for batch in in_batches(traffic, traffic.accounts, 20):
                store.write_batch(batch)
                acknowledged |= {write.id for write in batch}
            assert proxy.happened.wait(PATIENCE)
            # Before it is a member again, another cut would make it take over from itself.
            until(lambda seed=seed: len(log.named("database_available")) > seed)
        wait_until_drained(connection)
    assert epochs(connection) == [1, 1]
    assert broken(connection, acknowledged) == {}


@pytest.mark.parametrize("when", list(Cut))
def test_a_member_that_does_not_know_whether_it_joined_joins_again(
    connection, store, admin, database_url, when, log
):
    """What it may have left behind counts as gone."""
    with Proxy(database_url) as proxy, hosted(account, proxy.address):
        started(log)
        proxy.cut(when, COMMIT)
        terminate(admin)
        assert proxy.happened.wait(PATIENCE)
        store.write([open_(), deposit()], COMMANDS)
        until(lambda: event_types(store) == ["Opened", "Deposited"])
    assert connection.execute("SELECT FROM reservation.members").fetchall() == []


def test_a_consumer_waits_for_a_commit_of_its_earlier_connection(
    connection, store, database_url, log
):
    """The commit goes on without its client, and moves the position that is read then."""
    dawdles = hold_up_commits(connection)
    with Proxy(database_url) as proxy, hosted(account, proxy.address):
        started(log)
        connection.execute("SELECT pg_advisory_lock(1)")
        store.write(open_(), COMMANDS)
        until(lambda: connection.execute(dawdles).fetchone() == (1,))
        proxy.drop()
        log.wait_for("database_unavailable", category="account:command")
        connection.execute("SELECT pg_advisory_unlock(1)")
        until(lambda: event_types(store) == ["Opened"])
        wait_until_drained(connection)
    assert event_types(store) == ["Opened"]
    assert epochs(connection) == [1, 1]
    assert broken(connection) == {}


def test_a_consumer_that_was_taken_over_while_away_stands_by(
    connection, store, admin, database_url, log
):
    """On its new connection it finds that another process holds its positions."""
    lengthen_leases(connection)
    with Proxy(database_url) as proxy, hosted(account, proxy.address):
        started(log)
        proxy.hold(0)
        assert proxy.happened.wait(PATIENCE)
        terminate(admin)
        with hosted(account, database_url):
            until(lambda: epochs(connection) == [2, 2])
            proxy.drop()
            until(lambda: len(log.named("standing_by")) == len(READS))
            store.write(open_(), COMMANDS)
            until(lambda: event_types(store) == ["Opened"])
            assert epochs(connection) == [2, 2]


# Outages


def test_a_database_that_lets_nobody_in_is_asked_less_and_less_often(database_url, away, log):
    """The waits double, a cause is logged once, and no log shows the password."""
    password = conninfo.conninfo_to_dict(database_url).get("password") or "a-secret"
    with hosted(account, conninfo.make_conninfo(database_url, password=password)):
        started(log)
        away()
        category = {"category": "account:command"}
        waits = [log.wait_for("database_unavailable", **category)]
        waits.append(log.wait_for("database_unavailable", **category))
        assert "not currently accepting connections" in waits[-1]["error"]
        waits.append(log.wait_for("database_awaited", **category))
        assert "error" not in waits[-1]
    for n, one in enumerate(waits):
        assert 0.05 * 2**n <= one["delay"] <= 0.1 * 2**n
    assert password not in str(log.events)


def test_a_consumer_that_waits_for_the_database_stops_at_once(database_url, away, log):
    """Both end, with nothing left to roll back."""
    with hosted(account, database_url) as running:
        started(log)
        away()
        for category in READS:
            until(lambda category=category: log.named("database_unavailable", category=category))
    assert not running.is_alive()
    assert len(log.named("consumer_stopped")) == 2
    assert log.named("batch_abandoned") == []


def test_connecting_ends_at_once_when_it_is_time_to_stop(database_url, log):
    """Even an attempt that nobody answers for longer than the test waits."""
    with Proxy(database_url) as proxy:
        address = conninfo.make_conninfo(proxy.address, connect_timeout=1000)
        port = int(conninfo.conninfo_to_dict(address)["port"])

        def connecting():
            found = psutil.Process().net_connections("tcp")
            return sum(bool(one.raddr) and one.raddr.port == port for one in found)

        with hosted(account, address) as running:
            started(log)
            proxy.silence()
            until(lambda: len(log.named("database_unavailable")) == len(READS))
            until(lambda: connecting() >= len(READS))
        assert not running.is_alive()


REFUSALS = {
    "a full disk": ("53100", "could not extend file: No space left on device"),
    "a server that takes no writes": ("25006", "cannot execute INSERT in a read-only transaction"),
    "a trigger that refuses": ("P0001", "not now"),
    "a trigger that raises what moving a position may": ("RV001", "not now"),
    "a trigger that raises what writing an event may": ("RV002", "not now"),
    "a trigger that raises what reserving may": ("RV003", "not now"),
}


@pytest.mark.parametrize(("state", "text"), REFUSALS.values(), ids=REFUSALS)
def test_consumers_wait_for_a_server_that_refuses_to_write(
    connection, store, database_url, log, state, text
):
    """It is no message's fault: the batch leaves nothing, and succeeds later."""
    store.write([open_(), deposit()], COMMANDS)
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{text}' USING ERRCODE = '{state}'; END $$; "
        "CREATE TRIGGER refuse BEFORE INSERT ON message_store.messages "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
    )
    with hosted(account, database_url):
        assert text in log.wait_for("database_unavailable")["error"]
        log.wait_for("database_awaited")
        assert event_types(store) == []
        connection.execute("DROP TRIGGER refuse ON message_store.messages")
        until(lambda: event_types(store) == ["Opened", "Deposited"])
    assert broken(connection) == {}


def test_a_batch_that_loses_race_after_race_is_run_until_it_wins(
    connection, store, database_url, log
):
    """Each loss is logged, and none is the message's fault."""
    connection.execute(
        "CREATE SEQUENCE races; "
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF nextval('races') <= 5 THEN RAISE serialization_failure; END IF; "
        "RETURN NULL; END $$; "
        "CREATE TRIGGER lose BEFORE INSERT ON message_store.messages FOR EACH STATEMENT "
        "WHEN (current_setting('application_name') LIKE 'reservation account%') "
        "EXECUTE FUNCTION lose()"
    )
    store.write(open_(), COMMANDS)
    with hosted(account, database_url):
        until(lambda: event_types(store) == ["Opened"])
    assert len(log.named("race_lost")) == 1
    assert [one["times"] for one in log.named("race_lost_again")] == [2, 3, 4, 5]


def test_the_settings_of_a_consumers_connection(store, database_url):
    """No limit of the server ends a long batch, and no lock outlives a lost client."""
    settings = {}

    def look(command, context):
        settings.update(
            context.connection.execute("SELECT name, setting FROM pg_settings").fetchall()
        )

    address = conninfo.make_conninfo(
        database_url,
        options="-c idle_in_transaction_session_timeout=700 -c statement_timeout=7000",
    )
    store.write([open_(), deposit()], COMMANDS)
    with hosted(bank(look), address):
        until(lambda: event_types(store) == ["Opened", "Deposited"])
    assert settings["lock_timeout"] == "1000"
    assert settings["statement_timeout"] == "0"
    assert settings["idle_in_transaction_session_timeout"] == "0"
    assert settings["client_connection_check_interval"] == "2000"
    assert settings["application_name"] == f"reservation account {RESERVED}"


def test_a_consumer_that_waits_for_a_lock_can_be_stopped(store, database_url, log):
    """Another transaction holds the lock of its category all the while."""
    with psycopg.connect(database_url) as holder:
        holder.execute("SELECT message_store.acquire_lock('account-1')")
        store.write(open_(), COMMANDS)
        with hosted(account, database_url) as running:
            log.wait_for("lock_awaited")
        assert not running.is_alive()
    assert event_types(store) == []
