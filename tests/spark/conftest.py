"""Fixtures of the Spark tests: one session and one database for all of them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection, conninfo
from pyspark.sql import SparkSession

from reservation import MessageStore, install
from reservation.postgres.connection import connect
from spark_jobs.session import java
from spark_jobs.session.session import spark_session
from spark_jobs.source.source import MessageStoreSource

# Where Debian's package libpostgresql-jdbc-java puts it.
JDBC_JAR = Path(os.environ.get("RESERVATION_TEST_JDBC_JAR", "/usr/share/java/postgresql.jar"))


@pytest.fixture(scope="session")
def spark_database_url(admin: Connection[Any], server_url: str) -> Iterator[str]:
    """Give the database that Spark's workers know from their environment."""
    from psycopg import conninfo

    name = f"reservation_spark_{os.getpid()}"
    admin.execute(f"CREATE DATABASE {name}")
    url = conninfo.make_conninfo(server_url, dbname=name)
    with connect(url, autocommit=True) as connection:
        install(connection)
    yield url
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def spark(spark_database_url: str) -> Iterator[SparkSession]:
    """Give a Spark session with the source ``message_store``."""
    # All tests share one Java process, which lasts long enough for its optimized code to pay off.
    conf = [f"spark.driver.extraJavaOptions={java.options()} -XX:TieredStopAtLevel=4"]
    conf += [f"spark.jars={JDBC_JAR}"] if JDBC_JAR.exists() else []
    with spark_session(spark_database_url, master="local[2]", conf=conf, is_small=True) as session:
        session.dataSource.register(MessageStoreSource)
        yield session


@pytest.fixture
def spark_connection(spark_database_url: str) -> Iterator[Connection[Any]]:
    """Give a connection to that database, emptied."""
    with connect(spark_database_url, autocommit=True) as connection:
        connection.execute(
            "TRUNCATE message_store.messages, reservation.groups, reservation.positions, "
            "reservation.dead_letters, reservation.corrections, reservation.finding_decisions, "
            "reservation.passes, reservation.scheduled RESTART IDENTITY"
        )
        yield connection


@pytest.fixture
def spark_store(spark_connection: Connection[Any]) -> MessageStore:
    """Give a client of that store."""
    return MessageStore(spark_connection)


@pytest.fixture
def jdbc_address(
    spark: SparkSession, server_url: str, spark_database_url: str, tmp_path: Path
) -> str | None:
    """Give the database's address without its password, which Java's driver finds in a file.

    None where the server listens to a socket only, or the driver's jar is absent.
    """
    parts = conninfo.conninfo_to_dict(server_url)
    if str(parts.get("host", "/")).startswith("/") or not JDBC_JAR.exists():
        return None
    path = tmp_path / "pgpass"
    path.write_text(f"*:*:*:*:{parts['password']}\n")
    path.chmod(0o600)
    # The driver runs in a process that was started before, with another environment.
    spark._jvm.System.setProperty("org.postgresql.pgpassfile", str(path))  # type: ignore[union-attr]
    address: dict[str, Any] = dict(conninfo.conninfo_to_dict(spark_database_url))
    del address["password"]
    return conninfo.make_conninfo(**address)
