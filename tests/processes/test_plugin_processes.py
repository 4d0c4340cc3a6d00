"""The pytest plugin in a process of its own, and a test run that is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict


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


def test_an_embedded_server_does_not_outlast_a_kill():
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
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    assert not folder.parent.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)
