"""Run `reservation models verify --spark`."""

from functools import partial
from pathlib import Path

from rich.console import Console

from cli.common.errors import exit_on_sigterm
from cli.spark.execution.prepare import prepare_later
from cli.spark.execution.progress import progress
from consumers.archived import Archives
from consumers.read_models.verifying import Verification, verify_by
from reservation.component import Component
from reservation.postgres.connection import connect
from spark_jobs.jobs.compare import compare
from spark_jobs.session.session import spark_session


def verify_on_spark(
    component: Component,
    app: str,
    app_dir: str,
    database_url: str,
    archives: Archives | None,
    master: str,
    remote: str | None,
    conf: tuple[str, ...],
) -> Verification:
    """Verify a read model, and let Spark compare the tables."""
    exit_on_sigterm()
    with (
        spark_session(
            database_url, master=master, remote=remote, conf=conf, app=app, app_dir=Path(app_dir)
        ) as session,
        progress(Console(stderr=True)) as watch,
        watch(session),
    ):
        connections = partial(connect, database_url, autocommit=True)
        result = verify_by(
            partial(compare, session, database_url), connections, component, archives
        )
    prepare_later(master, remote)
    return result
