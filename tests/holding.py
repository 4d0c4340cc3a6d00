"""An app whose handler waits until the test lets it go on, once."""

import os
from pathlib import Path

from tests.processes import EXAMPLES

HELD = "held"

_APP = f"""
import os, sys, time

sys.path.append({str(EXAMPLES)!r})
from bank import account

handle = account.handlers["Deposit"]
waits = [os.environ["HOLDING_HOW"]]


def hold(command, entity, context):
    if command.deposit_id == {HELD!r} and waits:
        how = waits.pop()
        with open("holding", "w"):  # lets the test know that it is here
            pass
        if how == "once":
            open("go").close()
        while how == "deaf":
            try:
                while True:
                    time.sleep(3600)
            except BaseException:
                pass
    return handle(command, entity, context)


account.handlers["Deposit"] = hold
"""


class Holding:
    """Where the app is, and the other end of its pipes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wait(self) -> None:
        """Wait until the handler is at work on the deposit ``held``."""
        with (self.folder / "holding").open() as pipe:
            pipe.read()

    def let_go(self) -> None:
        """Let the handler return."""
        with (self.folder / "go").open("w"):
            pass


def holding(folder: Path, monkeypatch, how: str = "once") -> Holding:
    """Make the app ``held:account``.

    Args:
        folder: where it is made.
        monkeypatch: sets its environment.
        how: ``once`` waits until it is let go; ``deaf`` waits for ever and swallows whatever is
            raised in it.
    """
    app = _APP.replace('"holding"', repr(str(folder / "holding")))
    app = app.replace('"go"', repr(str(folder / "go")))
    (folder / "held.py").write_text(app)
    for name in ("holding", "go"):
        os.mkfifo(folder / name)
    monkeypatch.setenv("HOLDING_HOW", how)
    return Holding(folder)
