"""The pytest plugin with workers."""

from tests.processes.test_plugin_processes import run
from tests.store.test_pytest_plugin import TESTS, databases


def test_workers_have_databases_that_are_dropped(tmp_path, admin, server_url):
    """With workers on a named server, tests do not meet, and a failed one leaves nothing."""
    (tmp_path / "test_jar.py").write_text(TESTS)
    before = set(databases(admin))
    done = run(tmp_path, "-n", "2", f"--reservation-database-url={server_url}")
    assert "1 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    assert "as it is meant to be" in done.stdout
    assert set(databases(admin)) <= before
