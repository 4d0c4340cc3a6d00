"""The previous release of this package, from the history, run as processes of its own."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.processes import command_line

HOME = Path(__file__).parent.parent

# The commit of the previous release, whose programs have to go on on the schema of this one. Name
# the new one here at each release.
RELEASE = "1e439c71828af2e7b0e5593e2eb267404e8b84a5"

# Sends the bank's traffic, or sends all of it again as senders do that got no answer: under other
# ids.
SEND = """
import dataclasses, sys, uuid
from bank.traffic import in_batches, make_traffic
from reservation import MessageStore

url, seed, accounts, sends, which = sys.argv[1:]
traffic = make_traffic(accounts=int(accounts), sends=int(sends), seed=int(seed))
with MessageStore.open(url) as store:
    for batch in in_batches(traffic, traffic.accounts, 5):
        if which == "again":
            batch = [dataclasses.replace(write, id=uuid.uuid4()) for write in batch]
        store.write_batch(batch)
        for write in batch:
            print(write.id)
"""


def former_release(folder: Path) -> Path:
    """Put the previous release into a folder, and return that; skip the test without a history."""
    archive = subprocess.run(
        ["git", "-C", str(HOME), "archive", "--format=zip", RELEASE],
        capture_output=True,
        check=False,
    )
    if archive.returncode != 0:
        pytest.skip(f"the history with the commit {RELEASE[:7]} is not here")
    with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
        files.extractall(folder)
    return folder


def as_former(home: Path) -> dict[str, str]:
    """Return an environment in which Python imports the previous release."""
    return {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{home / 'examples'}"}


def run_former(home: Path, *arguments: str, database_url: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of the previous release to its end."""
    return subprocess.run(
        command_line(*arguments),
        env={**as_former(home), "RESERVATION_DATABASE_URL": database_url},
        cwd=home / "examples",
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def sender(
    environment: dict[str, str], database_url: str, which: str, *, sends: int, accounts: int = 20
) -> "subprocess.Popen[str]":
    """Start a sender of the bank's traffic, which prints the id of each command it wrote."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", SEND, database_url, "1", str(accounts), str(sends), which],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
