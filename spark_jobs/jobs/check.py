"""The tallies of all messages of a component, for ``reservation check --full``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from reservation.component import Component
from reservation.inspection.tally import Tally
from spark_jobs.common.declaration import Declaration
from spark_jobs.jobs.decoding import tallies
from spark_jobs.session.session import spark_session
from spark_jobs.session.settings import is_local
from spark_jobs.snapshot.categories import Categories
from spark_jobs.snapshot.snapshot import exported_snapshot


@contextmanager
def decoded(
    component: Component[Any],
    app: str,
    app_dir: Path,
    database_url: str,
    *,
    master: str | None,
    remote: str | None,
    conf: Sequence[str],
    watch: Callable[[SparkSession], AbstractContextManager[None]] | None = None,
) -> Iterator[tuple[dict[str, Tally], str]]:
    """Decode every message of a component's categories, under a snapshot that stays open."""
    with exported_snapshot(database_url) as snapshot:
        with (
            spark_session(
                database_url,
                master=master,
                remote=remote,
                conf=conf,
                app=app,
                app_dir=app_dir,
                is_small=snapshot.is_small(),
            ) as spark,
            nullcontext() if watch is None else watch(spark),
        ):
            runs_locally = remote is None and master is not None and is_local(master)
            read = Categories(spark, snapshot, Declaration.of(component))
            found = tallies(read, component, app, app_dir.resolve() if runs_locally else None)
        yield found, snapshot.id
