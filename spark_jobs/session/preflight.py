"""Checks before a job, of what Spark would otherwise wait for, perhaps without end.

A connection shows whether a master or server listens. One small task shows whether the cluster
takes up work at all, and whether its workers can import the job and reach the database.
"""

import os
import socket
import threading
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql import SparkSession

from reservation.app_path import load_component
from reservation.errors import ReservationError
from reservation.postgres.connection import connect
from spark_jobs.common.address import DATABASE_VARIABLE, address_for_workers
from spark_jobs.common.concurrency import in_background
from spark_jobs.common.errors import SparkJobError, SparkSettingError, SparkUnavailableError
from spark_jobs.session.failure import reason
from spark_jobs.session.settings import PATIENCE, seconds, standalone_addresses
from spark_jobs.source import source  # noqa: F401  the workers import what reading needs

_CONNECT_PORT = 15002
_DIAL_SECONDS = 10
_DEFAULT_PATIENCE = "120s"
_AGAIN_SECONDS = 0.5


def require_master(master: str) -> None:
    """Make sure that a standalone master listens; Spark itself reports on other kinds."""
    if master.startswith("spark://"):
        _require_listener(f"Spark master at {master}", standalone_addresses(master))


def require_server(remote: str) -> None:
    """Make sure that a Spark Connect server listens."""
    try:
        parts = urlsplit(remote)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if host is None or parts.scheme != "sc":
        raise SparkSettingError("The remote address cannot be read; write it as sc://host:15002")
    port = port or _CONNECT_PORT
    _require_listener(f"Spark Connect server at sc://{host}:{port}", [(host, port)])


def _require_listener(what: str, addresses: list[tuple[str, int]]) -> None:
    for address in addresses:
        try:
            socket.create_connection(address, _DIAL_SECONDS).close()
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            return
    raise SparkUnavailableError(f"There is no {what}: {problem}")


def require_workers(session: SparkSession, database_url: str, app: str | None) -> None:
    """Make sure that workers take up work, import the job and the app, and reach the database."""
    patience = str(session.conf.get(PATIENCE, _DEFAULT_PATIENCE))
    late = threading.Event()

    def give_up(is_over: threading.Event) -> None:
        if is_over.wait(seconds(patience)):
            return
        late.set()
        # A job that Spark has not begun to plan cannot be interrupted yet.
        while not is_over.wait(_AGAIN_SECONDS):
            session.interruptAll()

    try:
        with in_background(give_up):
            found = session.range(1, numPartitions=1).mapInArrow(
                partial(look, app), "problem string"
            )
            problems = [row["problem"] for row in found.collect()]
    except Exception as error:
        if late.is_set():
            raise SparkJobError(
                f"No worker took up work within {patience}: the cluster has no worker, no free "
                f"cores, or none with the requested memory (spark.executor.memory); "
                f"--conf {PATIENCE}=10min waits longer"
            ) from error
        raise SparkJobError(
            f"Spark's workers cannot run the job: {reason(error)}; they need Python packages of "
            f"their own, see docs/how-to/run-spark.md"
        ) from error
    if problems:
        raise SparkJobError(f"Spark's workers: {problems[0]}{_why(database_url)}")


def look(app: str | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check a worker, on the worker: yield one row with the problem, or none."""
    for _ in batches:
        problems = []
        try:
            if app is not None:
                load_component(app, None)
            connect(os.environ.get(DATABASE_VARIABLE, "")).close()
        except ReservationError as error:
            problems.append(str(error))
        yield pa.RecordBatch.from_pydict({"problem": pa.array(problems, pa.string())})


def _why(database_url: str) -> str:
    if address_for_workers(database_url) is not None:
        return ""
    return (
        f". The given address holds a password, so it was not passed on to them: set "
        f"{DATABASE_VARIABLE}, PGSERVICEFILE or PGPASSFILE in their environment, or give an "
        f"address without a password"
    )
