"""The embedded server, which every user of a machine can start."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.started import EXAMPLES

OTHER = "nobody"

# The interpreter may lie in the home of root, so what the command needs of it is imported before
# the process becomes another user's; the package that is looked at is imported after that.
_AS = """
import os, sys, fcntl
import cli.main, cli.store.schema, reservation.store.schema.install, psycopg_pool
import fasteners, json, logging, platform, platformdirs.unix, psutil, shutil, socket, tempfile, pwd
import hashlib, subprocess, traceback, stat, typing_extensions, encodings.idna, inspect, linecache
user, group = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(group); os.setuid(user)
sys.argv = ["reservation", *sys.argv[3:]]
cli.main.main()
"""


@pytest.fixture
def shared():
    """Give a folder for temporary files that all users share.

    Its path is short, unlike pytest's: a socket's path may have 107 characters.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can start a server as two users")
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="shared-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def run_as(user, shared, *arguments, **env):
    """Run the command line without a named database, as a user with a home of their own."""
    entry = pwd.getpwnam(user)
    home = shared / f"home-{user}"
    home.mkdir(exist_ok=True, mode=0o700)
    os.chown(home, entry.pw_uid, entry.pw_gid)
    unset = ("RESERVATION_DATABASE_URL", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment = {name: value for name, value in environment.items() if name[:2] != "PG"}
    return subprocess.run(
        [sys.executable, "-P", "-c", _AS, str(entry.pw_uid), str(entry.pw_gid), *arguments],
        env={**environment, "HOME": str(home), "TMPDIR": str(shared), **env},
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_two_users_of_a_machine_each_have_a_server(shared):
    """Each user has a server with data of its own, whatever another user left behind."""
    for user in ("root", OTHER, OTHER):
        done = run_as(user, shared, "store", "install")
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert (shared / "home-nobody" / ".local/share/reservation/postgres/PG_VERSION").exists()
    runtime = shared / f"reservation-{pwd.getpwnam(OTHER).pw_uid}"
    assert runtime.stat().st_mode & 0o777 == 0o700


def test_the_runtime_folder_of_another_user_is_not_used(shared):
    """The runtime folder of another user, as after `su`, is not used."""
    other = shared / "run"
    other.mkdir(mode=0o700)
    done = run_as(OTHER, shared, "store", "install", XDG_RUNTIME_DIR=str(other))
    assert done.returncode == 0, done.stderr
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_runtime_folder_that_somebody_else_made_is_refused(shared, kind):
    """A runtime folder that somebody else made is refused, and nothing is written through it."""
    place = shared / f"reservation-{pwd.getpwnam(OTHER).pw_uid}"
    trap = shared / "trap"
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    if kind == "link":
        place.symlink_to(trap)
    else:
        place.mkdir(mode=0o777)
    done = run_as(OTHER, shared, "store", "install")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"Error: The folder {place} belongs to another user or is writable by others"
    )
    assert done.stderr.count("\n") == 1
    assert list(trap.iterdir()) == []


def test_a_path_that_is_too_long_for_a_socket_is_named(shared):
    """The way out is named where no folder has a path that is short enough for a socket."""
    long = shared / ("long" * 25)
    long.mkdir()
    os.chown(long, pwd.getpwnam(OTHER).pw_uid, -1)
    done = run_as(OTHER, long, "store", "install")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "the paths of its folders are too long for a socket; set XDG_RUNTIME_DIR to a folder of "
        "yours with a short path\n"
    )


# A machine on which root has not run a server yet: the user for it does not exist.
_WITHOUT_USER = """
import pwd, sys
found = pwd.getpwnam
def getpwnam(name):
    if name == "pgserver":
        raise KeyError(name)
    return found(name)
pwd.getpwnam = getpwnam
"""

_IN_A_PROGRAM = """
from consumers.testing import embedded_server
from reservation.errors import StoreError
try:
    embedded_server().__enter__()
except StoreError as error:
    sys.exit(f"Error: {error}")
"""


@pytest.mark.parametrize("useradd", ["missing", "failing"])
def test_root_without_a_user_for_the_server_is_told_the_way_out(shared, useradd):
    """One line says what is missing, on the command line and to a program."""
    path = shared / "bin"
    path.mkdir()
    for name in ("cat", "rm", "sleep"):
        (path / name).symlink_to(shutil.which(name))
    if useradd == "failing":
        (path / "useradd").write_text("#!/bin/sh\necho 'cannot lock /etc/passwd' >&2; exit 1\n")
        (path / "useradd").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name[:2] != "PG"}
    environment |= {"HOME": str(shared), "TMPDIR": str(shared), "PATH": str(path)}
    environment.pop("RESERVATION_DATABASE_URL", None)
    calls = (
        "sys.argv = ['reservation', 'status']; import cli.main; cli.main.main()",
        _IN_A_PROGRAM,
    )
    for call in calls:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _WITHOUT_USER + call],
            env=environment,
            cwd=EXAMPLES,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == ""
        assert done.stderr.startswith("Error: PostgreSQL does not run as root, and the user")
        assert done.stderr.endswith("or name a server in RESERVATION_DATABASE_URL\n")
        assert done.stderr.count("\n") == 1
        assert ("cannot lock" in done.stderr) == (useradd == "failing")
