"""The commands of Spark as processes of their own, each of which starts Spark."""

import fcntl
import json
import os
import signal
import subprocess
import sys

import psycopg

from reservation import MessageStore
from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import EXAMPLES, command_line, run_cli

# Archives each database with Spark's workers, and prints how many commands it had.
_RUNS = """
import json, sys, tempfile
from datetime import UTC, datetime
from pathlib import Path
from reservation.app_path import load_component
from spark_jobs.jobs.archive import archive
from spark_jobs.run import Run
account = load_component("bank:account", ".")
for url in sys.argv[1:]:
    run = Run(account, "bank:account", Path(), url)
    with tempfile.TemporaryDirectory() as folder:
        result = archive(run, Path(folder, "archive"), datetime(2100, 1, 1, tzinfo=UTC))
    print(json.dumps([result.categories[0].messages, result.differences]))
"""


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


def test_a_locked_folder_is_refused_before_spark_starts(store, database_url, tmp_path):
    """A state or an archive that another run uses is named, and no Java starts."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    java.chmod(0o755)
    (java.parent.parent / "release").write_text('JAVA_VERSION="17"\n')
    env = {"RESERVATION_DATABASE_URL": database_url, "JAVA_HOME": str(java.parent.parent)}
    for file, *words in (
        ("LOCK", "reconcile", "bank:account", "--state"),
        ("LOCK", "reconcile", "bank:account", "--follow", "--state"),
        ("_LOCK", "archive", "bank:account", "--before", "1d", "--to"),
    ):
        folder = tmp_path / words[0]
        folder.mkdir(exist_ok=True)
        with (folder / file).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = run_cli(*words, str(folder), env=env)
        assert done.returncode == 2
        assert done.stderr.endswith(" is in use by another run; wait for it, or name another\n")
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "started").exists()
    assert "Spark does not start" in run_cli("reconcile", "bank:account", env=env).stderr
    assert (tmp_path / "started").exists()


def test_runs_on_two_databases_in_one_process_read_each_its_own(
    store, connection, database_url, make_database, template
):
    """The workers of each run read the database of that run."""
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    other_url = make_database(template)
    with psycopg.connect(other_url, autocommit=True) as other:
        MessageStore(other).write([open_(), deposit("e1")], COMMANDS)
        drain(other)
    done = subprocess.run(
        [sys.executable, "-c", _RUNS, database_url, other_url],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[3, []], [2, []]]
