"""The real PostgreSQL that the tests run on: one named, one in a container, or an embedded one."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psycopg

from consumers.testing.embedded_server import HASTY, embedded_server
from tests.support.ports import free_port

DEFAULT_IMAGE = "postgres:17"


@contextmanager
def server(kind: str) -> Iterator[str]:
    """Give the address of a server: that in RESERVATION_TEST_DATABASE_URL, or one of its own."""
    named = os.environ.get("RESERVATION_TEST_DATABASE_URL")
    if named:
        yield named
    elif kind == "container":
        with _container() as address:
            yield address
    else:
        with embedded_server() as address:
            yield address


@contextmanager
def _container() -> Iterator[str]:
    from testcontainers.community.postgres import PostgresContainer

    image = os.environ.get("RESERVATION_TEST_IMAGE", DEFAULT_IMAGE)
    made = PostgresContainer(image, driver=None, password="a-secret")
    options = " ".join(f"-c {name}={value}" for name, value in HASTY.items())
    with made.with_command(f"postgres {options}") as container:
        yield container.get_connection_url()


class OwnServer:
    """An embedded PostgreSQL of one test's own, which may be stopped.

    Attributes:
        address: where it is, whenever it runs.
    """

    def __init__(self, folder: Path) -> None:
        from reservation.postgres.embedded import pgserver

        self._server = pgserver().get_server(folder, cleanup_mode="stop")
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
        with suppress(subprocess.TimeoutExpired):  # after ten seconds, and it goes on starting
            self._server.ensure_postgres_running()
        _wait_for_clients(self.address)

    def close(self) -> None:
        """Stop it for good."""
        self._server.cleanup()


class Standby:
    """A replica of an `OwnServer`, asynchronous as PostgreSQL's are by themselves.

    As a context manager it is stopped on leaving.

    Attributes:
        folder: where its data is and its socket, at port 5433.
        address: where it is, once it was started.
    """

    def __init__(self, primary: OwnServer, place: Path) -> None:
        self._primary = primary
        self._place = place
        self._programs, self._user = primary.programs, primary.user  # it may be gone later
        self.folder = place / "standby"
        self.address = psycopg.conninfo.make_conninfo(
            primary.address, host=str(self.folder), port=5433
        )
        self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._started:
            self._run("pg_ctl", "-D", self.folder, "-m", "immediate", "stop")

    def start(self) -> None:
        """Copy the server and follow it; return when it lets readers in."""
        copy = ("pg_basebackup", "-c", "fast", "-R", "-d", self._primary.address)
        self._run(*copy, "-D", self.folder)
        options = f"-h '' -k {self.folder} -p 5433"
        log = self._place / "log"
        self._run("pg_ctl", "-D", self.folder, "-w", "-l", log, "-o", options, "start")
        self._started = True

    def catch_up(self) -> None:
        """Return when it has all that the server has written."""
        with psycopg.connect(self._primary.address) as primary:
            row = primary.execute("SELECT pg_current_wal_lsn()").fetchone()
        deadline = time.monotonic() + 60
        with psycopg.connect(self.address, autocommit=True) as standby:
            behind = "SELECT pg_last_wal_replay_lsn() < %s"
            while standby.execute(behind, row).fetchone() != (False,):
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def stop_following(self) -> None:
        """Receive nothing more, as if the network to the server were lost."""
        deadline = time.monotonic() + 60
        with psycopg.connect(self.address, autocommit=True) as standby:
            standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            standby.execute("SELECT pg_reload_conf()")
            while standby.execute("SELECT FROM pg_stat_wal_receiver").fetchone() is not None:
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def promote(self) -> None:
        """Have it take the server's place; return when it takes writes."""
        with psycopg.connect(self.address, autocommit=True) as standby:
            assert standby.execute("SELECT pg_promote()").fetchone() == (True,)

    def _run(self, program: str, *arguments: str | Path) -> None:
        # PostgreSQL does not run as root.
        owner = {"user": self._user} if os.geteuid() == 0 else {}
        command: list[str | Path] = [self._programs / program, *arguments]
        subprocess.run(command, check=True, timeout=60, stdout=subprocess.DEVNULL, **owner)


def programs(address: str) -> Path | None:
    """Return the folder of PostgreSQL's programs that a server runs; None if it is not of here."""
    import psutil

    with psycopg.connect(address) as connection:
        try:
            folder = Path(psutil.Process(connection.info.backend_pid).exe()).parent
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
    return folder if (folder / "pg_dump").exists() else None


class Missing(Exception):
    """There is no Docker engine, or no image, for a container."""


class OwnContainer:
    """A PostgreSQL in a container of one test's own, on a network of its own.

    Attributes:
        address: where it is, whenever it can be reached.
    """

    def __init__(self, *, small_disk: str | None = None) -> None:
        import docker

        image = os.environ.get("RESERVATION_TEST_IMAGE", DEFAULT_IMAGE)
        try:
            self._docker: Any = docker.from_env()  # Any: the package has no types
            self._docker.images.get(image)
        except docker.errors.ImageNotFound:
            raise Missing(
                f"the image {image} is not there; RESERVATION_TEST_IMAGE names another"
            ) from None
        except docker.errors.DockerException as error:
            raise Missing(f"no Docker engine answers: {error}") from error
        # Always the same port, so that the address is valid after a restart.
        port = free_port()
        self.address = f"postgresql://postgres:a-secret@127.0.0.1:{port}/postgres"
        self._network = self._docker.networks.create(f"reservation-test-{port}", driver="bridge")
        try:
            self._container = self._docker.containers.run(
                image,
                detach=True,
                environment={"POSTGRES_PASSWORD": "a-secret"},
                network=self._network.name,
                ports={"5432/tcp": ("127.0.0.1", port)},
                tmpfs={small_disk: "size=16m"} if small_disk else {},
            )
        except BaseException:
            self._network.remove()
            raise

    def __enter__(self) -> Self:
        _wait_for_clients(self.address)
        return self

    def __exit__(self, *_: object) -> None:
        self._container.remove(force=True, v=True)
        self._network.remove()
        self._docker.close()

    def own(self, folder: str) -> None:
        """Let a folder belong to the user of the server."""
        status, output = self._container.exec_run(["chown", "postgres", folder], user="root")
        assert status == 0, output

    def pause(self) -> None:
        """Let none of its processes run.

        A process inside a call of the kernel that cannot be interrupted, a flush above all, is not
        frozen, and the engine gives up after a while: it is asked again.
        """
        from docker.errors import APIError

        for last in [False] * 19 + [True]:
            try:
                self._container.pause()
            except APIError as error:
                if last or "unable to freeze" not in str(error):
                    raise
            else:
                return

    def unpause(self) -> None:
        """Let its processes continue."""
        self._container.unpause()

    def kill(self) -> None:
        """End it as a machine does that loses its power."""
        self._container.kill()

    def start(self) -> None:
        """Start it again; return when it lets clients in."""
        self._container.start()
        _wait_for_clients(self.address)

    def disconnect(self) -> None:
        """Cut off its network; it keeps running."""
        self._network.disconnect(self._container)

    def connect(self) -> None:
        """Give its network back; return when it can be reached."""
        self._network.connect(self._container)
        _wait_for_clients(self.address)


def _wait_for_clients(address: str) -> None:
    """Return when a server lets clients in."""
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(address, connect_timeout=2).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
