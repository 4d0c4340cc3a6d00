"""A component's reconciliation, from the snapshot to the report."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from reservation.component import Component
from reservation.errors import DeclarationError
from spark_jobs.declaration import Declaration
from spark_jobs.result import Finding, Report
from spark_jobs.session import LOCAL, spark_session
from spark_jobs.settings import is_local
from spark_jobs.snapshot import GRACE, Snapshot, exported_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs import incremental, judging

# How many rows of each finding are shown; the Parquet output has all of them.
SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Run:
    """What is to be done.

    Attributes:
        component: whose commands and events are looked at.
        app, app_dir: the app path by which Spark's workers load it, and its folder.
        database_url: a libpq URL or connection string; empty for libpq's own defaults.
        grace: how long a consumer may take, where nobody tells how far it is.
        details: whether latency, volume and reissues are wanted as well.
        findings: a folder that does not exist yet, for every row that needs attention as Parquet.
        state: the folder of what earlier runs have read; None to read everything.
        master, remote, conf: where Spark runs, and its properties; see `spark_jobs.session`.
    """

    component: Component
    app: str
    app_dir: Path
    database_url: str
    grace: timedelta = GRACE
    details: bool = False
    findings: Path | None = None
    state: Path | None = None
    master: str | None = LOCAL
    remote: str | None = None
    conf: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse a component that nothing can be said of.

        Raises:
            DeclarationError: it reserves no command and initiates with none.
        """
        if not (self.component.reservations or self.component.initiations):
            raise DeclarationError(
                f"The component {self.component.name!r} reserves no command and initiates with "
                f"none, so there is nothing to reconcile"
            )


def reconcile(
    run: Run, watch: "Callable[[SparkSession], AbstractContextManager[None]] | None" = None
) -> Report:
    """Hold a component's commands against their reservations, and these against the events.

    Args:
        run: what is to be done.
        watch: what is entered with the session while it works.

    Raises:
        DatabaseUnavailableError: the database can not be reached.
        SchemaError: it holds no message store.
        SparkUnavailableError: Spark or Java is missing or too old, or there is no such master.
        SparkSettingError: a property can not be passed on.
        StateError: the state can not be gone on from.
        SparkJobError: the job did not come to its end, or the findings can not be written.
    """
    with (
        exported_snapshot(run.database_url) as snapshot,
        spark_session(
            run.database_url,
            master=run.master,
            remote=run.remote,
            conf=run.conf,
            app=run.app,
            app_dir=run.app_dir,
        ) as spark,
        nullcontext() if watch is None else watch(spark),
    ):
        return in_session(run, snapshot, spark)


def in_session(run: Run, snapshot: Snapshot, spark: "SparkSession") -> Report:
    """Do the same in a session and under a snapshot that are there."""
    from spark_jobs.effects import Effects
    from spark_jobs.reconcile import Reconcile

    component = run.component
    # To ask whether a condition can be left to the server takes a process of its own at each read.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    # Elsewhere the modules of the app were sent to the workers.
    is_here = run.remote is None and run.master is not None and is_local(run.master)
    app_dir = run.app_dir.resolve() if is_here else None
    reconciling = Reconcile(component, run.app, app_dir)
    following = Effects(component)
    with _taking(run, snapshot, spark) as taking:
        reconciled, effects = taking.take(reconciling), taking.take(following)
        findings = taking.findings()
        of_categories, events = following.results(effects)
        report = Report(
            component=component.name,
            time=snapshot.time,
            categories=reconciling.results(reconciled),
            effects=of_categories,
            events=events,
            findings=samples(findings),
        )
        if run.findings is not None:
            findings.coalesce(1).write.parquet(str(run.findings))
        if run.details:
            rows = taking.rows(reconciling)
            report = _with_details(report, rows, taking.rows(following))
        taking.commit()
    return report


@contextmanager
def _taking(
    run: Run, snapshot: Snapshot, spark: "SparkSession"
) -> "Iterator[judging.Whole | incremental.Step]":
    """Give what judges everything, or what is new since a state was written."""
    from spark_jobs import incremental, judging
    from spark_jobs.categories import Categories

    component = run.component
    declaration = Declaration.of(component)
    progress = snapshot.progress(component, run.grace)
    if run.state is None:
        yield judging.Whole(Categories(spark, snapshot.id, declaration), progress)
        return
    with incremental.opened(run.state, component.name, declaration.to_json()) as state:
        if state.manifest is not None:
            state.check(
                {
                    category: head.message_id is None
                    or snapshot.holds(head.position, head.message_id)
                    for category, head in state.manifest.heads.items()
                }
            )
        names = [component.command_category, *component.reservation_categories, component.name]
        heads = {name: incremental.Head(*snapshot.head(name)) for name in names}
        read = Categories(spark, snapshot.id, declaration, state.after)
        yield incremental.Step(spark, state, read, heads, progress)


def _with_details(report: Report, messages: "DataFrame", effects: "DataFrame") -> Report:
    """Return a report with latency, volume and reissues."""
    from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

    from spark_jobs import latency, reissues

    commands = messages.where("is_command")
    durations = latency.durations(
        commands,
        # What a command initiated is an event, and no reservation.
        messages.where(~F.col("is_command") & (F.col("pair") != report.component)),
        effects.where(~F.col("is_cause")).withColumn("causation", F.col("group")),
    )
    told = latency.latencies(durations)
    return dataclasses.replace(
        report,
        latency=told,
        volume=latency.volumes(commands, told),
        reissues=reissues.reissues(commands),
    )


def samples(findings: "DataFrame") -> list[Finding]:
    """Return the first rows of each finding."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

    by_position = Window.partitionBy("finding").orderBy("global_position")
    rows = (
        findings.withColumn("nth", F.row_number().over(by_position))
        .where(F.col("nth") <= SAMPLES)
        .drop("nth")
        .orderBy("finding", "global_position")
        .collect()
    )
    return [Finding(**row.asDict()) for row in rows]
