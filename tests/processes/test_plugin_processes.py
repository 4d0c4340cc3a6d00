"""A test run that is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict


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
