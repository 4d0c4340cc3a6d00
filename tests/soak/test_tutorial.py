"""What the tutorial and the README show, done by a reader in order, and what is then seen."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest

from tests.apps.bank import RESERVED
from tests.consumers.test_docs import KILLING, environment, run_python_of
from tests.support.pages import ROOT, Block, all_blocks, blocks
from tests.support.ports import free_port
from tests.support.started import PATIENCE, Started, run_cli

FOLDER = ROOT / "docs/tutorial"
BIN = Path(sys.executable).parent

CATEGORIES = {
    "wallet:wallet": ("wallet:command", "walletTransaction"),
    "payments:payments": ("payment:command", "paymentTransaction"),
    "orders:orders": ("order:command", "payment"),
}
SERVERS = {"python provider.py": "8900", "uvicorn web:app --port 8000": "8000"}
# What a reader may enter again and again until it shows something.
LOOKS = ("python show.py", "reservation dead-letters list", "reservation scheduled list")

pytestmark = pytest.mark.timeout(600)

__all__ = ["environment"]  # a fixture


class Reader:
    """A reader of the tutorial, with a terminal for each process that goes on, and another one.

    Only the ports are not those of the page: each reader has free ones in their place.
    """

    def __init__(self, home: Path, runtime: Path) -> None:
        self.folder = home
        # What a test sets for its own processes is not there for a reader.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.environment = {
            **kept,
            "PATH": f"{BIN}:{kept['PATH']}",
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_RUNTIME_DIR": str(runtime),
            "COLUMNS": "120",
        }
        self.address: str | None = None
        self.consumers: dict[str, Started] = {}
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {shown: str(free_port()) for shown in SERVERS.values()}
        self.status = 0
        self.stderr = ""

    def write(self, block: Block) -> None:
        """Write a file that is headed by its name, or change the one line of `wallet.py`."""
        headed = re.match(r"# (\w+\.py)\n", block.text)
        if headed:
            (self.folder / headed[1]).write_text(self._ported(block.text))
            return
        name = block.text.partition(" = ")[0]
        path = self.folder / "wallet.py"
        changed, count = re.subn(rf"^{name} = .*\n", block.text, path.read_text(), flags=re.M)
        assert count == 1, block
        path.write_text(changed)

    def enter(self, command: str, shown: str) -> None:
        """Enter a command, and compare its output; look again where it may take a while."""
        deadline = time.monotonic() + PATIENCE
        while True:
            printed = self.type(command, interrupted="^C" in shown)
            if printed is None or fits(printed, shown):
                return
            again = command.startswith(LOOKS) and time.monotonic() < deadline
            assert again, (command, printed, self.stderr)

    def type(self, command: str, *, interrupted: bool = False) -> str | None:
        """Enter a command, and return its output; None where nothing is to be compared."""
        program, *arguments = shlex.split(command)
        match program:
            case "cd":
                self.folder /= arguments[0]
            case "python3" | "." | "rm":
                pass  # the environment of the tests is the reader's, and the data is elsewhere
            case "pip":
                self._check_extras(arguments)
            case "export":
                self.address = self._printed_address()
                assert arguments[0].startswith("RESERVATION_DATABASE_URL="), command
            case "echo":
                return f"{self.status}\n"
            case "reservation" if arguments[0] == "start":
                self._start(arguments[1])
            case _ if command in SERVERS and interrupted:
                self._interrupt(command)
            case _ if command in SERVERS:
                self._serve(command)
            case _:
                if self.consumers:
                    self._wait_until_handled()
                return self._run(command)
        return None

    def stop(self) -> None:
        """Press Ctrl-C in all terminals, that of the consumers with the database last."""
        for command in list(self.servers):
            self._interrupt(command)
        for app in reversed(list(self.consumers)):
            self._stop(app)

    def leave(self) -> None:
        """Kill what still runs."""
        for server in self.servers.values():
            server.kill()
            server.wait(PATIENCE)
        for started in self.consumers.values():
            started.__exit__()

    def _start(self, app: str) -> None:
        if app in self.consumers:
            self._stop(app)
        # Where no database is named, each `start` finds the one that runs.
        self.consumers[app] = Started(None, app=app, cwd=self.folder, env=self.environment)
        for category in CATEGORIES[app]:
            self.consumers[app].wait_for("consumer_started", category=category)

    def _stop(self, app: str) -> None:
        started = self.consumers.pop(app)
        try:
            assert started.stop(signal.SIGINT) == 0
        finally:
            started.__exit__()

    def _serve(self, command: str) -> None:
        assert command not in self.servers, command
        server = subprocess.Popen(
            self._ported(command).split(),
            cwd=self.folder,
            env=self._second_terminal(),
            start_new_session=True,
        )
        self.servers[command] = server
        port = int(self.ports[SERVERS[command]])
        deadline = time.monotonic() + PATIENCE
        while True:
            assert server.poll() is None, command
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return
            assert time.monotonic() < deadline, command
            time.sleep(0.02)  # nothing tells when it listens

    def _interrupt(self, command: str) -> None:
        server = self.servers.pop(command)
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(PATIENCE) in (0, -signal.SIGINT), command
        finally:
            server.kill()

    def _ported(self, text: str) -> str:
        for shown, port in self.ports.items():
            text = re.sub(rf"\b{shown}\b", port, text)
        return text

    def _printed_address(self) -> str:
        started = next(iter(self.consumers.values()))
        (line,) = [line for line in started.lines if line.startswith("export ")]
        return shlex.split(line)[1].partition("=")[2]

    def _run(self, command: str) -> str:
        done = subprocess.run(
            self._ported(command),
            shell=True,
            cwd=self.folder,
            env=self._second_terminal(),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        self.status, self.stderr = done.returncode, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def _second_terminal(self) -> dict[str, str]:
        named = {"RESERVATION_DATABASE_URL": self.address} if self.address else {}
        return {**self.environment, **named}

    def _wait_until_handled(self) -> None:
        """Wait as the reader does, who looks again until no message is unread."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            partitions = json.loads(self._run("reservation status --json"))["partitions"]
            # What waits for a provider that is stopped goes on waiting.
            if all(partition["lagMessages"] == 0 for partition in partitions):
                return
        raise AssertionError(partitions)

    @staticmethod
    def _check_extras(arguments: list[str]) -> None:
        (extras,) = re.findall(r"reservation\[(.*)\]", " ".join(arguments))
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


@pytest.fixture(name="reader")
def _reader(tmp_path):
    # The name of a socket has 107 bytes at most, and `tmp_path` takes most of them.
    with tempfile.TemporaryDirectory() as runtime:
        reader = Reader(tmp_path, Path(runtime))
        yield reader
        reader.leave()


def settled(text):
    """Return an output without invisible text and what differs between two runs."""
    text = re.sub(r"in \d+\.\d+s", "in 0.04s", text)
    text = re.sub(r" +\[100%\]", " [100%]", text)  # as far right as the terminal is wide
    # Those of version 8 are made of a request's key, so they are always the same.
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-7][0-9a-f-]{21}", "UUID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"was held for [\d.]+ s", "was held for 4.2 s", text)
    text = re.sub(r"\d+ +TIME", "1 TIME", text)  # attempts, and when the next one is
    text = text.replace("\r\n", "\n")
    return re.sub(r" +$", "", text, flags=re.M)


def fits(printed, shown):
    """Return whether an output is what is shown, in which a line of an ellipsis is any lines."""
    parts = [re.escape(part) for part in re.split(r"^…\n", settled(shown), flags=re.M)]
    return re.fullmatch(r"(?:.*\n)*".join(parts), settled(printed)) is not None


@pytest.mark.parametrize("name", ["index.md", "shop.md"])
def test_every_step_works_as_it_is_shown(reader, name):
    """The tutorial's files and commands work, and print what the page shows."""
    for block in all_blocks(FOLDER / name):
        if block.language == "python":
            reader.write(block)
            continue
        assert block.language == "console", block
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.M):
            reader.enter(command, shown)
    reader.stop()


def test_the_component_of_the_readme_reconciles_as_it_says(database_url, tmp_path, monkeypatch):
    """The README's component runs and reconciles, and the report has the counts of the text."""
    monkeypatch.setenv("RESERVATION_DATABASE_URL", database_url)
    monkeypatch.syspath_prepend(tmp_path)
    readme = ROOT / "README.md"
    for block in blocks(readme, "python"):
        (tmp_path / block.text.partition("\n")[0].removeprefix("# ")).write_text(block.text)
    exec((tmp_path / "send.py").read_text(), {"__name__": "send"})
    app = ["--app-dir", str(tmp_path)]
    with Started(database_url, *app, app="deposits:account") as started:
        started.wait_for("batch_committed", category=RESERVED, handled=2)
        assert started.stop() == 0
    done = run_cli("reconcile", "deposits:account", *app, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (counted,) = report["categories"]
    counts = re.search(
        r"counts (\d+) commands, (\d+) distinct keys, (\d+) duplicate and (\d+) events",
        readme.read_text(),
    )
    found = [counted["commands"], counted["keys"], counted["duplicates"]]
    assert [*found, report["events"]["events"]] == [int(number) for number in counts.groups()]
    assert [counted[name] for name in ("missing", "orphans", "conflicts")] == [0, 0, 0]


@pytest.mark.usefixtures("environment")
def test_the_examples_that_kill_processes_run_as_they_stand(tmp_path, monkeypatch):
    """Those of the page on crash tests."""
    run_python_of(ROOT / KILLING, tmp_path, monkeypatch)
