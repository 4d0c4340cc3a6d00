"""A pgbouncer of Debian's package, between a test and its database."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from tests.support.ports import free_port
from tests.support.started import PATIENCE

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="pgbouncer is not installed; Debian's package pgbouncer has it"
)


@contextmanager
def pgbouncer(
    database_url: str,
    folder: Path,
    pool_mode: str,
    client_encoding: str = "UTF8",
    **settings: object,
) -> Iterator[str]:
    """Run one before a database, and give the address of the database through it.

    Its sessions begin with the client_encoding, and get that of the client afterwards.
    """
    parts = {
        name: value
        for name, value in conninfo.conninfo_to_dict(database_url).items()
        if name in ("host", "port", "dbname", "user", "password")
    }
    port = free_port()
    with psycopg.connect(database_url) as connection:
        user = connection.info.user
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": pool_mode,
        **settings,
    }
    if os.geteuid() == 0:  # it does not run as root; the owner of the socket's folder may use that
        host = Path(str(parts.get("host", "")))
        lines["user"] = host.owner() if host.is_absolute() else "nobody"
    behind = conninfo.make_conninfo(**{"user": user} | parts | {"client_encoding": client_encoding})
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\nbehind = {behind}\n[pgbouncer]\n"
        + "".join(f"{name} = {value}\n" for name, value in lines.items())
    )
    folder.chmod(0o755)
    log = folder / "pgbouncer.log"
    with log.open("w") as written:
        process = subprocess.Popen([str(PROGRAM), str(folder / "pgbouncer.ini")], stderr=written)
    try:
        deadline = time.monotonic() + PATIENCE
        while "process up" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield conninfo.make_conninfo(host="127.0.0.1", port=port, dbname="behind", user=user)
    finally:
        process.terminate()
        process.wait(PATIENCE)
