"""Jobs that ``spark-submit`` starts, Java's classes kept for them, and a Java without memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import spark_jobs
from spark_jobs.session import classes, java
from tests.apps.bank import drain
from tests.soak.clusters import HOME
from tests.support.controls import COMMANDS, LATER, deposit, open_
from tests.support.started import EXAMPLES, run_cli

SUBMIT = Path(spark_jobs.__file__).parent / "jobs" / "submit.py"


def plant(connection, store):
    """Write commands of which one was sent again and one was lost."""
    store.write([open_(), deposit("d1"), deposit("d1", time=LATER)], COMMANDS)
    drain(connection)
    store.write(deposit("o1"), "accountTransaction-123+o1")


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
    if classes.stored().exists():  # by `reservation spark prepare` on this machine
        return classes.stored().parent.parent
    done = run_cli("spark", "prepare", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "reservation").glob("*.jsa")
    assert done.stdout.startswith(f"{kept}: ")
    assert {path.name for path in kept.parent.iterdir()} == {kept.name, "spark-classes.lock"}
    return tmp_path


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


def test_a_job_that_runs_out_of_memory_says_so():
    """A job that runs out of memory ends with one line that names the setting."""
    hungry = (
        "from pyspark.sql import functions as F\n"
        "from reservation.errors import ReservationError\n"
        "from spark_jobs.session.session import spark_session\n"
        "try:\n"
        "    with spark_session('', conf=['spark.driver.memory=600m']) as spark:\n"
        "        all_of = F.collect_list(F.repeat(F.lit('x' * 1000), 10_000))\n"
        "        print(spark.range(1000).agg(F.length(F.concat_ws('', all_of))).collect())\n"
        "except ReservationError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hungry], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.startswith("The Spark job failed: Spark ran out of memory")
    assert "--conf spark.driver.memory" in done.stdout
    assert len(done.stdout.splitlines()) == 1
