"""The Spark session that a job runs in: within this machine, on a cluster, or behind a server."""

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from reservation.errors import ReservationError
from spark_jobs.common.address import DATABASE_VARIABLE
from spark_jobs.common.errors import SparkJobError, SparkSettingError, SparkUnavailableError
from spark_jobs.session import java, package, preflight, settings
from spark_jobs.session.failure import reason

LOCAL = "local[*]"

# Into how many ranges a category is divided if the number of Spark's cores is unknown.
_RANGES = 8

# Java names that PySpark resolves for each column. Each time Java searches every jar for them.
_NAMED = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")


@contextlib.contextmanager
def spark_session(
    database_url: str,
    *,
    master: str | None = LOCAL,
    remote: str | None = None,
    conf: Sequence[str] = (),
    app: str | None = None,
    app_dir: str | Path = ".",
    is_small: bool = False,
) -> Iterator[SparkSession]:
    """Open a Spark session for the jobs, and stop it at the end.

    Workers on this machine take the database's address from the environment of this process.
    Workers of a cluster get it through a property, if it holds no secret. One zip file with this
    package and the app's modules is sent to them.
    """
    added = settings.parse_conf(conf)
    # PySpark warns whenever it imports pandas, which the jobs do not use.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    with tempfile.TemporaryDirectory(prefix="reservation-spark-") as folder:
        scratch = Path(folder)
        log = scratch / "spark.log"
        is_local = remote is None and master is not None and settings.is_local(master)
        if remote is not None:
            session = _connected(remote, added)
        elif is_local:
            os.environ[DATABASE_VARIABLE] = database_url
            properties = settings.local_properties(scratch, is_small=is_small)
            session = _started(master, {**properties, **added}, log)
        else:
            properties = settings.cluster_properties(master, database_url, scratch)
            session = _started(master, {**properties, **added}, log)
        try:
            if not is_local:
                if remote is not None or master is not None:
                    _send_packages(session, scratch, app, app_dir)
                preflight.require_workers(session, database_url, app)
            yield session
        except ReservationError:
            raise
        except Exception as error:
            raise SparkJobError(f"The Spark job failed: {reason(error, log)}") from error
        finally:
            with contextlib.suppress(Exception):  # a session that is gone cannot be stopped
                session.stop()


def parallelism(session: SparkSession) -> int:
    """Return into how many ranges to divide what is read: as many as run at a time, or more.

    ``spark.default.parallelism`` decides where it is set.
    """
    configured = session.conf.get("spark.default.parallelism", None)
    if configured is not None:
        return max(1, int(configured))
    context = getattr(session, "sparkContext", None)  # there is none under Connect
    return _RANGES if context is None else max(2, context.defaultParallelism)


def _started(master: str | None, properties: dict[str, str], log: Path) -> SparkSession:
    """Start Spark's driver in a Java process of this process."""
    java.require_java()
    if master is not None:
        preflight.require_master(master)
        os.environ.pop("SPARK_REMOTE", None)  # PySpark prefers it to any master
    builder = SparkSession.builder.appName("reservation")
    if master is not None:
        builder = builder.master(master)
        if settings.is_local(master) or settings.is_on_loopback(master):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The workers import this package, not modules of the same name in the current folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", java.LAUNCHER_OPTIONS)
    with _output_to(log):
        try:
            session = builder.config(map={**properties}).getOrCreate()
        except Exception as error:
            raise SparkUnavailableError(f"Spark does not start: {reason(error, log)}") from error
    with contextlib.suppress(Exception):  # it only saves time
        jvm = session.sparkContext._jvm
        for name in _NAMED:  # resolved once, and kept
            setattr(jvm, name, getattr(jvm, name))
    return session


def _connected(remote: str, added: dict[str, str]) -> SparkSession:
    """Open a session on a server, which has its own properties and workers."""
    preflight.require_server(remote)
    try:
        session = SparkSession.builder.remote(remote).getOrCreate()
    except ImportError as error:
        raise SparkUnavailableError(
            "Spark Connect needs an extra that is not installed: pip install 'reservation[connect]'"
        ) from error
    except Exception as error:
        raise SparkUnavailableError(
            f"The Spark Connect server does not answer as one: {reason(error)}"
        ) from error
    for key, value in {**settings.OF_SESSIONS, **added}.items():
        try:
            session.conf.set(key, value)
        except Exception as error:
            session.stop()
            raise SparkSettingError(
                f"The Spark Connect server does not take {key} for a session: {reason(error)}"
            ) from error
    return session


def _send_packages(
    session: SparkSession, scratch: Path, app: str | None, app_dir: str | Path
) -> None:
    """Send this package and the app's modules to the workers."""
    archive = scratch / "reservation.zip"
    package.build(archive, app, app_dir)
    before = list(sys.path)
    session.addArtifacts(str(archive), pyfile=True)
    sys.path[:] = before  # this process keeps importing the installed ones


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect the output of a Java process that is started meanwhile to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            for number, one in enumerate(kept, start=1):
                os.dup2(one, number)
                os.close(one)
