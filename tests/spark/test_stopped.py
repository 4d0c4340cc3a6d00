"""A database that goes away in the middle of a reconciliation."""

import os
import subprocess
import time
from contextlib import closing

import pytest

from reservation import MessageStore, install
from reservation.postgres.connection import connect
from tests.controls import COMMANDS, deposit
from tests.processes import EXAMPLES, PATIENCE, command_line
from tests.servers import OwnServer

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@pytest.mark.long
def test_a_database_that_goes_away_ends_the_run_in_one_line(tmp_path, server_folder):
    """A lost database ends the run with one line and status 2, and no partial output."""
    server = OwnServer(server_folder / "postgres")
    places = tmp_path / "places"
    places.mkdir()
    with closing(connect(server.address, autocommit=True)) as connection:
        install(connection)
        MessageStore(connection).write([deposit(f"d{n}") for n in range(20)], COMMANDS)
        # To compare such contents takes the server seconds for each.
        connection.execute(
            "UPDATE message_store.messages SET data = data || jsonb_build_object('more', "
            "(SELECT jsonb_agg(jsonb_build_array(n)) FROM generate_series(1, 500000) AS n))"
        )
        running = subprocess.Popen(
            [
                *command_line("reconcile", "bank:account"),
                *("--html", str(places / "page.html"), "--output", str(places / "findings")),
            ],
            env={**os.environ, "RESERVATION_DATABASE_URL": server.address},
            cwd=EXAMPLES,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        # It is in the middle once one of Spark's workers reads.
        deadline = time.monotonic() + 2 * PATIENCE
        while not connection.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE application_name = 'reservation spark' AND state = 'active' "
            "AND query LIKE 'COPY %'"
        ).fetchone()[0]:
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.crash()
    printed, errors = running.communicate(timeout=2 * PATIENCE)
    assert running.returncode == 2
    assert printed == ""
    (line,) = errors.splitlines()
    assert line.startswith("Error: The Spark job failed: ")
    assert not any(places.iterdir())
