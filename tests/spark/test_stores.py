"""Stores as they are found: not ours, on a standby, empty, and written to while a job runs."""

import json
import subprocess
import sys
from contextlib import closing

import pytest
from psycopg.types.json import Jsonb

from bank import account
from reservation import MessageStore, install
from reservation.postgres.connection import connect
from spark_jobs.reconciliation.reconcile import in_session
from spark_jobs.reconciliation.run import Run
from spark_jobs.snapshot.snapshot import exported_snapshot
from tests.bank import drain
from tests.controls import COMMANDS, LATER, deposit, open_
from tests.message_db import imitate
from tests.processes import EXAMPLES, run_cli
from tests.servers import OwnServer, Standby

pytestmark = pytest.mark.spark


def reconcile(address, *arguments, status):
    """Run the command on a store, and return its report."""
    done = run_cli(
        "reconcile",
        "bank:account",
        "--json",
        *arguments,
        env={"RESERVATION_DATABASE_URL": address},
    )
    assert done.returncode == status, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def write(connection, stream_name, type_, data):
    """Write a message with Message DB's function."""
    connection.execute(
        "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s)",
        [stream_name, type_, Jsonb(data)],
    )


@pytest.fixture
def primary(server_folder):
    """Give a server on which nothing else runs."""
    server = OwnServer(server_folder / "primary")
    yield server
    server.close()


@pytest.fixture
def standby(primary, server_folder):
    """Give a function that makes a hot standby of it, and gives its address."""
    with Standby(primary, server_folder) as made:

        def make():
            made.start()
            return made.address

        yield make


@pytest.mark.long
def test_a_standby_of_a_store_that_is_not_ours(primary, standby):
    """On a standby of Message DB, Eventide's positions or else ages tell what was read."""
    with closing(connect(primary.address, autocommit=True)) as connection:
        imitate(connection)
        # Message DB's functions call each other by their names alone.
        connection.execute("SET search_path = message_store")
        for name in ("lost", "early"):
            write(connection, COMMANDS, "Deposit", {"accountId": "123", "depositId": name})
        address = standby()
        (of_age,) = reconcile(address, "--grace", "1d", status=0)["categories"]
        assert (of_age["pending"], of_age["missing"]) == (2, 0)
        (of_age,) = reconcile(address, "--grace", "0s", status=1)["categories"]
        assert (of_age["pending"], of_age["missing"]) == (0, 2)
        (position,) = connection.execute(
            "SELECT min(global_position) FROM message_store.messages"
        ).fetchone()
        write(connection, "account:command+position", "Recorded", {"position": position})
        with closing(connect(address, autocommit=True)) as replica:
            while not replica.execute(
                "SELECT 1 FROM message_store.messages WHERE type = 'Recorded'"
            ).fetchone():
                pass
        (counts,) = reconcile(address, status=1)["categories"]
        assert (counts["pending"], counts["missing"]) == (1, 1)


@pytest.mark.long
def test_an_empty_store_is_in_order(database_url):
    """An empty store is in order, and the report says that it is empty."""
    report = reconcile(database_url, "--details", status=0)
    assert report["inOrder"]
    assert [category["commands"] for category in report["categories"]] == [0]
    assert report["samples"] == []


def test_messages_written_during_a_job_are_left_to_the_next(
    spark, spark_connection, spark_store, spark_database_url
):
    """Messages written during a job are left to the next one, even at lower positions."""
    spark_store.write([open_(), deposit("d1")], COMMANDS)
    drain(spark_connection)

    def found(meanwhile):
        run = Run(account, "bank:account", EXAMPLES, spark_database_url)
        with exported_snapshot(spark_database_url) as snapshot:
            meanwhile()
            (category, _) = in_session(run, snapshot, spark).categories
        return category.commands, category.reserved, category.pending, category.orphans

    with closing(connect(spark_database_url)) as slow:
        # It has its position, and ends in the middle of the job.
        MessageStore(slow).write(deposit("slow"), COMMANDS)
        spark_store.write(deposit("o1", time=LATER), "accountTransaction-123+o1")

        def end():
            slow.commit()
            drain(spark_connection)
            spark_store.write(deposit("d2"), COMMANDS)

        assert found(end) == (1, 1, 0, 1)
    assert found(lambda: None) == (3, 2, 1, 1)


@pytest.mark.long
def test_a_job_that_runs_out_of_memory_says_so(database_url):
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


@pytest.mark.long
def test_an_own_store_can_be_read_on_a_standby(primary, standby):
    """On a standby of our store positions and dead letters are read too."""
    with closing(connect(primary.address, autocommit=True)) as connection:
        install(connection)
        MessageStore(connection).write([open_(), deposit("d1"), deposit("d1")], COMMANDS)
        drain(connection)
        with exported_snapshot(standby()) as snapshot:
            assert snapshot.has_positions
            position = snapshot.progress(account).consumed["account:command"].position
    assert position == 3
