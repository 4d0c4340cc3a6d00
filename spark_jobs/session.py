"""The Spark session that a job runs in."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jobs.errors import SparkUnavailableError
from spark_jobs.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABASE_VARIABLE = "RESERVATION_DATABASE_URL"


@contextlib.contextmanager
def spark_session(database_url: str, *, master: str = "local[*]") -> Iterator["SparkSession"]:
    """Give a Spark session in which the source ``message_store`` is known, and end it after.

    The database's address reaches the workers through the environment, never through a property
    of Spark's, so that no plan, event log or page of its UI shows it.

    Args:
        database_url: a libpq URL or connection string; empty for libpq's own defaults.
        master: where Spark runs.

    Raises:
        SparkUnavailableError: Spark or Java is missing or too old.
    """
    require_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailableError(
            "Spark is not installed; install it with: pip install 'reservation[spark]'"
        ) from error
    from spark_jobs.source import MessageStoreSource

    os.environ[DATABASE_VARIABLE] = database_url
    # The workers import our packages, not ones of the same name in the current folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="reservation-spark-") as scratch:
        log = Path(scratch) / "spark.log"
        builder = (
            SparkSession.builder.master(master)
            .appName("reservation")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", scratch)
            .config("spark.sql.warehouse.dir", str(Path(scratch) / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.sql.python.filterPushdown.enabled", "true")
        )
        with _standard_error_to(log):
            try:
                session = builder.getOrCreate()
            except Exception as error:
                raise SparkUnavailableError(
                    f"Spark does not start: {_last_line(log) or error}"
                ) from error
        try:
            session.dataSource.register(MessageStoreSource)
            yield session
        finally:
            session.stop()


@contextlib.contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    """Let the Java process that is started now keep its standard error in a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
