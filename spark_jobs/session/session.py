"""The Spark session that a job runs in: within this machine, on a cluster, or behind a server."""

import contextlib
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from reservation.errors import ReservationError
from spark_jobs.common.address import DATABASE_VARIABLE
from spark_jobs.common.errors import SparkJobError, SparkSettingError, SparkUnavailableError
from spark_jobs.session import java, java_process, package, preflight, settings
from spark_jobs.session.failure import reason
from spark_jobs.source.reading import nothing

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
            opening = _connected(remote, added)
        elif is_local:
            java.require_java()
            properties = settings.local_properties(scratch, is_small=is_small)
            opening = _local(master, {**properties, **added}, database_url, log)
        else:
            properties = settings.cluster_properties(master, database_url, scratch)
            opening = _opened(master, {**properties, **added}, log)
        with opening as session:
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


def parallelism(session: SparkSession) -> int:
    """Return into how many ranges to divide what is read: as many as run at a time, or more.

    ``spark.default.parallelism`` decides where it is set.
    """
    configured = session.conf.get("spark.default.parallelism", None)
    if configured is not None:
        return max(1, int(configured))
    context = getattr(session, "sparkContext", None)  # there is none under Connect
    return _RANGES if context is None else max(2, context.defaultParallelism)


@contextlib.contextmanager
def _local(
    master: str | None, properties: dict[str, str], database_url: str, log: Path
) -> Iterator[SparkSession]:
    """Open a session on this machine, whose workers inherit the address from this process."""
    before = os.environ.get(DATABASE_VARIABLE)
    os.environ[DATABASE_VARIABLE] = database_url
    try:
        with _opened(master, properties, log) as session:
            jvm = session.sparkContext._jvm
            if jvm is None or jvm.java.lang.System.getenv(DATABASE_VARIABLE) != database_url:
                raise SparkUnavailableError(
                    f"This process has a Spark session whose workers read another database than "
                    f"this run; stop it first, or set {DATABASE_VARIABLE} before it is started"
                )
            threading.Thread(target=_start_workers, args=[session], daemon=True).start()
            yield session
    finally:
        if before is None:
            del os.environ[DATABASE_VARIABLE]
        else:
            os.environ[DATABASE_VARIABLE] = before


def _start_workers(session: SparkSession) -> None:
    """Have Spark start its Python workers, which takes a second, while plans are made."""
    with contextlib.suppress(Exception):  # the session may end meanwhile
        number = session.sparkContext.defaultParallelism
        session.range(0, number, 1, number).mapInArrow(nothing, "id bigint").collect()


@contextlib.contextmanager
def _opened(master: str | None, properties: dict[str, str], log: Path) -> Iterator[SparkSession]:
    """Open a session whose driver runs in a Java process of this process.

    A session that is there already is used, and is afterwards as it was before.
    """
    if master is not None:
        preflight.require_master(master)
    if SparkContext._active_spark_context is not None:
        session = SparkSession.builder.getOrCreate()
        changed = {
            name: value for name, value in properties.items() if session.conf.isModifiable(name)
        }
        with settings.having(session, changed):
            yield session
        return
    java.require_java()
    if master is not None:
        os.environ.pop("SPARK_REMOTE", None)  # PySpark prefers it to any master
        properties = {"spark.master": master, **properties}
        if settings.is_local(master) or settings.is_on_loopback(master):
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The workers import this package, not modules of the same name in the current folder.
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", java.LAUNCHER_OPTIONS)
    with java_process.started({"spark.app.name": "reservation", **properties}, log) as session:
        with contextlib.suppress(Exception):  # it only saves time
            jvm = session.sparkContext._jvm
            for name in _NAMED:  # resolved once, and kept
                setattr(jvm, name, getattr(jvm, name))
        yield session


@contextlib.contextmanager
def _connected(remote: str, added: dict[str, str]) -> Iterator[SparkSession]:
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
            f"The remote address does not answer as a Spark Connect server: {reason(error)}"
        ) from error
    try:
        for key, value in {**settings.OF_SESSIONS, **added}.items():
            try:
                session.conf.set(key, value)
            except Exception as error:
                raise SparkSettingError(
                    f"The Spark Connect server refuses {key} for a session: {reason(error)}"
                ) from error
        yield session
    finally:
        with contextlib.suppress(Exception):  # a session that is gone cannot be stopped
            session.stop()


def _send_packages(
    session: SparkSession, scratch: Path, app: str | None, app_dir: str | Path
) -> None:
    """Send this package and the app's modules to the workers."""
    archive = scratch / "reservation.zip"
    package.build(archive, app, app_dir)
    before = list(sys.path)
    session.addArtifacts(str(archive), pyfile=True)
    sys.path[:] = before  # this process keeps importing the installed ones
