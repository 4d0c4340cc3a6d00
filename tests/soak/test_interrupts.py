"""An interrupt from the keyboard while a command is still importing its modules."""

import subprocess
import sys

# Interrupts itself at one of the imports, as the console script is started.
_INTERRUPTED = """
import os, signal, sys
at, sys.argv = int(sys.argv[1]), ["reservation", *sys.argv[2:]]
from cli.starting import main
signal.signal(signal.SIGINT, signal.default_int_handler)
count = 0
def hook(event, arguments):
    global count
    if event == "import":
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(hook)
try:
    main()
finally:
    if count < at or not at:
        sys.stderr.write(f"{count} imports")
"""


def interrupted(at, *words):
    """Return the status and the output of a command that is interrupted at an import."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED, str(at), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_an_interrupt_while_modules_are_imported_ends_quietly():
    """Whichever module is imported, the status is 130, and nothing is printed."""
    words = ["check", "--help"]
    status, _, told = interrupted(0, *words)
    assert status == 0
    count = int(told.split()[0])
    assert count > 200
    for at in [1, *range(20, count, count // 8), count]:
        assert interrupted(at, *words) == (130, "", ""), at
