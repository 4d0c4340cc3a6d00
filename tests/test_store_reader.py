"""What a host serves of the store: read now and then, and never waited for."""

import contextlib
import os
import time

import psutil
import pytest
from psycopg import conninfo, sql
from structlog.testing import capture_logs

from consumers.supervisor import store_reader as module
from consumers.supervisor.store_reader import StoreReader
from reservation.store.schema.roles import grant
from tests.controls import deposit, open_
from tests.letters import letters
from tests.proxy import Proxy
from tests.watching import Watched, until

COMMANDS = "account:command"
READS = ("account", COMMANDS)
STREAM = f"{COMMANDS}-1"


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Read often, and notice soon that a read is late."""
    monkeypatch.setattr(module, "INTERVAL", 0.05)
    monkeypatch.setattr(module, "LATE_AFTER", 0.5)


def let_log_in(connection, role, database_url):
    """Return the database's address for a role, which has the test's own password."""
    password = conninfo.conninfo_to_dict(database_url).get("password", "none")
    connection.execute(
        sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(
            sql.Identifier(role), sql.Literal(password)
        )
    )
    return conninfo.make_conninfo(database_url, user=role)


def first(reader):
    """Return what the reader knows of its consumer, once it does; None if it was dropped."""
    reading = reader.latest()
    return reading.summary and reading.summary.consumers[0]


def test_the_lag_in_seconds_grows_while_nobody_handles_a_message(store, database_url):
    """The age of the oldest message grows although nothing is written."""
    with StoreReader(database_url, [READS]) as reader:
        until(lambda: reader.latest().up)
        assert first(reader).lag.seconds == 0
        store.write(open_(), STREAM)
        before = until(lambda: first(reader).lag.seconds)
        until(lambda: first(reader).lag.seconds > before)
        assert first(reader).lag.messages == 1


def test_nothing_is_known_before_the_first_read(database_url):
    """Before the first read, and without it, the store is not up and there are no numbers."""
    reader = StoreReader(database_url, [READS])
    assert (reader.latest().up, reader.latest().summary) == (False, None)


def test_a_read_that_takes_long_is_followed_by_a_longer_pause(database_url):
    """The host reads for a small part of the time, however long a read takes."""
    reader = StoreReader(database_url, [READS])
    assert reader._succeeded(object(), 0.001) == module.INTERVAL
    assert reader._succeeded(object(), 3) == 3 * module.SHARE
    assert reader.latest().up


@pytest.mark.faults
def test_a_database_that_hangs_is_noticed_and_delays_nobody(database_url, monkeypatch):
    """While a read hangs the last numbers are kept for a while, and then dropped."""
    monkeypatch.setattr(module, "KEPT_FOR", 3600)
    with Proxy(database_url) as proxy, StoreReader(proxy.address, [READS]) as reader:
        until(lambda: reader.latest().up)
        proxy.hold(0)
        assert proxy.happened.wait(60)
        until(lambda: not reader.latest().up)
        assert first(reader).consumer == "account"
        monkeypatch.setattr(module, "KEPT_FOR", 0)
        assert reader.latest().summary is None
        monkeypatch.setattr(module, "KEPT_FOR", 3600)
        proxy.drop()
        until(lambda: reader.latest().up)


@pytest.mark.faults
def test_a_database_that_refuses_is_logged_once_and_read_again(admin, database_url):
    """The cause is logged once; once the database is back, so are the numbers."""
    name = sql.Identifier(conninfo.conninfo_to_dict(database_url)["dbname"])
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    with capture_logs() as logged, StoreReader(database_url, [READS]) as reader:
        until(lambda: reader.latest().up)
        admin.execute(allow.format(name, sql.SQL("false")))
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'reservation metrics account' AND datname = %s",
            [name._obj[0]],
        )
        until(lambda: not reader.latest().up)
        refused = "is not currently accepting connections"
        until(lambda: any(refused in event.get("error", "") for event in logged))
        admin.execute(allow.format(name, sql.SQL("true")))
        until(lambda: reader.latest().up)
        until(lambda: logged[-1]["event"] == "store_metrics_available")
    causes = [event["error"] for event in logged if event["event"] == "store_metrics_unavailable"]
    assert len(set(causes)) == len(causes)


def test_a_role_that_may_not_read_is_named_in_the_log(connection, database_url):
    """A sender's role cannot read what consumers do; the log says so, and nothing is served."""
    role = f"test_reader_{os.getpid()}"
    grant(connection, "sender", role, categories=[COMMANDS])
    url = let_log_in(connection, role, database_url)
    try:
        with capture_logs() as logged, StoreReader(url, [READS]) as reader:
            until(lambda: logged)
            assert not reader.latest().up
        assert logged[0]["event"] == "store_metrics_unavailable"
        assert f"The role {role} of the consumer lacks" in logged[0]["error"]
    finally:
        until(lambda: not reader._thread.is_alive())
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_consumers_rights_are_enough(connection, database_url):
    """A consumer's usual grants let its host read all of it."""
    role = f"test_reader_{os.getpid()}"
    grant(connection, "consumer", role)
    url = let_log_in(connection, role, database_url)
    try:
        with StoreReader(url, [READS]) as reader:
            until(lambda: reader.latest().up)
    finally:
        until(lambda: not reader._thread.is_alive())
        connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


OVERDUE = """
INSERT INTO reservation.scheduled (
  id, due_at, stream_name, type, attempts, attempt_at)
VALUES (gen_random_uuid(), now() - interval '1 h', 'a:command-1', 'A', 1, now() + interval '1 h')
"""
OF_THE_STORE = (
    "lag_messages",
    "dead_letters",
    "parked_messages",
    "parked_entities",
    "retries_waiting",
    "next_retry_timestamp_seconds",
    "partitions",
    "partitions_without_holder",
    "scheduled_overdue_messages",
)


@pytest.mark.slow
@pytest.mark.faults
def test_each_host_serves_the_same_of_the_store(connection, store, database_url):
    """Two hosts serve the same numbers, and one does so while its consumer hangs."""
    letters(connection, [("dead", None), ("parked", None), ("dead", "1 h")])
    letters(connection, [("dead", "2 h")], entity="account-8", stream=f"{COMMANDS}-8")
    connection.execute(OVERDUE)
    ((due,),) = connection.execute(
        "SELECT extract(epoch FROM min(next_attempt_at))::float8 FROM reservation.dead_letters"
    ).fetchall()
    options = ("--only", "commands", "--partitions", "2")
    with Watched(database_url, *options) as one, Watched(database_url, *options) as other:
        for host in (one, other):
            host.ready()
            until(lambda host=host: settled(host))
        assert (
            of_the_store(one)
            == of_the_store(other)
            == {
                "lag_messages": 0,
                "dead_letters": 1,
                "parked_messages": 1,
                "parked_entities": 2,
                "retries_waiting": 2,
                "next_retry_timestamp_seconds": pytest.approx(due),
                "partitions": 2,
                "partitions_without_holder": 0,
                "scheduled_overdue_messages": 1,
            }
        )
        assert one.figure("reservation_lag_seconds", *READS) == 0
        assert (
            abs(one.figure("reservation_store_read_timestamp_seconds", *READS) - time.time()) < 60
        )
        assert other.stop() == 0
        with suspended(one):
            store.write(deposit("late"), STREAM)
            until(lambda: one.figure("reservation_lag_seconds", *READS) > 0)
            assert one.figure("reservation_lag_messages", *READS) == 1


@contextlib.contextmanager
def suspended(host):
    """Suspend the processes of a host's consumers."""
    children = psutil.Process(host.process.pid).children()
    workers = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    for worker in workers:
        worker.suspend()
    try:
        yield
    finally:
        for worker in workers:
            worker.resume()


def settled(host):
    """Tell whether a host has read the store since the consumers share the category."""
    names = of_the_store(host)
    return names["partitions"] == 2 and names["partitions_without_holder"] == 0


def of_the_store(host):
    """Return the gauges that have to be the same at each host."""
    figures = host.figures()
    return {name: figures.get((f"reservation_{name}", *READS)) for name in OF_THE_STORE}
