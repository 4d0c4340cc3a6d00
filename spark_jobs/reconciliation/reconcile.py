"""A component's reconciliation, from the snapshot to the report."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import attrgetter

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from reservation.component import Component
from reservation.maintenance.finding_decisions import Decision
from spark_jobs.analysis import latency, reissues
from spark_jobs.analysis.verdicts.judging import own_name
from spark_jobs.common.concurrency import run_concurrently
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.result import Finding, Report
from spark_jobs.reconciliation import accepted
from spark_jobs.reconciliation.opening import opened
from spark_jobs.reconciliation.run import Run, jobs
from spark_jobs.reconciliation.state import stored_state
from spark_jobs.session.session import spark_session
from spark_jobs.snapshot.snapshot import Snapshot, exported_snapshot

# How many rows of each finding are shown; the Parquet output has all of them.
SAMPLES = 20


def reconcile(
    run: Run, watch: Callable[[SparkSession], AbstractContextManager[None]] | None = None
) -> Report:
    """Compare a component's commands with their reservations, and these with the events."""
    if run.state is not None:
        stored_state.refuse_others(run.state)
    with working(run, watch) as (snapshot, spark):
        return in_session(run, snapshot, spark)


@contextmanager
def working(
    run: Run, watch: Callable[[SparkSession], AbstractContextManager[None]] | None = None
) -> Iterator[tuple[Snapshot, SparkSession]]:
    """Open a snapshot of the store, and a watched session, for a run."""
    with (
        exported_snapshot(run.database_url) as snapshot,
        spark_session(
            run.database_url,
            master=run.master,
            remote=run.remote,
            conf=run.conf,
            app=run.app,
            app_dir=run.app_dir,
            is_small=snapshot.is_small(),
        ) as spark,
        nullcontext() if watch is None else watch(spark),
    ):
        yield snapshot, spark


def in_session(run: Run, snapshot: Snapshot, spark: SparkSession) -> Report:
    """Reconcile in an open session, under an open snapshot.

    The snapshot is released once the store was read, before the findings are sorted, written and
    put into the state.
    """
    reconciling, following = jobs(run)
    component, decisions = run.component.name, snapshot.accepted()
    with opened(run, snapshot, spark) as taking:
        reconciled, effects = run_concurrently(
            [partial(taking.take, job) for job in (reconciling, following)]
        )
        # In detail, messages are read once more.
        if not (run.verify or run.details):
            snapshot.release()
        found = divided(taking.findings(), component, decisions)
        of_categories, events = following.results(effects)
        report = Report(
            component=component,
            time=snapshot.time,
            categories=reconciling.results(reconciled),
            effects=of_categories,
            events=events,
            findings=samples(found.open),
            accepted=found.accepted,
            accepted_counts=found.counts,
            subscriptions=following.subscriptions(effects),
        )
        if run.findings is not None:
            rows = found.marked.select(*accepted.COLUMNS)
            rows.coalesce(1).write.parquet(str(run.findings))
        if run.details:
            commands = under_own_names(taking.rows(reconciling), run.component)
            report = with_latency(report, commands, taking.rows(following))
            report = with_reissues(report, commands)
            if not run.verify:
                snapshot.release()
    return dataclasses.replace(report, snapshot_held=snapshot.release())


def divided(
    findings: DataFrame, component: str, decisions: Mapping[str, Decision]
) -> accepted.Sorted:
    """Return findings with their ids, those that people have accepted apart from the others."""
    return accepted.divided(accepted.identified(findings, component), decisions)


def under_own_names(rows: DataFrame, component: Component) -> DataFrame:
    """Return rows with the types' names of today, whatever they were stored under."""
    return rows.withColumn("type", own_name(F.col("type"), Declaration.of(component).names))


def with_latency(report: Report, rows: DataFrame, effects: DataFrame) -> Report:
    """Return a report with latency and volume."""
    commands = rows.where("is_command")
    durations = latency.durations(
        commands,
        # What a command initiated is an event, and no reservation.
        rows.where(~F.col("is_command") & (F.col("pair") != report.component)),
        effects.where(~F.col("is_cause")).withColumn("causation", F.col("group")),
    )
    measured = latency.latencies(durations)
    return dataclasses.replace(report, latency=measured, volume=latency.volumes(commands, measured))


def with_reissues(report: Report, rows: DataFrame) -> Report:
    """Return a report with the reissues, from the rows of `CommandsJob`."""
    return dataclasses.replace(report, reissues=reissues.reissues(rows.where("is_command")))


def samples(findings: DataFrame) -> list[Finding]:
    """Return the first rows of each finding."""
    by_position = Window.partitionBy("finding").orderBy("global_position")
    rows = (
        findings.withColumn("nth", F.row_number().over(by_position))
        .where(F.col("nth") <= SAMPLES)
        .drop("nth")
        .withColumn("time", F.unix_micros("time"))
        .collect()
    )
    found = [accepted.finding_of(row.asDict()) for row in rows]
    return sorted(found, key=attrgetter("finding", "global_position"))
