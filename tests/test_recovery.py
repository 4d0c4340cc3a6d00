"""Errors of the database that pass: the consumers wait, and go on where they were."""

import signal
import threading

import psutil
import pytest
import structlog
from psycopg import conninfo, sql

from bank import account
from bank.invariants import progress
from bank.traffic import in_batches, make_traffic
from consumers.batch.batch import Batch
from consumers.group.membership import GroupShare, Membership
from consumers.loop.consumer import Consumer
from consumers.runtime import backoff
from consumers.runtime.observability.logs import Log
from consumers.runtime.session import Session
from consumers.runtime.stopping import Stop
from reservation import install
from reservation.errors import LockTimeoutError, SerializationError
from reservation.postgres.connection import connect
from reservation.postgres.exchange.exchange import exchange
from reservation.store.notifications import set_notices
from reservation.store.partition import Partition
from tests.bank import RESERVED, broken, event_types, lengthen_leases, session
from tests.controls import COMMANDS, deposit, open_
from tests.holding import HELD, holding
from tests.processes import PATIENCE, Started
from tests.proxy import Cut, Proxy
from tests.sending import Sender
from tests.servers import OwnServer

READS = ("account:command", RESERVED)
COMMIT = "COMMIT\0"  # the whole statement, not BEGIN ISOLATION LEVEL READ COMMITTED
CONSUMERS = "application_name LIKE 'reservation account %'"


def terminate(admin):
    """End the server's processes for the consumers, and wait until they are gone."""
    assert admin.execute(
        f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE {CONSUMERS}"
    ).fetchall()


def allow(admin, address, allowed):
    """Let the database take new connections, or none."""
    name = conninfo.conninfo_to_dict(address)["dbname"]
    admin.execute(
        sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
            sql.Identifier(name), sql.Literal(allowed)
        )
    )


def started_in_full(started):
    """Wait until both consumers have claimed their positions."""
    for category in READS:
        started.wait_for("consumer_started", category=category)


def epochs(connection):
    """Return the epochs of all positions."""
    rows = connection.execute("SELECT epoch FROM reservation.positions").fetchall()
    return [epoch for (epoch,) in rows]


def load(store, seed=1):
    """Write many commands, reissues among them; return the ids of those acknowledged."""
    traffic = make_traffic(accounts=10, sends=600, seed=seed)
    batches = [*in_batches(traffic, traffic.accounts, 50), *([write] for write in traffic.late)]
    for batch in batches:
        store.write_batch(batch)
    return {write.id for batch in batches for write in batch}


def wait_until_drained(connection, started):
    """Wait until both consumers have committed the end of their category, commands first."""
    for category in READS:
        while progress(connection)[category][0]:
            started.wait_for("batch_committed", category=category)


@pytest.mark.faults
def test_consumers_that_wait_get_a_new_connection(connection, store, admin, database_url):
    """Waiting consumers whose connection was ended reconnect and keep their claim."""
    store.write(open_(), COMMANDS)
    with Started(database_url) as started:
        started_in_full(started)
        for n in range(3):
            terminate(admin)
            for category in READS:
                lost = started.wait_for("database_unavailable", category=category)
                assert 0.05 <= lost["delay"] <= 0.1
                started.wait_for("database_available", category=category)
            store.write(deposit(f"d{n}"), COMMANDS)
            started.wait_for("batch_committed", category=RESERVED, handled=1)
        assert started.stop() == 0
        assert "terminating connection" in started.log
        assert "Traceback" not in started.log
        assert all(line.startswith("{") for line in started.lines)
    assert epochs(connection) == [1, 1]
    assert broken(connection) == {}


@pytest.mark.faults
def test_notice_is_awaited_again_on_a_new_connection(connection, store, admin, database_url):
    """After a reconnection notices are awaited at once."""
    set_notices(connection, on=True)
    with Started(database_url, "--only", "commands") as started:
        started.wait_for("notice_awaited")
        terminate(admin)
        started.wait_for("database_available")
        store.write(open_(), COMMANDS)
        started.wait_for("batch_committed", handled=1)
        assert started.stop() == 0


@pytest.mark.faults
def test_a_batch_whose_connection_is_lost_is_read_again(
    connection, store, admin, database_url, tmp_path, monkeypatch
):
    """A batch whose connection is lost is read again and takes effect once."""
    app = holding(tmp_path, monkeypatch)
    store.write([open_(), deposit(), deposit(HELD), deposit("d3")], COMMANDS)
    with Started(database_url, "--app-dir", str(tmp_path), app="held:account") as started:
        app.wait()
        terminate(admin)
        app.let_go()
        started.wait_for("database_unavailable", category=RESERVED)
        started.wait_for("database_available", category=RESERVED)
        started.wait_for("batch_committed", category=RESERVED, handled=3)
        assert started.stop() == 0
    assert event_types(store) == ["Opened"] + ["Deposited"] * 3
    assert broken(connection) == {}


@pytest.mark.faults
@pytest.mark.parametrize("when", list(Cut))
def test_a_commit_whose_outcome_is_unknown_is_harmless(connection, store, database_url, when):
    """After a commit with unknown outcome the position decides whether to read again."""
    acknowledged = load(store)
    with Proxy(database_url) as proxy, Started(proxy.address, "--batch-size", "10") as started:
        for seed, category in enumerate((*READS, RESERVED), start=2):
            started.wait_for("batch_committed", category=category)
            proxy.cut(when, COMMIT)
            acknowledged |= load(store, seed=seed)  # the rest may be handled by now
            assert proxy.happened.wait(PATIENCE)
            away = started.wait_for("database_unavailable")
            started.wait_for("database_available", category=away["category"])
        wait_until_drained(connection, started)
        assert started.stop() == 0
    assert epochs(connection) == [1, 1]
    assert broken(connection, acknowledged) == {}


@pytest.mark.faults
def test_consumers_outlive_a_crash_of_the_server(server_folder):
    """After each of two crashes under load the consumers go on, and I1 to I8 hold."""
    server = OwnServer(server_folder / "postgres")
    acknowledged = set()
    try:
        with connect(server.address, autocommit=True) as connection:
            install(connection)
        with Started(server.address, "--batch-size", "10") as started:
            started_in_full(started)
            for seed in range(2):
                # Each crash has commands of its own: those of the first may all be handled by then.
                traffic = make_traffic(accounts=20, sends=2000, seed=seed)
                with Sender(server.address, traffic) as sender:
                    for category in READS:
                        started.wait_for("batch_committed", category=category)
                    server.crash()
                    for category in READS:
                        started.wait_for("database_unavailable", category=category)
                    started.forget()  # a batch from before the crash is none after it
                    server.start()
                    for category in READS:
                        started.wait_for("database_available", category=category)
                    sender.finish()
                    sender.send_late()
                    acknowledged |= sender.acknowledged
            with connect(server.address, autocommit=True) as connection:
                wait_until_drained(connection, started)
                assert started.stop() == 0
                assert epochs(connection) == [1, 1]
                assert broken(connection, acknowledged) == {}
    finally:
        server.close()


@pytest.mark.faults
def test_a_database_that_lets_nobody_in_is_asked_less_and_less_often(admin, database_url):
    """Waits for an unavailable database double, and no log shows the password."""
    password = conninfo.conninfo_to_dict(database_url).get("password") or "a-secret"
    address = conninfo.make_conninfo(database_url, password=password)
    with Started(address, "--only", "commands") as started:
        started.wait_for("consumer_started")
        allow(admin, database_url, False)
        try:
            terminate(admin)
            lost = started.wait_for("database_unavailable")
            away = started.wait_for("database_unavailable")
            assert "not currently accepting connections" in away["error"]
            awaited = [started.wait_for("database_awaited") for _ in range(3)]
            for n, waited in enumerate([lost, away, *awaited]):
                assert 0.05 * 2**n <= waited["delay"] <= 0.1 * 2**n
            assert all("error" not in waited for waited in awaited)
        finally:
            allow(admin, database_url, True)
        started.wait_for("database_available")
        assert started.stop() == 0
        assert password not in started.log


@pytest.mark.faults
def test_a_consumer_that_dies_while_the_database_is_away_is_restarted(admin, store, database_url):
    """The supervisor restarts a consumer during an outage of a database it has seen."""
    with Started(database_url) as started:
        started_in_full(started)
        allow(admin, database_url, False)
        try:
            terminate(admin)
            for category in READS:
                started.wait_for("database_unavailable", category=category)
            psutil.Process(started.process.pid).children()[-1].kill()
            died = started.wait_for("consumer_died", category=RESERVED)
            away = {"timestamp": ""}
            while away["timestamp"] < died["timestamp"]:  # the one that died said so too
                away = started.wait_for("database_unavailable", category=RESERVED)
            assert "not currently accepting connections" in away["error"]
        finally:
            allow(admin, database_url, True)
        for category in READS:
            started.wait_for("database_available", category=category)
        store.write([open_(), deposit()], COMMANDS)
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        assert started.stop() == 0


@pytest.mark.faults
def test_a_consumer_that_waits_for_the_database_stops_at_once(admin, database_url):
    """A consumer that waits for the database stops at once."""
    with Started(database_url) as started:
        started_in_full(started)
        allow(admin, database_url, False)
        try:
            terminate(admin)
            for category in READS:
                started.wait_for("database_unavailable", category=category)
            assert started.stop() == 0
        finally:
            allow(admin, database_url, True)
        assert started.log.count('"consumer_stopped"') == 2
        assert "batch_abandoned" not in started.log


@pytest.mark.faults
def test_a_consumer_that_was_taken_over_while_away_stands_by(
    connection, store, admin, database_url
):
    """A consumer that finds a newer epoch on its new connection stands by."""
    lengthen_leases(connection)
    with Started(database_url, "--only", "commands") as older:
        older.wait_for("consumer_started", epoch=1)
        older.process.send_signal(signal.SIGSTOP)
        terminate(admin)
        with Started(database_url, "--only", "commands") as newer:
            newer.wait_for("consumer_started", epoch=2)
            older.process.send_signal(signal.SIGCONT)
            older.wait_for("database_unavailable")
            older.wait_for("standing_by")
            store.write(open_(), COMMANDS)
            newer.wait_for("batch_committed", handled=1)
            assert epochs(connection) == [2]
            assert newer.stop() == 0
            assert older.stop() == 0


@pytest.mark.faults
def test_consumers_wait_for_space_on_a_full_disk(connection, store, database_url):
    """With a full disk a batch leaves nothing, and it succeeds once there is space."""
    connection.execute(
        """
        CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
        END $$;
        """
    )
    store.write([open_(), deposit()], COMMANDS)
    connection.execute(
        "CREATE TRIGGER full_disk BEFORE INSERT ON message_store.messages "
        "FOR EACH STATEMENT EXECUTE FUNCTION full_disk()"
    )
    with Started(database_url) as started:
        away = started.wait_for("database_unavailable")
        assert "No space left on device" in away["error"]
        for _ in range(2):
            away = started.wait_for("database_awaited")
        assert away["delay"] >= 0.2
        assert event_types(store) == []
        connection.execute("DROP TRIGGER full_disk ON message_store.messages")
        started.wait_for("database_available", category="account:command")
        started.wait_for("batch_committed", category=RESERVED, handled=1)
        assert started.stop() == 0
    assert broken(connection) == {}


@pytest.mark.faults
def test_consumers_wait_for_a_server_that_takes_no_writes(connection, store, admin, database_url):
    """A consumer waits while the server accepts no writes, and continues where it may write."""
    read_only = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
    name = sql.Identifier(conninfo.conninfo_to_dict(database_url)["dbname"])
    with Started(database_url, "--only", "commands") as started:
        started.wait_for("consumer_started")
        admin.execute(read_only.format(name, sql.SQL("on")))
        terminate(admin)
        started.wait_for("database_unavailable")
        assert "read-only transaction" in started.wait_for("database_unavailable")["error"]
        started.wait_for("database_awaited")
        admin.execute(read_only.format(name, sql.SQL("off")))
        started.wait_for("database_available")
        store.write(open_(), COMMANDS)
        started.wait_for("batch_committed", handled=1)
        assert started.stop() == 0


@pytest.mark.faults
@pytest.mark.parametrize("when", list(Cut))
def test_a_member_that_does_not_know_whether_it_joined_joins_again(
    connection, store, database_url, when
):
    """A member whose join has an unknown outcome joins again, and the other one counts as gone."""
    store.write(open_(), COMMANDS)
    stop = Stop()
    with Proxy(database_url) as proxy, session(proxy.address) as opened:
        proxy.cut(when, COMMIT)
        consumer = Consumer(opened, account, "account:command")
        running = threading.Thread(target=consumer.run, args=(stop,), daemon=True)
        running.start()
        while event_types(store) != ["Opened"]:
            assert running.is_alive()
        stop.request()
        running.join(PATIENCE)
        assert proxy.happened.is_set()
    assert epochs(connection) == [1]
    assert connection.execute("SELECT FROM reservation.members").fetchall() == []


def test_a_consumer_waits_for_a_commit_of_its_earlier_connection(
    connection, store, database_url, monkeypatch
):
    """A consumer waits for a commit of its earlier connection and continues behind it."""
    monkeypatch.setattr("consumers.group.positions.LONGEST_PAUSE", "5min")
    store.write([deposit(f"d{n}") for n in range(7)], COMMANDS)
    with session(database_url) as first, session(database_url) as second:
        membership = Membership(first, "account", COMMANDS, GroupShare(), Log("account", COMMANDS))
        membership.join(first.connection)
        membership.turn(first.connection)
        positions = membership.positions
        with first.connection.transaction():
            exchange(first.connection, [positions.advance(first.connection, Partition(), 7)])
            with pytest.raises(LockTimeoutError):
                membership.join(second.connection)
        membership.join(second.connection)
        membership.turn(second.connection)
        assert (membership.positions.lowest, membership.positions.epoch) == (7, 1)
        assert not membership.unclean


def test_a_batch_that_loses_race_after_race_is_run_until_it_wins(
    connection, store, database_url, monkeypatch
):
    """A batch that loses race after race is retried until it wins, and each loss is logged."""
    monkeypatch.setattr(backoff.Backoff.__init__, "__defaults__", (0.001, 0.002))
    store.write(open_(), COMMANDS)
    stop, tries = Stop(), []
    run = Batch.run

    def lose(self, positions, limit, *, careful=False, **options):
        tries.append(careful)
        if len(tries) <= 20:
            raise SerializationError("lost")
        stop.request()
        return run(self, positions, limit, careful=careful, **options)

    monkeypatch.setattr(Batch, "run", lose)
    with session(database_url) as opened, structlog.testing.capture_logs() as logs:
        Consumer(opened, account, "account:command").run(stop)
    assert tries == [False] + [True] * 20
    again = [event["times"] for event in logs if event["event"] == "race_lost_again"]
    assert again == list(range(2, 21))
    assert event_types(store) == ["Opened"]


def test_connecting_ends_at_once_when_it_is_time_to_stop(database_url, monkeypatch):
    """A stop ends an attempt to connect at once, even one that never returns."""
    stop, connecting, never = Stop(), threading.Event(), threading.Event()
    with session(database_url) as opened:

        def hang(self):
            connecting.set()
            never.wait(PATIENCE)
            raise SerializationError("too late")

        monkeypatch.setattr(Session, "_open", hang)
        waiting = threading.Thread(
            target=lambda: opened.recover(SerializationError("lost"), stop), daemon=True
        )
        waiting.start()
        assert connecting.wait(PATIENCE)
        stop.request()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        never.set()


def test_the_settings_of_a_consumers_connection(database_url):
    """No limit of the server ends a long batch, and no lock outlives a lost client."""
    address = conninfo.make_conninfo(
        database_url,
        options="-c idle_in_transaction_session_timeout=7 -c statement_timeout=7000",
    )
    with session(address) as opened:
        settings = dict(
            opened.connection.execute("SELECT name, setting FROM pg_settings").fetchall()
        )
        assert settings["lock_timeout"] == "1000"
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            assert settings[name] == "0"
        assert settings["client_connection_check_interval"] == "2000"
        assert settings["application_name"] == "reservation test"
