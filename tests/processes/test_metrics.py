"""What the supervisor serves for monitoring: metrics, liveness and readiness of real processes."""

import urllib.error

import psycopg
import pytest
from psycopg import conninfo, sql

from tests.apps.bank import RESERVED
from tests.apps.holding import HELD, Holding
from tests.consumers.test_monitoring import wrong_expressions
from tests.support.controls import COMMANDS as STREAM
from tests.support.controls import deposit, open_
from tests.support.letters import letters
from tests.support.started import PATIENCE
from tests.support.watching import Watched, until

COMMANDS = "account:command"
READS = ("account", COMMANDS)
MESSAGES = "reservation_messages_total"
OUTCOMES = (
    *("handled", "reserved", "duplicate", "rejected", "conflict", "ignored", "redelivered"),
    *("differing", "dead", "waiting", "parked"),
)


def test_metrics_and_health_of_all_processes_are_at_one_port(
    database_url, connection, store, server_url, tmp_path
):
    """A long batch is no fault; an unavailable database shows in readiness, not in liveness.

    All that the documented alerts and the dashboard ask for is there.
    """
    app = Holding(tmp_path)
    letters(connection, [("dead", None), ("parked", None), ("waiting", "1 h")])
    store.write([open_(), deposit("d1"), deposit(HELD), deposit("d1")], STREAM)
    with app.start(database_url, "--workers", "2", "--partitions", "16", kind=Watched) as started:
        app.wait()
        started.ready()
        assert started.ask("/livez") == (200, "ok\n")
        assert started.figure(MESSAGES, "account", RESERVED, "handled") == 0
        app.let_go()
        until(lambda: started.figure(MESSAGES, "account", RESERVED, "handled") == 2)
        until(lambda: started.figure(MESSAGES, *READS, "duplicate") == 1)
        until(lambda: started.figure("reservation_partitions_held", *READS) == 16)
        check_figures(started, connection)
        check_formats(started)
        until(lambda: started.figure("reservation_store_up", *READS))
        assert wrong_expressions(started.ask("/metrics")[1]) == {}
        check_reasons(started, connection)
        with psycopg.connect(server_url, autocommit=True) as admin:
            check_outage(started, admin, conninfo.conninfo_to_dict(database_url)["dbname"])
        assert started.stop() == 0
        with pytest.raises(urllib.error.URLError):
            started.ask("/livez")


def check_figures(started, connection):
    """Compare the figures of the commands with what was handled."""
    figures = started.figures()
    counted = {outcome: figures[MESSAGES, *READS, outcome] for outcome in OUTCOMES}
    done = {"handled": 1, "reserved": 2, "duplicate": 1}
    assert counted == {**dict.fromkeys(OUTCOMES, 0), **done}
    batches = figures["reservation_batches_total", *READS]
    assert batches >= 1
    assert figures["reservation_batch_seconds_count", *READS] == batches
    assert figures["reservation_batch_seconds_bucket", *READS, "+Inf"] == batches
    assert 0 < figures["reservation_batch_seconds_sum", *READS] < PATIENCE
    assert figures["reservation_database_errors_total", *READS] == 0
    assert figures["reservation_workers", *READS, "up"] == 2
    assert figures["reservation_workers", *READS, "degraded"] == 0
    ((partition,),) = connection.execute("SELECT reservation.partition_of(%s, 16)", [STREAM])
    until(lambda: started.figure("reservation_position", *READS, str(partition)) >= 4)
    assert started.figure("reservation_head", *READS) == 4


def check_reasons(started, connection):
    """Compare the figures of what is not handled with the store; a pause is one of them."""
    letters = {"dead": 1, "retry": 1, "parked": 1}
    for reason in ("dead", "retry", "running", "limited", "breaker_open", "paused", "parked"):
        figure = started.figure("reservation_open_letters", *READS, reason)
        assert figure == letters.get(reason, 0), reason
    for paused in (1, 0):
        pause = (
            "INSERT INTO reservation.pauses (component, category, reason)"
            f" VALUES ('account', '{COMMANDS}', 'why')"
        )
        connection.execute(pause if paused else "DELETE FROM reservation.pauses")
        until(lambda paused=paused: started.figure("reservation_paused", *READS) == paused)
        assert started.figure("reservation_paused", "account", RESERVED) == 0


def check_formats(started):
    """Ask for the metrics in both formats, and at other paths."""
    assert f"# TYPE {MESSAGES} counter" in started.ask("/metrics")[1]
    open_metrics = started.ask("/metrics", Accept="application/openmetrics-text")[1]
    assert open_metrics.endswith("# EOF\n")
    assert started.ask("/metrics?name[]=x")[0] == 200
    assert started.ask("/") == (404, "/metrics, /livez and /readyz are here\n")


def check_outage(started, admin, name):
    """Let nobody into the database for a while."""
    allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format
    admin.execute(allow(sql.Identifier(name), sql.Literal(False)))
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
    )
    status, text = until(
        lambda: (answer := started.ask("/readyz"))[1].count(": degraded: ") == 4 and answer
    )
    assert status == 503
    assert {line.partition(" in process ")[0] for line in text.splitlines()} == {
        f"account {COMMANDS}",
        f"account {RESERVED}",
    }
    assert started.ask("/livez") == (200, "ok\n")
    assert started.figure("reservation_workers", *READS, "degraded") == 2
    assert started.figure("reservation_database_errors_total", *READS) >= 1
    admin.execute(allow(sql.Identifier(name), sql.Literal(True)))
    started.ready()
