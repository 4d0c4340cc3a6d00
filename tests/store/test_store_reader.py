"""What a host serves of the store: read now and then, and never waited for.

It goes in by the module itself, whose pauses are of seconds and are shortened here.
"""

import pytest
from psycopg import conninfo, sql
from structlog.testing import capture_logs

from consumers.supervisor import store_reader as module
from consumers.supervisor.store_reader import StoreReader
from tests.store.builders import as_login, grant, new_role  # noqa: F401  a fixture
from tests.support.controls import open_
from tests.support.proxy import Proxy
from tests.support.watching import until

COMMANDS = "account:command"
READS = ("account", COMMANDS)
STREAM = f"{COMMANDS}-1"


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Read often, and notice soon that a read is late."""
    monkeypatch.setattr(module, "INTERVAL", 0.05)
    monkeypatch.setattr(module, "LATE_AFTER", 0.5)


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


@pytest.fixture
def log_in(connection, database_url, new_role):  # noqa: F811
    """Give a function that makes a role of a kind, and returns its name and its address."""

    def make(kind, *categories):
        role = new_role()
        grant(connection, kind, role, categories)
        return role, as_login(connection, database_url, role)

    return make


def test_a_role_that_may_not_read_is_named_in_the_log(log_in):
    """A sender's role cannot read what consumers do; the log says so, and nothing is served."""
    role, address = log_in("sender", COMMANDS)
    with capture_logs() as logged, StoreReader(address, [READS]) as reader:
        until(lambda: logged)
        assert not reader.latest().up
    assert logged[0]["event"] == "store_metrics_unavailable"
    assert f"The role {role} of the consumer lacks" in logged[0]["error"]
    until(lambda: not reader._thread.is_alive())


def test_a_consumers_rights_are_enough(log_in):
    """A consumer's usual grants let its host read all of it."""
    _, address = log_in("consumer")
    with StoreReader(address, [READS]) as reader:
        until(lambda: reader.latest().up)
    until(lambda: not reader._thread.is_alive())
