"""The tutorial: everything that its reader does, in order, and what the reader then sees."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import pytest

from tests.pages import ROOT, Block, all_blocks
from tests.processes import PATIENCE, Started

PAGE = ROOT / "docs/tutorial/index.md"
BIN = Path(sys.executable).parent

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]


class Reader:
    """A reader of the tutorial, with a terminal for the consumers and another one."""

    def __init__(self, home: Path, runtime: Path) -> None:
        self.folder = home
        # What a test sets for its own processes is not there for a reader.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.environment = {
            **kept,
            "PATH": f"{BIN}:{kept['PATH']}",
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_RUNTIME_DIR": str(runtime),
            "COLUMNS": "80",
        }
        self.address: str | None = None
        self.consumers: Started | None = None
        self.status = 0
        self.stderr = ""

    def write(self, block: Block) -> None:
        """Write a file that is headed by its name, or change the one line of `wallet.py`."""
        headed = re.match(r"# (\w+\.py)\n", block.text)
        if headed:
            (self.folder / headed[1]).write_text(block.text)
            return
        name = block.text.partition(" = ")[0]
        path = self.folder / "wallet.py"
        changed, count = re.subn(rf"^{name} = .*\n", block.text, path.read_text(), flags=re.M)
        assert count == 1, block
        path.write_text(changed)

    def type(self, command: str) -> str | None:
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
            case _:
                if self.consumers:
                    self._wait_until_handled()
                return self._run(command)
        return None

    def stop(self) -> None:
        """Press Ctrl-C in the terminal of the consumers."""
        if self.consumers:
            assert self.consumers.stop(signal.SIGINT) == 0
            self.consumers.__exit__()
            self.consumers = None

    def _start(self, app: str) -> None:
        self.stop()
        self.consumers = Started(None, app=app, cwd=self.folder, env=self.environment)
        for category in ("wallet:command", "walletTransaction"):
            self.consumers.wait_for("consumer_started", category=category)

    def _printed_address(self) -> str:
        (line,) = [line for line in self.consumers.lines if line.startswith("export ")]
        return shlex.split(line)[1].partition("=")[2]

    def _run(self, command: str) -> str:
        done = subprocess.run(
            command,
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
        """Wait as the reader does, who looks again until no message is left."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            partitions = json.loads(self._run("reservation status --json"))["partitions"]
            if all(partition["lagMessages"] + partition["retry"] == 0 for partition in partitions):
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
        if reader.consumers:
            reader.consumers.__exit__()


def settled(text):
    """Return an output without invisible text and what differs between two runs."""
    text = re.sub(r"in \d+\.\d+s", "in 0.04s", text)
    return re.sub(r" +$", "", text, flags=re.M)


def fits(printed, shown):
    """Return whether an output is what is shown, in which a line of an ellipsis is any lines."""
    parts = [re.escape(part) for part in re.split(r"^…\n", shown, flags=re.M)]
    return re.fullmatch(r"(?:.*\n)*".join(parts), settled(printed)) is not None


def test_every_step_works_as_it_is_shown(reader):
    """The tutorial's files and commands work, and print what the page shows."""
    for block in all_blocks(PAGE):
        if block.language == "python":
            reader.write(block)
            continue
        assert block.language == "console", block
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.M):
            printed = reader.type(command)
            if printed is not None:
                assert fits(printed, shown), (command, printed, reader.stderr)
    reader.stop()
