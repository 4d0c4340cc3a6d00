"""The commands of Spark as processes of their own, each of which starts Spark."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark

from tests.apps.bank import drain
from tests.support.commands import invoke_cli
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


_IMPORTS = """
import spark_jobs.source.source, reservation
from reservation.app_path import load_component
from reservation.store.schema import install
print(spark_jobs.__file__, load_component("bank:account", None).name)
"""


def test_the_zip_file_for_workers_works_from_where_it_is(tmp_path):
    """It is the same for the same files, holds the queries and the app, and is imported."""
    first, other = tmp_path / "one.zip", tmp_path / "other.zip"
    other.write_text("an earlier one")
    for path in (first, other):
        done = invoke_cli("spark", "package", "-o", str(path), "--app", "bank:account")
        assert done.returncode == 0, done.stderr
    assert first.read_bytes() == other.read_bytes()
    entries = zipfile.ZipFile(first).namelist()
    assert entries == sorted(entries)
    names = [name for name in entries if not name.endswith("/")]
    assert done.stdout == f"{other}: {len(names)} files\n"
    queries = {"spark_jobs/source/queries.sql", "reservation/store/queries.sql"}
    assert {"bank/component.py", *queries} <= {*names}
    assert {name.partition("/")[0] for name in names} <= {"bank", "reservation", "spark_jobs"}
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", _IMPORTS],
        env={"PYTHONPATH": f"{first}:{Path(pyspark.__file__).parent.parent}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(first) in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []
