"""``reservation archive`` from start to exit, and what it offers."""

import json
import os
import shlex
import signal
import subprocess
import time

import pytest

from tests.bank import RESERVED, drain
from tests.commands import invoke_cli
from tests.controls import COMMANDS, deposit, open_
from tests.processes import EXAMPLES, PATIENCE, command_line, run_cli

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@pytest.mark.long
def test_a_killed_run_leaves_nothing_and_a_complete_one_offers_commands(
    connection, store, database_url, tmp_path
):
    """A killed run leaves nothing; a complete one prints the commands that may be given."""
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
    printed = json.loads(done.stdout)
    assert printed["verified"]
    assert printed["before"] == "2026-02-01T00:00:00Z"
    assert {category["category"]: category["archived"] for category in printed["categories"]} == {
        "account:command": 3,
        RESERVED: 2,
        "account": 3,
    }
    offered = printed["offered"]
    assert offered["reissuesTakeEffectBefore"] in offered["warning"]
    assert not list(folder.glob(".new*"))
    reservation, *words = shlex.split(offered["commands"])
    assert (reservation, str(folder) in words) == ("reservation", True)
    removed = invoke_cli(*words, env=environment)
    assert removed.stdout == "archived commands of account:command: 2 messages removed\n"
    _, *words = shlex.split(offered["commandsAndReservations"])
    removed = invoke_cli(*words, env=environment)
    assert f"archived reservations of {RESERVED}: 1 message removed" in removed.stdout
    assert "takes effect again" in removed.stderr

    (path,) = folder.glob("run=*/category=account/*/*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    done = run_cli(*arguments, env=environment)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"Not in order: {path.relative_to(folder)} has " in done.stdout
    assert "reservation prune" not in done.stdout
    for command in (
        ["reconcile", "bank:account", "--archive", str(folder)],
        ["prune", "bank:account", "--archived", str(folder), "--apply"],
    ):
        done = run_cli(*command, "--database-url", database_url, env=environment)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"Error: {path} has ")
        assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_prune_names_what_differs_and_ends_with_status_2(connection, store, database_url, tmp_path):
    """`prune` names messages that differ and ends with 2, and refuses another store's archive."""
    store.write([open_(), *(deposit(f"d{n}") for n in range(5))], COMMANDS)
    drain(connection)
    connection.execute("UPDATE message_store.messages SET time = '2026-01-01'")
    folder = tmp_path / "archive"
    address = ["--database-url", database_url]
    arguments = ["archive", "bank:account", "--to", str(folder), "--before", "2026-02-01"]
    assert run_cli(*arguments, *address).returncode == 0
    connection.execute(
        "UPDATE message_store.messages SET data = '{}' WHERE global_position IN (2, 4)"
    )
    prune = ["prune", "bank:account", "--archived", str(folder), "--apply", *address]
    done = invoke_cli(*prune)
    assert done.returncode == 2
    assert done.stdout == "archived commands of account:command: 3 messages removed\n"
    assert "Kept 2 messages of the store, because the archive in" in done.stderr
    assert "other messages at the same global positions: 2, 4;" in done.stderr
    done = invoke_cli(*prune, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["differing"] == [2, 4]
    connection.execute("UPDATE reservation.store_identity SET id = gen_random_uuid()")
    done = invoke_cli(*prune)
    assert (done.returncode, done.stdout) == (2, "")
    assert "is of the store" in done.stderr
