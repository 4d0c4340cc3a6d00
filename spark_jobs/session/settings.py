"""The properties of Spark: those for where it runs, and those that the caller adds."""

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.common.address import DATABASE_VARIABLE, address_for_workers
from spark_jobs.common.errors import SparkSettingError
from spark_jobs.session import classes, java
from spark_jobs.session.credentials import holds_a_credential, is_credential

# The property for how long to wait for a cluster to take up work.
PATIENCE = "spark.reservation.executorTimeout"

# Of every session, wherever it runs.
OF_SESSIONS = {
    "spark.sql.session.timeZone": "UTC",
    # Times in files are numbers in UTC, which all programs read, and not Spark's own INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Rows may be large: what is sent to Python at once counts by its size, not 10,000 rows.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
    # Finding the best compression of cached rows takes longer than caching them.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Cached rows are divided by their size too, not into 200 parts.
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}

# Of every session that starts Spark, rather than connecting to a server.
_OF_DRIVERS = {
    # Recording the source line of each column takes longer than making the column.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # The jobs compile more than the 100 pieces of code that Spark caches by default.
    "spark.sql.codegen.cache.maxEntries": "2000",
}


# Of plans for few rows: compiling code and dividing work take longer than the work.
FEW = 20_000
SMALL_PLAN = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


def plan_for(rows: int) -> Mapping[str, str]:
    """Return the properties of plans for a number of rows: none if they are many."""
    return SMALL_PLAN if rows <= FEW else {}


@contextmanager
def having(session: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """Set properties for plans that are made meanwhile."""
    before = {name: session.conf.get(name, None) for name in properties}
    for name, value in properties.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        with suppress(Exception):  # a session that is gone has no properties
            for name, was in before.items():
                if was is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, was)


def is_local(master: str) -> bool:
    """Return whether Spark runs within one process of this machine."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def is_on_loopback(master: str) -> bool:
    """Return whether a standalone master listens only on this machine's loopback."""
    return master.startswith("spark://") and all(
        _is_loopback(host) for host, _ in standalone_addresses(master)
    )


def standalone_addresses(master: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of ``spark://host:port``, of which there may be several."""
    found = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise SparkSettingError(
                f"The master {master} cannot be read; write it as spark://host:7077"
            )
        found.append((host.strip("[]"), int(port)))
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Return the properties that the caller adds, given as ``KEY=VALUE``."""
    found = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        key = key.strip()
        if not (separator and re.fullmatch(r"spark\.\S+", key)):
            shown = "" if holds_a_credential(pair) else f", and not {key!r}"
            raise SparkSettingError(
                f"--conf takes KEY=VALUE with a property of Spark, for example "
                f"spark.driver.memory=4g{shown}"
            )
        if is_credential(key, value):
            raise SparkSettingError(
                f"--conf {key} looks like a credential, and Spark shows its properties to many; "
                f"the database's belongs in PGPASSFILE, PGSERVICEFILE or {DATABASE_VARIABLE} in "
                f"the environment of Spark's workers, one of Spark's own in spark-defaults.conf"
            )
        found[key] = value
    return found


def local_properties(scratch: Path, *, is_small: bool) -> dict[str, str]:
    """Return the properties of Spark on this machine: no listener, no UI, private files."""
    properties = {
        "spark.sql.shuffle.partitions": str(max(8, 4 * (os.cpu_count() or 1))),
        "spark.driver.extraJavaOptions": java.options(classes.stored()),
        "spark.python.daemon.module": "spark_jobs.source.daemon",
        # Sorting and summing spill to disk sooner, so that Java's memory stays small.
        "spark.memory.fraction": "0.3",
        # A broadcast table takes at least one page, which would be of 32 MB however few its rows.
        "spark.buffer.pageSize": "2m",
        # Of what has ended, Spark keeps the plans and metrics for a UI, which is not there.
        "spark.sql.ui.retainedExecutions": "10",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
    }
    if is_small:
        properties |= SMALL_PLAN
    return {**OF_SESSIONS, **_OF_DRIVERS, **_on_this_machine(scratch), **properties}


def cluster_properties(master: str | None, database_url: str, scratch: Path) -> dict[str, str]:
    """Return the properties of Spark elsewhere, with the address unless it holds a secret.

    Spark itself divides shuffles by their sizes.
    """
    address = address_for_workers(database_url)
    return {
        **OF_SESSIONS,
        **_OF_DRIVERS,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        # Workers import this package, not modules of the same name in their current folder.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        **(_on_this_machine(scratch) if master and is_on_loopback(master) else {}),
        **({f"spark.executorEnv.{DATABASE_VARIABLE}": address} if address else {}),
    }


def _on_this_machine(scratch: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
    }


def seconds(value: str) -> float:
    """Return a time span as Spark writes it, such as ``90s`` or ``2min``, in seconds."""
    units = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "ms": 0.001}
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip())
    if found is None or found[2] not in units:
        raise SparkSettingError(f"{value!r} is not a time span; write it as 90s or 2min")
    return int(found[1]) * units[found[2]]
