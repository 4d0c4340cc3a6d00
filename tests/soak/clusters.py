"""A Spark cluster and a Spark Connect server of a test's own, from PySpark's package."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from spark_jobs.session import java

HOME = Path(pyspark.__file__).parent
PATIENCE = 120.0

# What runs for seconds only is not worth being compiled well.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def quick() -> list[str]:
    """Return options that let a job on a cluster finish soon."""
    properties = {
        "spark.driver.extraJavaOptions": java.options(),
        "spark.executor.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "4",
    }
    return [word for key, value in properties.items() for word in ("--conf", f"{key}={value}")]


def python_of_workers(folder: Path) -> Path:
    """Return an interpreter that sees installed packages, and nothing of this checkout.

    Without the module ``site`` no ``.pth`` file is read, and so no editable installation found.
    """
    installed = str(HOME.parent)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{installed}" exec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return path


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """Start a standalone master and workers with a core each; give the master's address."""
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> "_Daemon":
            name = f"org.apache.spark.deploy.{name}"
            return stack.enter_context(_Daemon(folder, "spark-class", name, *arguments))

        listens = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = start("master.Master", *listens)
        (address,) = master.wait_for(r"Starting Spark master at (spark://\S+)")
        for n in range(workers):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{n}")]
            start("worker.Worker", *listens, *size, address)
        for _ in range(workers):
            master.wait_for(r"Registering worker (\S+)")
        yield address


@contextmanager
def connect_server(folder: Path, python: Path, database_url: str) -> Iterator[str]:
    """Start a Connect server whose workers take the database from its environment."""
    properties = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }
    arguments = ["--master", "local[2]", "--driver-java-options", QUICK]
    for key, value in properties.items():
        arguments += ["--conf", f"{key}={value}"]
    with _Daemon(
        folder,
        "spark-submit",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        *arguments,
        PYSPARK_PYTHON=str(python),
        RESERVATION_DATABASE_URL=database_url,
    ) as server:
        (address,) = server.wait_for(r"Spark Connect server started at: (\S+)")
        yield f"sc://{address}"


def _is_of_the_machine(variable: str) -> bool:
    """Return whether a variable is about neither our packages nor a database."""
    return variable not in ("PYTHONPATH", "RESERVATION_DATABASE_URL") and variable[:2] != "PG"


class _Daemon:
    """A Java process of Spark's, whose log can be waited for."""

    def __init__(self, folder: Path, program: str, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [str(HOME / "bin" / program), *arguments],
            env={
                **{key: value for key, value in os.environ.items() if _is_of_the_machine(key)},
                "SPARK_HOME": str(HOME),
                "SPARK_DAEMON_JAVA_OPTS": QUICK,
                "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
                "SPARK_LOCAL_IP": "127.0.0.1",
                **environment,
            },
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._told: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stderr:
            self._lines.append(line)
            self._told.put(line)
        self._told.put(None)

    def wait_for(self, pattern: str) -> tuple[str, ...]:
        """Wait for a line of the log and return the groups of the pattern; each is found once."""
        while True:
            line = self._told.get(timeout=PATIENCE)
            assert line is not None, f"ended without {pattern}: {''.join(self._lines)}"
            found = re.search(pattern, line)
            if found:
                return found.groups()

    def __enter__(self) -> "_Daemon":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(PATIENCE)
        self._process.stderr.close()
