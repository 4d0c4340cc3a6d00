"""What the supervisor serves for monitoring: metrics, liveness and readiness of real processes."""

import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections import Counter

import psutil
import pytest
from click.testing import CliRunner
from psycopg import conninfo

from bank import account
from cli.main import main
from consumers.batch.batch import Batch
from consumers.runtime.context import ConsumerContext
from consumers.runtime.observability.logs import Log
from consumers.runtime.observability.telemetry import BUCKETS, Telemetry
from consumers.supervisor.health import Board
from reservation.postgres.connection import connect
from tests.bank import RESERVED, claim
from tests.controls import COMMANDS as STREAM
from tests.controls import deposit, open_
from tests.holding import HELD, holding
from tests.processes import PATIENCE, Started, run_cli
from tests.watching import Watched, until

COMMANDS = "account:command"
READS = ("account", COMMANDS)


def test_the_metrics_of_all_processes_are_at_one_port(database_url, store):
    """Counts, durations and held partitions of all processes are served at one port."""
    store.write([open_(), deposit("d1"), deposit("d2"), deposit("d1")], STREAM)
    with Watched(database_url, "--workers", "2") as started:
        started.ready()
        messages = ("reservation_messages_total", "account")
        until(lambda: started.figure(*messages, RESERVED, "handled") == 2)
        until(lambda: started.figure(*messages, COMMANDS, "duplicate") == 1)
        until(lambda: started.figure("reservation_partitions_held", *READS) == 16)
        figures = started.figures()
        counted = {
            name[3]: value for name, value in figures.items() if name[:3] == (*messages, COMMANDS)
        }
        assert counted == {
            **dict.fromkeys(
                [
                    *("rejected", "conflict", "ignored", "redelivered", "differing", "dead"),
                    *("waiting", "parked"),
                ],
                0,
            ),
            "handled": 1,
            "reserved": 2,
            "duplicate": 1,
        }
        batches = figures["reservation_batches_total", *READS]
        assert batches >= 1
        assert figures["reservation_batch_seconds_count", *READS] == batches
        assert figures["reservation_batch_seconds_bucket", *READS, "+Inf"] == batches
        assert 0 < figures["reservation_batch_seconds_sum", *READS] < PATIENCE
        assert figures["reservation_database_errors_total", *READS] == 0
        assert figures["reservation_workers", *READS, "up"] == 2
        assert figures["reservation_workers", *READS, "degraded"] == 0
        (partition,) = connect_and_ask(database_url, "SELECT reservation.partition_of(%s, 16)")
        until(lambda: started.figure("reservation_position", *READS, str(partition)) >= 4)
        assert figures["reservation_head", *READS] == 4
        assert started.ask("/livez") == (200, "ok\n")
        assert started.stop() == 0


def connect_and_ask(database_url, query):
    """Return the row that a query about the stream of commands gives."""
    with connect(database_url, autocommit=True) as connection:
        return connection.execute(query, [STREAM]).fetchone()


def test_the_metrics_come_in_the_requested_format(database_url):
    """Metrics are served in Prometheus' format or in OpenMetrics."""
    with Watched(database_url, "--only", "commands") as started:
        assert "# TYPE reservation_messages_total counter" in started.ask("/metrics")[1]
        open_metrics = started.ask("/metrics", Accept="application/openmetrics-text")[1]
        assert open_metrics.endswith("# EOF\n")
        assert started.ask("/metrics?name[]=x")[0] == 200
        status, text = started.ask("/")
        assert (status, text) == (404, "/metrics, /livez and /readyz are here\n")
        started.ready()
        assert started.stop() == 0


@pytest.mark.faults
def test_what_a_killed_process_did_counts_and_another_takes_its_place(database_url, store):
    """After a kill no counter goes back or counts twice, and readiness shows the gap."""
    store.write([open_(), deposit("d1")], STREAM)
    with Watched(database_url, "--only", "commands") as started:
        started.ready()
        reserved = ("reservation_messages_total", *READS, "reserved")
        until(lambda: started.figure(*reserved) == 1)
        (child,) = workers(started)
        child.kill()
        started.wait_for("consumer_died", how="by signal 9")
        assert started.figure(*reserved) == 1
        store.write(deposit("d2"), STREAM)
        until(lambda: started.figure(*reserved) == 2)
        started.ready()
        (other,) = workers(started)
        assert other.pid != child.pid
        figures = started.figures()
        assert figures["reservation_messages_total", *READS, "handled"] == 1
        assert figures["reservation_workers", *READS, "up"] == 1
        assert started.stop() == 0


def workers(started):
    """Return the processes of the consumers."""
    return [
        child
        for child in psutil.Process(started.process.pid).children()
        if "spawn_main" in " ".join(child.cmdline())
    ]


def test_an_unavailable_database_shows_in_readiness_and_not_in_liveness(server_url, database_url):
    """An unavailable database shows in readiness only, since a restart would not help."""
    name = conninfo.conninfo_to_dict(database_url)["dbname"]
    with Watched(database_url) as started, connect(server_url, autocommit=True) as admin:
        started.ready()
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        status, text = until(
            lambda: (answer := started.ask("/readyz"))[1].count(": degraded: ") == 2 and answer
        )
        assert status == 503
        first, second = sorted(text.splitlines())
        assert first.startswith(f"account {COMMANDS} in process ")
        assert second.startswith(f"account {RESERVED} in process ")
        assert started.ask("/livez") == (200, "ok\n")
        figures = started.figures()
        assert figures["reservation_workers", *READS, "degraded"] == 1
        assert figures["reservation_database_errors_total", *READS] >= 1
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        started.ready()
        assert started.stop() == 0


def test_a_consumer_in_a_long_batch_is_ready(database_url, store, tmp_path, monkeypatch):
    """A consumer in a long batch is ready."""
    app = holding(tmp_path, monkeypatch)
    store.write([open_(), deposit(HELD)], STREAM)
    with Watched(database_url, "--app-dir", str(tmp_path), app="held:account") as started:
        app.wait()
        started.ready()
        assert started.ask("/livez") == (200, "ok\n")
        assert started.figure("reservation_messages_total", "account", RESERVED, "handled") == 0
        app.let_go()
        until(
            lambda: (
                started.figure("reservation_messages_total", "account", RESERVED, "handled") == 1
            )
        )
        assert started.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_answering_is_no_reason_to_stop_late(database_url, number):
    """The supervisor acts on a signal at once while it serves requests."""
    with Watched(database_url) as started:
        started.ready()
        assert started.stop(number) == 0
        with pytest.raises(urllib.error.URLError):
            started.ask("/livez")


def test_a_port_that_is_taken_is_named(database_url):
    """A port in use is named in one line before any consumer is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_cli(
            "start", "bank:account", "--metrics-port", port, "--database-url", database_url
        )
    assert done.returncode == 2
    assert f"Error: Cannot answer at 127.0.0.1, port {port}: Address already in use" in done.stderr
    assert "consumer_started" not in done.stderr


def test_an_ipv6_address_works(database_url):
    """Metrics can be served at an IPv6 address."""
    if not socket.has_ipv6 or not any(
        address.address == "::1" for all_ in psutil.net_if_addrs().values() for address in all_
    ):
        pytest.skip("this machine has no IPv6")
    with Started(
        database_url, "--only", "commands", "--metrics-port", "0", "--metrics-host", "::1"
    ) as started:
        port = started.wait_for("metrics_served", host="::1")["port"]
        with urllib.request.urlopen(f"http://[::1]:{port}/livez", timeout=PATIENCE) as answer:
            assert answer.status == 200
        started.wait_for("consumer_started")
        assert started.stop() == 0


def test_without_the_extra_the_way_to_it_is_named(monkeypatch):
    """Without the extra the error names how to install it, before anything is started."""
    monkeypatch.setattr("cli.common.extras.find_spec", lambda name: None)
    arguments = ["start", "bank:account", "--metrics-port", "0", "--database-url", "host=/nowhere"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert "pip install 'reservation[metrics]'" in done.output


def test_the_extra_is_needed_only_where_metrics_are_served(database_url):
    """The Prometheus library is imported only where metrics are served."""
    code = (
        "import sys; import cli.main, consumers.supervisor.supervisor; "
        "sys.exit('prometheus_client' in sys.modules or 'http.server' in sys.modules)"
    )
    subprocess.run(
        [os.sys.executable, "-c", code], check=True, env={**os.environ}, timeout=PATIENCE
    )


@pytest.fixture
def board():
    """Give a board of one consumer, on which silence is noticed soon."""
    board = Board([READS], stuck_after=0.2)
    yield board
    board.close()


def test_a_consumer_that_is_silent_for_too_long_counts_as_stuck(board):
    """A consumer that is silent for too long counts as stuck until its next sign of life."""
    board.started(os.getpid(), READS)
    (problem,) = until(board.stuck)
    assert problem.startswith(f"account {COMMANDS} in process {os.getpid()}: no sign of life for ")
    assert problem in board.not_ready() or len(board.not_ready()) == 2
    Telemetry(board.sender).holds({0: 5}, 7)
    board.take_in()
    assert board.stuck() == []
    assert board.not_ready() == []


def test_a_process_that_has_not_reported_is_not_ready(board):
    """A process that has not reported, or does not exist, is not ready."""
    assert board.not_ready() == [f"account {COMMANDS}: 0 of 1 processes run"]
    board.started(os.getpid(), READS)
    assert board.not_ready() == [f"account {COMMANDS} in process {os.getpid()}: starting"]


def test_each_message_that_is_handled_is_a_sign_of_life(connection, store):
    """Each handled message is a sign of life, however long the batch takes."""
    store.write([open_("1"), open_("2"), open_("3")], STREAM)
    signs = Counter()
    log = Log("account", COMMANDS)
    context = ConsumerContext(connection, account, COMMANDS, log, lambda: signs.update(["one"]))
    batch = Batch(context)
    assert batch.run(claim(connection, "account", COMMANDS), 100).read == 3
    assert signs["one"] == 3


def test_a_consumer_never_waits_for_its_supervisor(board):
    """A report that does not fit is lost, and the next one makes up for it."""
    telemetry = Telemetry(board.sender)
    board.started(os.getpid(), READS)
    for _ in range(5000):
        telemetry.committed({"handled": 1}, 0.01)
    board.take_in()
    assert board.tallies()[READS].counts["handled"] < 5000
    telemetry.committed({"handled": 1}, max(BUCKETS) + 1)
    board.ended(os.getpid())
    tally = board.tallies()[READS]
    assert tally.counts["handled"] == 5001
    assert (sum(tally.buckets), tally.buckets[-1]) == (5001, 1)
    assert tally.seconds == pytest.approx(5000 * 0.01 + max(BUCKETS) + 1)


def test_a_report_of_a_process_that_ended_is_not_counted_twice(board):
    """A late report of a process that has ended is not counted again."""
    telemetry = Telemetry(board.sender)
    board.started(os.getpid(), READS)
    telemetry.committed({"handled": 1}, 0.01)
    board.ended(os.getpid())
    telemetry.committed({"handled": 1}, 0.01)
    board.take_in()
    assert board.tallies()[READS].counts == {"handled": 1}
