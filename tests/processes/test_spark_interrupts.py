"""Commands that run Spark and are interrupted: their status, and that no Java is left behind."""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.consuming import until
from tests.support.started import command_line

PATIENCE = 60

# Says when each Java starts: the one that puts the driver's command together, then the driver.
JAVA = """\
#!/bin/sh
echo java > {events}
exec {java} "$@"
"""

# The workers make its keys, and say so; they wait then until they are ended.
COMPONENT = """
from dataclasses import dataclass
from reservation import Component, Key

@dataclass
class Pay:
    payer_id: str
    payment: str

def key(command):
    with open({events!r}, "w") as events:
        print("key", file=events)
    open({never!r}).close()

payer = Component("payer", id="payer_id")

@payer.handle(Pay, key=Key(key, into="payment", per=None))
def pay(command, entity, context):
    pass
"""


@dataclass
class Pay:
    """As the component declares it."""

    payer_id: str
    payment: str


@pytest.fixture
def running(store, database_url, tmp_path):
    """Give a command that runs Spark, in a session of its own, and a pipe with what it does."""
    events, never = (tmp_path / name for name in ("events", "never"))
    for pipe in (events, never):
        os.mkfifo(pipe)
    home = Path(os.environ.get("JAVA_HOME") or Path(shutil.which("java")).resolve().parent.parent)
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(events=events, java=home / "bin" / "java"))
    java.chmod(0o755)
    # It says its version without being started, which that of a package does not.
    (java.parent.parent / "release").write_text('JAVA_VERSION="17"')
    (tmp_path / "paying.py").write_text(COMPONENT.format(events=str(events), never=str(never)))
    store.write(Pay("1", "p1"), "payer:command-1")
    process = subprocess.Popen(
        command_line("reconcile", "paying:payer"),
        env={
            **os.environ,
            "RESERVATION_DATABASE_URL": database_url,
            "JAVA_HOME": str(java.parent.parent),
            "TMPDIR": str(_made(tmp_path / "tmp")),
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process, os.fdopen(os.open(events, os.O_RDWR)) as lines:
        yield process, lines
        for one in _session(process.pid):
            one.kill()


def _made(folder):
    folder.mkdir()
    return folder


def _session(leader):
    """Return the processes of a session that run, but for its leader."""
    found = []
    for one in psutil.process_iter():
        try:
            # The init of a container may leave one that was killed a zombie for a while.
            if os.getsid(one.pid) == leader != one.pid and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one)
        except (ProcessLookupError, PermissionError, psutil.Error):
            pass
    return found


@pytest.mark.parametrize(
    ("number", "events"),
    [
        (signal.SIGINT, ["java"]),
        (signal.SIGINT, ["java", "java"]),
        (signal.SIGINT, ["java", "java", "key"]),
        (signal.SIGTERM, ["java", "java", "key"]),
    ],
)
def test_an_interrupted_command_leaves_no_java_behind(running, tmp_path, number, events):
    """Wherever it is, the status is the usual one, nothing is printed, and no process stays."""
    process, lines = running
    assert [lines.readline().strip() for _ in events] == events
    os.killpg(process.pid, number)
    printed = process.communicate(timeout=PATIENCE)
    assert (process.returncode, *printed) == (128 + number, "", "")
    assert [one.name() for one in _session(process.pid) if one.name() == "java"] == []
    until(lambda: not _session(process.pid))
    assert [path.name for path in (tmp_path / "tmp").iterdir() if "spark" in path.name] == []
