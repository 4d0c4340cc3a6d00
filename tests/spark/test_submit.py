"""The jobs one by one, as ``spark-submit`` starts them, and Java's classes kept for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spark_jobs
from bank import account
from spark_jobs.jobs.submit import PARTS, alone, part
from spark_jobs.reconciliation.run import Run
from spark_jobs.session import java
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import drain
from tests.clusters import HOME
from tests.controls import COMMANDS, LATER, deposit, open_
from tests.processes import EXAMPLES, run_cli

pytestmark = pytest.mark.spark

SUBMIT = Path(spark_jobs.__file__).parent / "jobs" / "submit.py"


def plant(connection, store):
    """Write commands of which one was sent again and one was lost."""
    store.write([open_(), deposit("d1"), deposit("d1", time=LATER)], COMMANDS)
    drain(connection)
    store.write(deposit("o1"), "accountTransaction-123+o1")


def test_each_job_alone_gives_its_part(spark, spark_connection, spark_store, spark_database_url):
    """Each job alone gives its part of the whole report."""
    plant(spark_connection, spark_store)
    run = Run(account, "bank:account", EXAMPLES, spark_database_url)
    parts = {}
    for job in PARTS:
        with exported_snapshot(spark_database_url) as snapshot:
            parts[job] = part(job, alone(job, run, snapshot, spark))
    assert parts["reconcile"]["categories"][0]["orphans"] == 1
    assert [row["finding"] for row in parts["reconcile"]["samples"]] == ["orphan"]
    assert parts["effects"]["events"]["causes"] == 2
    assert {latency["stage"] for latency in parts["latency"]["latency"]} == {
        "reserved",
        "handled",
        "whole",
    }
    assert parts["reissues"]["reissues"]["senders"][0]["duplicates"] == 1


def submit(*arguments, cwd, **environment):
    """Run a job's module with spark-submit."""
    quickly = ["--driver-java-options", java.options()]
    return subprocess.run(
        [HOME / "bin" / "spark-submit", "--master", "local[1]", *quickly, *arguments],
        cwd=cwd,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.long
def test_jobs_are_submitted(connection, store, database_url, tmp_path):
    """Jobs run with spark-submit and the zip file alone, with the status of the command."""
    plant(connection, store)
    package, archive = tmp_path / "bank.zip", tmp_path / "archive"
    assert run_cli("spark", "package", "-o", str(package), "--app", "bank:account").returncode == 0

    def submitted(job, *arguments, status):
        done = submit(
            *("--py-files", package, SUBMIT, job, "bank:account", *arguments),
            cwd=EXAMPLES,
            RESERVATION_DATABASE_URL=database_url,
        )
        assert done.returncode == status, done.stderr[-2000:]
        # Whatever a job writes, spark-submit hands on to its standard output.
        return done.stdout

    report = json.loads(submitted("reconcile", status=1))
    assert report["categories"][0]["orphans"] == 1
    report = json.loads(submitted("archive", archive, "2100-01-01", status=0))
    assert report["differences"] == []
    assert report["snapshot_held"] > 0
    assert report["categories"][0]["messages"] == 3
    assert len(list(archive.glob("run=000001/category=*/day=*/*.parquet"))) == 3
    printed = submitted("archive", archive, "soon", status=2)
    assert printed == "Error: 'soon' is not a date; write 2026-01-31\n"


@pytest.fixture
def cache(tmp_path):
    """Give the folder of a cache in which Java's classes are kept."""
    kept = java.kept_classes()
    if kept.exists():  # by `reservation spark prepare` on this machine
        return kept.parent.parent
    done = run_cli("spark", "prepare", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    kept = tmp_path / "reservation" / "spark-classes.jsa"
    assert done.stdout.startswith(f"{kept}: ")
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]
    return tmp_path


@pytest.mark.long
def test_cached_classes_are_loaded(cache, tmp_path):
    """A later session loads Java's classes from the cache file."""
    log = tmp_path / "classes.log"
    session = (
        "from spark_jobs.session.session import spark_session\n"
        "with spark_session('') as spark: print(spark.range(3).count())"
    )
    environment = {
        "XDG_CACHE_HOME": str(cache),
        "JDK_JAVA_OPTIONS": f"-Xlog:class+load:file={log}",
    }
    started = subprocess.run(
        [sys.executable, "-c", session],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert started.stdout == "3\n"
    loaded = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    shared = [line for line in loaded if "shared objects file" in line]
    assert len(shared) > len(loaded) / 2
