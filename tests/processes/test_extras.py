"""What is installed only with an extra, and is missing here."""

import subprocess
import sys


def test_the_core_needs_no_starlette():
    """Without the extra the library imports, and this part says what to install, in one line."""
    program = """
import sys
sys.modules["starlette"] = None
import reservation, consumers
try:
    import reservation.http
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "reservation.http needs Starlette, which is not installed: "
        "pip install 'reservation[http]'\n"
    )
