"""The commands of Spark as processes of their own, each of which starts Spark."""

import json
import os
import signal
import subprocess

from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import EXAMPLES, command_line, run_cli


def orphan(store, name):
    """Write a reservation without a command."""
    store.write(deposit(name), f"accountTransaction-123+{name}")


def test_a_reconciliation_prints_its_report_and_nothing_else(connection, store, database_url):
    """Java, Spark and its workers start, and none of their output is in the report."""
    store.write([open_(), deposit("d1"), deposit("d1")], COMMANDS)
    drain(connection)
    orphan(store, "o1")
    done = run_cli("reconcile", "bank:account", "--json", "--database-url", database_url)
    assert (done.returncode, done.stderr) == (1, "")
    (counts,) = json.loads(done.stdout)["categories"]
    assert (counts["reserved"], counts["duplicates"], counts["orphans"]) == (1, 1, 1)


def test_a_follower_prints_lines_until_it_is_stopped(store, database_url, tmp_path):
    """One JSON object a line; SIGTERM ends it with the status of what stands, and the metrics."""
    orphan(store, "o1")
    metrics = tmp_path / "metrics.prom"
    options = ["--follow", "--grace", "0s", "--json", "--prometheus", str(metrics)]
    with subprocess.Popen(
        command_line("reconcile", "bank:account", *options),
        env={**os.environ, "RESERVATION_DATABASE_URL": database_url},
        cwd=EXAMPLES,
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert json.loads(following.stdout.readline()) == {
            "event": "following",
            "component": "account",
            "categories": ["account:command", "accountTransaction", "account"],
            "graceSeconds": 0,
        }
        reported = json.loads(following.stdout.readline())
        assert reported["event"] == "reported"
        assert reported["violation"]["streamName"] == "accountTransaction-123+o1"
        following.send_signal(signal.SIGTERM)
        (ended,) = map(json.loads, following.stdout)
    assert following.returncode == 1
    standing = {"reported": 1, "mended": 0, "standing": {"orphan": 1}, "inOrder": False}
    assert ended == {"event": "ended", **standing}
