"""``reservation reconcile`` on a cluster, behind a Spark Connect server, and without either."""

import json
import os
import subprocess
import sys

import pytest
from psycopg import conninfo

from tests.apps.bank import drain
from tests.apps.orders import APP, ROOT, capture, orders
from tests.soak.clusters import HOME, cluster, connect_server, python_of_workers, quick
from tests.support.controls import COMMANDS, LATER, deposit, open_, withdraw
from tests.support.started import EXAMPLES, run_cli

SECRET = "hunter2-of-the-test"
PAYLOAD = "payload-of-the-test"


@pytest.fixture(scope="module")
def standalone(tmp_path_factory):
    """Give the address of a master with two workers."""
    with cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


@pytest.fixture
def findings(connection, store):
    """Plant something to be found, so that all of the job has to work."""
    store.write([open_(), deposit("d1"), deposit("d1", time=LATER), withdraw("w1")], COMMANDS)
    drain(connection)
    store.write([deposit("d1", amount="99"), deposit("p1")], COMMANDS)
    # It means the same as its first, which shows only when it is decoded.
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, m.stream_name::varchar, "
        "m.type::varchar, (m.data || %s)::jsonb) FROM message_store.messages m "
        "WHERE m.global_position = 2",
        [json.dumps({"note": PAYLOAD})],
    )
    store.write(deposit("o1"), "accountTransaction-123+o1")


def reconcile(
    database_url, *arguments, status=1, app="bank:account", app_dir=EXAMPLES, **environment
):
    """Run the command, and return the report or, if it could not run, what it printed."""
    done = run_cli(
        "reconcile",
        app,
        "--app-dir",
        str(app_dir),
        "--json",
        *arguments,
        env={"RESERVATION_DATABASE_URL": database_url, **environment},
    )
    assert done.returncode == status, done.stderr
    if status == 2:
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        return line
    report = json.loads(done.stdout)
    for changing in ("time", "snapshotHeldSeconds"):
        report.pop(changing)
    report["samples"].sort(key=str)
    return report


def event_log(folder):
    """Return options that have Spark write its event log, as text, into a folder within."""
    (folder / "logs").mkdir()
    properties = {"enabled": "true", "compress": "false", "dir": str(folder / "logs")}
    return [
        word
        for key, value in properties.items()
        for word in ("--conf", f"spark.eventLog.{key}={value}")
    ]


def everything_in(folder):
    """Return the contents of the files of a folder."""
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


@pytest.mark.timeout(900)  # four runs and a server, one after the other
def test_a_cluster_and_a_server_find_the_same_as_one_process(
    findings, database_url, standalone, tmp_path
):
    """A cluster and a Connect server find the same as one process, from the zip file alone.

    What the cluster has archived the server reads. With a password in the address, nothing that
    Spark writes down holds it.
    """
    with_password = conninfo.make_conninfo(database_url, password=SECRET)
    logged = event_log(tmp_path)
    here = reconcile(with_password, "--master", "local[2]", *logged)
    (of_keys, *_) = here["categories"]
    assert (of_keys["orphans"], of_keys["conflicts"], of_keys["duplicates"]) == (1, 1, 2)

    python = python_of_workers(tmp_path)
    there = reconcile(
        database_url, "--master", standalone, *logged, *quick(), PYSPARK_PYTHON=str(python)
    )
    assert there == here
    archive = str(tmp_path / "archive")
    done = run_cli(
        *("archive", "bank:account", "--to", archive, "--before", "2100-01-01", "--json"),
        *("--master", standalone, *quick()),
        env={"RESERVATION_DATABASE_URL": database_url, "PYSPARK_PYTHON": str(python)},
    )
    assert done.returncode == 0, done.stderr
    archived = json.loads(done.stdout)["categories"]
    assert {category["category"]: category["messages"] for category in archived}[
        "account:command"
    ] == 4
    with connect_server(tmp_path, python, with_password) as remote:
        assert reconcile(with_password, "--remote", remote, "--archive", archive) == here

    written = everything_in(tmp_path / "logs")
    assert "MapInArrow" in written  # the plans are in it
    assert "spark.executorEnv.RESERVATION_DATABASE_URL" in written
    assert SECRET not in written
    assert PAYLOAD not in written


def test_a_cluster_reads_what_a_component_follows(
    connection, store, database_url, standalone, tmp_path
):
    """A component of subscriptions is reconciled on a cluster as in one process."""
    store.write_batch([capture("p1"), capture("p2", amount=0), capture("p3", amount=1)])
    drain(connection, orders)
    connection.execute("DELETE FROM message_store.messages WHERE type = 'Paid'")
    python = python_of_workers(tmp_path)
    app = {"app": APP, "app_dir": ROOT}
    there = reconcile(
        database_url, "--master", standalone, *quick(), PYSPARK_PYTHON=str(python), **app
    )
    (counts,) = there["subscriptions"]
    assert (counts["subscribed"], counts["passed"], counts["unhandled"]) == (3, 2, 1)
    assert there == reconcile(database_url, "--master", "local[2]", **app)


def test_a_check_decodes_every_message_on_the_workers(findings, database_url, standalone, tmp_path):
    """They take the app from the zip file too, and find what one process finds."""

    def checked(*arguments, **environment):
        done = run_cli(
            *("check", "bank:account", "--full", "--json", *arguments),
            env={"RESERVATION_DATABASE_URL": database_url, **environment},
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        found = json.loads(done.stdout)
        assert found.pop("time")
        return found

    python = python_of_workers(tmp_path)
    there = checked("--master", standalone, *quick(), PYSPARK_PYTHON=str(python))
    assert there == checked("--master", "local[2]")
    assert sum(one["lookedAt"] for one in there["types"]) == 13


def test_an_address_with_a_password_is_not_passed_to_workers(database_url, standalone, tmp_path):
    """An address with a password is not passed to workers, and the error says so."""
    printed = reconcile(
        conninfo.make_conninfo(database_url, password=SECRET),
        *("--master", standalone, *quick()),
        *event_log(tmp_path),
        status=2,
        PYSPARK_PYTHON=str(python_of_workers(tmp_path)),
    )
    assert "Spark's workers: Cannot reach the database" in printed
    assert "holds a password, so it was not passed on to them" in printed
    assert SECRET not in printed
    written = everything_in(tmp_path / "logs")
    assert "spark.master" in written
    assert SECRET not in written


def test_a_cluster_that_takes_up_no_work_is_given_up(database_url, standalone):
    """A cluster without a worker of the requested memory is given up."""
    printed = reconcile(
        database_url,
        *("--master", standalone, *quick(), "--conf", "spark.executor.memory=64g"),
        *("--conf", "spark.reservation.executorTimeout=1s"),
        status=2,
    )
    assert "No worker took up work within 1s" in printed


def test_workers_that_lack_a_package_are_named(database_url, standalone, tmp_path):
    """The error names the missing package and says that the workers lack it."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    printed = reconcile(
        database_url,
        *("--master", standalone, *quick(), "--conf", "spark.task.maxFailures=1"),
        status=2,
        PYSPARK_PYTHON=str(bare),
    )
    assert "Spark's workers cannot run the job" in printed
    assert "No module named" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--remote", "sc://127.0.0.1:1"], "There is no Spark Connect server at sc://127.0.0.1:1"),
        (["--master", "elsewhere"], "Spark does not start: Master must"),
        (["--conf", "spark.driver.memory=64m"], "Spark has too little memory"),
        (["--conf", "spark.driver.memory=1k"], "Too small maximum heap"),
    ],
)
def test_a_job_that_cannot_run_says_so_in_one_line(database_url, tmp_path, arguments, said):
    """A job that cannot run prints one line and leaves nothing behind."""
    output = tmp_path / "out"
    printed = reconcile(database_url, *arguments, "--findings", str(output), status=2)
    assert said in printed
    assert SECRET not in printed
    assert not any(tmp_path.iterdir())


def test_without_the_extra_for_connect_the_error_names_it(database_url, tmp_path):
    """The error for a missing extra names it, whatever else is installed."""
    for path in HOME.parent.iterdir():
        if not path.name.startswith("grpc"):
            (tmp_path / path.name).symlink_to(path)
    arguments = ["bank:account", "--remote", "sc://127.0.0.1:1", "--database-url", database_url]
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-m", "cli", "reconcile", *arguments],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{EXAMPLES.parent}"},
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "pip install 'reservation[connect]'" in line
