"""An app whose handler fails as the test's environment says."""

import json
from pathlib import Path

from tests.processes import EXAMPLES

APP = "poisoned:account"

_APP = f"""
import asyncio, json, os, signal, socket, sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append({str(EXAMPLES)!r})
from bank import account
from bank.messages import Deposit

handle = account.handlers["Deposit"]
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
        case "cancelled":
            raise asyncio.CancelledError("secret")
        case "interrupt":
            raise KeyboardInterrupt("secret")
        case "generator_exit":
            raise GeneratorExit("secret")
        case "system_exit":
            sys.exit("secret")
        case "own":
            raise Secret("secret")
        case "cycle":
            error = ValueError("secret")
            error.__cause__ = error
            raise error
        case "memory":
            bytearray(1 << 62)
        case "recursion":
            poisoned(command, entity, context)
        case "fork":
            if child := os.fork():
                assert os.waitpid(child, 0)[1] == 0
        case "failing_fork":
            if not os.fork():
                raise Secret("secret")
        case "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        case "terminate_and_fail":
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError("secret")
        case "descriptors":
            os.closerange(3, 1000)
        case "all_descriptors":
            os.closerange(0, 1000)
        case "descriptors_to_files":
            os.closerange(3, 1000)
            opened.extend(open(os.devnull, "w") for _ in range(50))
        case "descriptors_to_sockets":
            os.closerange(3, 1000)
            opened.extend(end for _ in range(50) for end in socket.socketpair())
        case "descriptors_to_nonblocking_sockets":
            os.closerange(3, 1000)
            opened.extend(end for _ in range(50) for end in socket.socketpair())
            for end in opened:
                end.setblocking(False)
        case "descriptors_then_use":
            os.closerange(3, 1000)
            context.connection.execute("SELECT 1")
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
    if faults.get(deposit_id) == f"{{place}}_is_cancelled":
        raise asyncio.CancelledError("secret")
    if faults.get(deposit_id) == f"{{place}}_forks":
        if child := os.fork():
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        else:
            sys.exit(7)


def key_of(place):
    def key(command):
        looked(place, command.deposit_id)
        return command.deposit_id if place == "key" else f"old-{{command.deposit_id}}"

    return key


@dataclass(frozen=True)
class Checked(Deposit):
    def __post_init__(self):
        looked("class", self.deposit_id)


reserved = account.reservations["Deposit"]
match os.environ.get("POISON_CODE"):
    case "class":
        account.types._types["Deposit"] = Checked
    case "key":
        account.reservations["Deposit"] = replace(reserved, key=key_of("key"))
    case "formerly":
        account.reservations["Deposit"] = replace(reserved, formerly=key_of("formerly"))

projectors = account.projection.projectors
project = projectors["Deposited"]
projectors["Deposited"] = deposited
account.handlers["Deposit"] = poisoned
account.attempts = int(os.environ.get("POISON_ATTEMPTS", "3"))
"""


class Poison:
    """Where the app is, and which deposits fail in it."""

    def __init__(self, folder: Path, **faults: str) -> None:
        """Make the app.

        Args:
            folder: where it is made; what `--app-dir` is to name.
            faults: how the handler fails, by the deposit's id: one of the cases above. What it
                raises says "secret", which must not be logged.
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
