"""The pytest plugin with workers."""

import os
import subprocess
import sys

from tests.store.test_pytest_plugin import TESTS, databases


def run(folder, *options):
    """Run pytest in a folder, as a project that knows nothing of this one."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "PG", "RESERVATION", "COV"))
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=kept | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_workers_have_databases_that_are_dropped(tmp_path, admin, server_url):
    """With workers on a named server, tests do not meet, and a failed one leaves nothing."""
    (tmp_path / "test_jar.py").write_text(TESTS)
    before = set(databases(admin))
    done = run(tmp_path, "-n", "2", f"--reservation-database-url={server_url}")
    assert "1 failed, 5 passed" in done.stdout, done.stdout + done.stderr
    assert "as it is meant to be" in done.stdout
    assert set(databases(admin)) <= before
