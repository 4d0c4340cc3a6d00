"""A database that goes away in the middle of a reconciliation, and an archive that is killed."""

import json
import os
import signal
import subprocess
import time
from contextlib import closing

from psycopg import connect

from reservation import MessageStore
from reservation.admin import install
from tests.apps.bank import drain
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.servers import OwnServer
from tests.support.started import EXAMPLES, PATIENCE, command_line, run_cli


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
                *("--html", str(places / "page.html"), "--findings", str(places / "findings")),
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


def test_a_killed_archive_leaves_nothing(connection, store, database_url, tmp_path):
    """What it had written is no part of the archive, and is removed by the next run."""
    store.write([open_(), deposit("d1"), deposit("d2")], COMMANDS)
    drain(connection)
    connection.execute("UPDATE message_store.messages SET time = '2026-01-01'")
    folder = tmp_path / "the archive"
    environment = {"COLUMNS": "200"}
    arguments = ["archive", "bank:account", "--to", str(folder), "--before", "2026-02-01"]
    arguments += ["--database-url", database_url]
    killed = subprocess.Popen(
        command_line(*arguments),
        env={**os.environ, **environment},
        cwd=EXAMPLES,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 3 * PATIENCE
    while not list(folder.glob(".new-*/run=*")):
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait(PATIENCE) == -signal.SIGKILL
    assert not list(folder.glob("run=*"))
    done = run_cli(*arguments, "--json", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["verified"]
    assert not list(folder.glob(".new*"))
