"""One Spark session and one database for all tests of a run, and the commands that use them."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from psycopg import Connection
from pyspark.sql import SparkSession

from spark_jobs.session.session import spark_session
from spark_jobs.source.source import MessageStoreSource
from tests.spark.builders import Archived, Reconciled
from tests.spark.judging import Judging
from tests.support import databases
from tests.support.commands import invoke_cli
from tests.support.started import EXAMPLES


class SparkDatabase:
    """The database whose address Spark's workers have in their environment."""

    def __init__(self, admin: Connection[Any], server_url: str, template: str) -> None:
        self._admin = admin
        self._template = template
        self._name = f"reservation_spark_{os.getpid()}"
        self.url = databases.address(server_url, self._name)

    def renew(self, *, is_empty: bool = False) -> str:
        """Make it again under the same name, with a new store unless it is to be empty."""
        self.drop()
        databases.create(self._admin, self._name, None if is_empty else self._template)
        return self.url

    def drop(self) -> None:
        self._admin.execute(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")


@pytest.fixture(scope="session")
def spark_database(
    admin: Connection[Any], server_url: str, template: str
) -> Iterator[SparkDatabase]:
    """Give the database that Spark's workers know."""
    database = SparkDatabase(admin, server_url, template)
    yield database
    database.drop()


@pytest.fixture(scope="session")
def spark(spark_database: SparkDatabase) -> Iterator[SparkSession]:
    """Give the Spark session of the run, in which its commands run too."""
    with spark_session(spark_database.url, master="local[2]", is_small=True) as session:
        session.dataSource.register(MessageStoreSource)
        yield session


@pytest.fixture
def database_url(spark_database: SparkDatabase) -> str:
    """Give the address of a new store, in the database that Spark's workers know."""
    return spark_database.renew()


@pytest.fixture
def command(spark: SparkSession, database_url: str) -> Callable[..., Any]:
    """Give a function that runs a command on the test's store, in the session of the run."""
    return partial(invoke_cli, env={"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"})


@pytest.fixture
def reconcile(command: Callable[..., Any]) -> Callable[..., Reconciled]:
    """Give a function that runs ``reservation reconcile --json`` with more arguments."""

    def run(*arguments: object, app: str = "bank:account", app_dir: object = EXAMPLES) -> Any:
        words = map(str, ("--app-dir", app_dir, *arguments))
        return Reconciled(command("reconcile", app, "--json", *words))

    return run


@pytest.fixture
def archive(command: Callable[..., Any], tmp_path: Any) -> Callable[..., Archived]:
    """Give a function that runs ``reservation archive --json`` into the folder ``archive``."""

    def run(
        *arguments: object,
        before: str = "2100-01-01",
        app: str = "bank:account",
        app_dir: object = EXAMPLES,
    ) -> Any:
        place = ("--to", tmp_path / "archive", "--before", before, "--app-dir", app_dir)
        return Archived(command("archive", app, "--json", *map(str, (*place, *arguments))))

    return run


@pytest.fixture
def prune(command: Callable[..., Any], tmp_path: Any) -> Callable[..., Any]:
    """Give a function that removes from the store what ``archive`` has archived."""

    def run(*arguments: str) -> Any:
        place = ("prune", "bank:account", "--archived", str(tmp_path / "archive"))
        done = command(*place, "--apply", "--yes", "--json", *arguments)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    return run


@pytest.fixture
def judging(
    spark: SparkSession,
    database_url: str,
    connection: Connection[Any],
    reconcile: Callable[..., Reconciled],
    archive: Callable[..., Archived],
    tmp_path: Any,
) -> Judging:
    """Give what judges the test's store in each mode of a run."""
    return Judging(database_url, connection, reconcile, archive, tmp_path)
