"""An app whose handler fails as the test's environment says."""

import json
from pathlib import Path

from tests.processes import EXAMPLES

APP = "poisoned:account"

_APP = f"""
import json, os, signal, sys
from pathlib import Path

sys.path.append({str(EXAMPLES)!r})
from bank import account

handle = account.handlers["Deposit"]
folder = Path(__file__).parent


def poisoned(command, entity, context):
    faults = json.loads((folder / "faults.json").read_text())
    fault = faults.get(command.deposit_id)
    calls = folder / f"{{command.deposit_id}}.calls"
    with calls.open("a") as file:
        file.write("x")
    match fault:
        case None:
            pass
        case "raise":
            raise ValueError(f"secret-{{command.amount}}")
        case "twice" if len(calls.read_text()) > 2:
            pass
        case "twice":
            raise ValueError(f"secret-{{command.amount}}")
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            import ctypes

            ctypes.string_at(0)
    return handle(command, entity, context)


account.handlers["Deposit"] = poisoned
account.attempts = int(os.environ.get("POISON_ATTEMPTS", "3"))
"""


class Poison:
    """Where the app is, and which deposits fail in it."""

    def __init__(self, folder: Path, **faults: str) -> None:
        """Make the app.

        Args:
            folder: where it is made; what `--app-dir` is to name.
            faults: how the handler fails, by the deposit's id: raise, twice (it works the third
                time), exit, kill or segfault.
        """
        self.folder = folder
        (folder / "poisoned.py").write_text(_APP)
        self.set(**faults)

    def set(self, **faults: str) -> None:
        """Change how the handler fails, at once."""
        beside = self.folder / "faults.new"
        beside.write_text(json.dumps(faults))
        beside.rename(self.folder / "faults.json")

    def calls(self, deposit_id: str) -> int:
        """Return how often the handler was called for a deposit."""
        file = self.folder / f"{deposit_id}.calls"
        return len(file.read_text()) if file.exists() else 0
