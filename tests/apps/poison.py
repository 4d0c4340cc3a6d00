"""An app whose handler fails as the test's environment says."""

import json
from pathlib import Path

from tests.support.started import EXAMPLES

APP = "poisoned:account"

_APP = f"""
import json, os, signal, socket, sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append({str(EXAMPLES)!r})
from bank import account
from bank.messages import Deposit, Deposited
from reservation import Retry
from reservation.declaration.table import declarations

handle = declarations(account).own["Deposit"].handler
folder = Path(__file__).parent
opened = []


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
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "terminate_and_fail":
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("secret")
        case "write_terminate_and_fail":
            context.connection.execute("CREATE TEMP TABLE written ()")
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("secret")
        case "descriptors":
            os.closerange(3, 1000)
        case "descriptors_to_sockets":
            os.closerange(3, 1000)
            opened.extend(end for _ in range(50) for end in socket.socketpair())
    return handle(command, entity, context)


class Secret(BaseException):
    pass


def deposited(entity, event):
    faults = json.loads((folder / "faults.json").read_text())
    if faults.get(event.deposit_id) == "projector":
        raise Secret("secret")
    project(entity, event)


def looked(place, deposit_id):
    faults = json.loads((folder / "faults.json").read_text())
    if faults.get(deposit_id) == f"{{place}}_exits":
        with (folder / f"{{deposit_id}}.calls").open("a") as file:
            file.write("x")
        os._exit(3)


def key(command):
    looked("key", command.deposit_id)
    return command.deposit_id


@dataclass(frozen=True)
class Checked(Deposit):
    def __post_init__(self):
        looked("class", self.deposit_id)


own = declarations(account).own
if "POISON_CODE" in os.environ:
    declarations(account).types._types["Deposit"] = Checked
    own.declare(Deposit, reservation=replace(own["Deposit"].reservation, key=key))

project = own["Deposited"].projector
own.declare(Deposited, projector=deposited)
own.declare(Deposit, handler=poisoned)
attempts = int(os.environ.get("POISON_ATTEMPTS", "3"))
declarations(account).default_retry = Retry(attempts=attempts, first="100ms", most="10s")
"""


class Poison:
    """Where the app is, and which deposits fail in it."""

    def __init__(self, folder: Path, **faults: str) -> None:
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
