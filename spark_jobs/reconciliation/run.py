"""A component's reconciliation, from the snapshot to the report."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import attrgetter
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.storagelevel import StorageLevel

from reservation.component import Component
from reservation.errors import DeclarationError
from reservation.maintenance.finding_decisions import Decision
from spark_jobs.analysis import latency, reissues
from spark_jobs.analysis.commands import CommandsJob
from spark_jobs.analysis.effects import EffectsJob
from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.analysis.verdicts.declared_code import code_of_component
from spark_jobs.analysis.verdicts.judging import own_name
from spark_jobs.analysis.verdicts.prefilter import Prefilter, PrefilterInput
from spark_jobs.archive import archive_folder
from spark_jobs.archive.archive_folder import Archive
from spark_jobs.common.caching import unpersisted
from spark_jobs.common.concurrency import run_concurrently
from spark_jobs.common.declaration import Declaration, categories_of, sources_of
from spark_jobs.common.result import Finding, Report
from spark_jobs.reconciliation import (
    accepted,
    heads,
    incremental,
    late,
    late_passes,
    stored_state,
)
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.reconciliation.reading import lookup
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.jdbc import Jdbc, jdbc_url
from spark_jobs.reconciliation.reading.union import Union
from spark_jobs.session.session import LOCAL, spark_session
from spark_jobs.session.settings import interpreted, is_local
from spark_jobs.session.size import Size
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import GRACE, Snapshot, exported_snapshot
from spark_jobs.source.columns import looked_at

# How many rows of each finding are shown; the Parquet output has all of them.
SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Run:
    """What to reconcile, and where.

    Attributes:
        component: whose commands and events are looked at.
        app, app_dir: the app path by which Spark's workers load it, and its folder.
        database_url: a libpq URL or connection string; empty for libpq's own defaults.
        grace: how old a message must be to count as read, if no position is stored; with
            ``--follow``, how long a violation must persist before it is reported.
        details: whether to measure latency, volume and reissues too.
        findings: a new folder for every row that needs attention, as Parquet.
        state: the folder of what earlier runs have read; None to read everything.
        jdbc: the jar of PostgreSQL's JDBC driver, to read through it; None to read through ADBC.
        verify: whether to compare the whole state with the store.
        archive: the folder of an archive to read too; None to read only the store.
        master, remote, conf: where Spark runs, and its properties; see
            `spark_jobs.session.session`.
    """

    component: Component
    app: str
    app_dir: Path
    database_url: str
    grace: timedelta = GRACE
    details: bool = False
    findings: Path | None = None
    state: Path | None = None
    verify: bool = False
    jdbc: Path | None = None
    archive: Path | None = None
    master: str | None = LOCAL
    remote: str | None = None
    conf: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse a component that has nothing to reconcile.

        Raises:
            DeclarationError: the component neither reserves, initiates nor subscribes.
        """
        component = self.component
        if not (component.reservations or component.initiations or component.subscribed):
            raise DeclarationError(
                f"The component {component.name!r} reserves no command, initiates with none and "
                f"subscribes to none, so there is nothing to reconcile"
            )


def reconcile(
    run: Run, watch: Callable[[SparkSession], AbstractContextManager[None]] | None = None
) -> Report:
    """Compare a component's commands with their reservations, and these with the events.

    Args:
        run: what to reconcile, and where.
        watch: a context to enter with the session while it works.

    Raises:
        DatabaseUnavailableError: the database cannot be reached.
        SchemaError: it holds no message store.
        SparkUnavailableError: Spark or Java is missing or too old, or there is no such master.
        SparkSettingError: a property cannot be passed on.
        StateError: the state cannot be continued.
        ArchiveError: the archive cannot be read.
        SparkJobError: the job failed, or the findings cannot be written.
    """
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
            conf=[*run.conf, *([] if run.jdbc is None else [f"spark.jars={run.jdbc.resolve()}"])],
            app=run.app,
            app_dir=run.app_dir,
            size=snapshot.size(),
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
    up_to = max(snapshot.head(name)[0] for name in categories_of(run.component))
    with opened(run, snapshot, spark) as taking:
        reconciled, effects = run_concurrently(
            [partial(taking.take, job) for job in (reconciling, following)]
        )
        # In detail, messages are read once more, unless a state has them.
        reads_again = run.verify or (run.details and run.state is None)
        if not reads_again:
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
            up_to=up_to,
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
    """Return findings with their ids, those that people have accepted apart from the others.

    Args:
        findings: the findings.
        component: the component's name.
        decisions: those by which findings were accepted, by the findings' ids.
    """
    return accepted.divided(accepted.identified(findings, component), decisions)


def jobs(run: Run) -> tuple[CommandsJob, EffectsJob]:
    """Return the jobs that judge a component's messages."""
    return CommandsJob(run.component, run.app, _app_dir(run)), EffectsJob(run.component)


def _app_dir(run: Run) -> Path | None:
    """Return the folder in which the workers find the app; None if it was sent to them."""
    return run.app_dir.resolve() if _is_here(run) else None


def _is_here(run: Run) -> bool:
    """Return whether Spark runs within one process of this machine."""
    return run.remote is None and run.master is not None and is_local(run.master)


def judged_by(run: Run) -> str:
    """Return everything of a component that verdicts depend on, as JSON.

    What its functions call is not part of it.
    """
    reconciling, following = jobs(run)
    return json.dumps(
        {
            "keys": json.loads(Declaration.of(run.component).to_json()),
            "code": code_of_component(run.component),
            "silentTypes": following.silent_types,
            "startsAreFirst": reconciling.starts_are_first,
        }
    )


@contextmanager
def opened(
    run: Run, snapshot: Snapshot, spark: SparkSession, *, judges: bool = True
) -> Iterator[FullRun | incremental.IncrementalRun]:
    """Open a run over everything, or over what is new since a state was written.

    The state is advanced at the end of the block.

    Args:
        run: the run.
        snapshot: what is read.
        spark: the session.
        judges: whether messages are judged, and not only read.
    """
    component = run.component
    declaration = Declaration.of(component)
    progress = snapshot.progress(component, run.grace)
    archive = _archive(run, declaration, snapshot)
    is_here = snapshot.size() is Size.SMALL and _is_here(run)

    def stored(after: Mapping[str, int]) -> Categories | Jdbc:
        if run.jdbc is None:
            return Categories(spark, snapshot, declaration, after, is_here=is_here)
        return Jdbc(spark, jdbc_url(run.database_url), snapshot, declaration, after)

    def reading(after: Mapping[str, int]) -> Categories | Jdbc | Union:
        if archive is None:
            return stored(after)
        behind = {name: max(one, after.get(name, 0)) for name, one in archive.after.items()}
        return Union(spark, archive, declaration, stored({**after, **behind}), stored(after), after)

    if run.state is None:
        read = reading({})
        prefilter = _prefilter(run, read, progress, snapshot, archive) if judges else None
        taking = FullRun(read, progress, prefilter)
        # Few rows are left, unless all are looked at in detail.
        is_few = prefilter is not None and prefilter.is_few and not run.details
        with unpersisted(taking.kept), interpreted(spark) if is_few else nullcontext():
            yield taking
        return
    with stored_state.opened(run.state, component.name, judged_by(run)) as state:
        last, behind, log = heads.found(component, state, snapshot, archive)
        columns = looked_at(declaration)
        new, behind_it = reading(state.after)(sources_of(component), columns), None
        if behind:
            known = incremental.known(spark, state)
            behind_it = late.messages(stored({}), known, behind, columns)
            new = new.unionByName(behind_it)
        passes = late_passes.of_known(spark, state, component, stored({}), columns, behind_it)
        new = new if passes is None else new.unionByName(passes)
        # Read once for both jobs, unless it is the whole store, which would fill the disk.
        kept = [new.persist(StorageLevel.DISK_ONLY)] if state.judged is not None else []
        prefilter = None
        if state.judged is None:
            prefilter = _prefilter(run, reading({}), progress, snapshot, archive, judges_open=True)
            kept += [] if prefilter is None else [prefilter.kept]
        with unpersisted(kept):
            step = incremental.IncrementalRun(
                spark,
                state,
                new,
                last,
                progress,
                snapshot.store,
                lambda: nullcontext(partial(lookup.at, reading({}))),
                has_passes=bool(component.subscribed),
                log=log,
                prefilter=prefilter,
            )
            yield step
            if run.verify:
                step.check(jobs(run), reading({}))
                snapshot.release()
            step.commit()


def _prefilter(
    run: Run,
    read: Categories | Jdbc | Union,
    progress: Progress,
    snapshot: Snapshot,
    archive: Archive | None,
    *,
    judges_open: bool = False,
) -> Prefilter | None:
    """Return what is in order of a component's messages, by fingerprints.

    The server makes them if possible. Where Spark would, it judges a small store as fast.

    Args:
        run: the run.
        read: reads the messages.
        progress: how far the consumers are.
        snapshot: what is read.
        archive: an archive that is read too.
        judges_open: whether groups are judged too in which a verdict may change.
    """
    component = run.component
    if isinstance(read, Categories) and not Declaration.of(component).by_function:
        few = dataclasses.replace(read, is_here=_is_here(run))
        found = PrefilterInput(partial(read.seen, component, progress), read.at, few.at)
        # Arrow does the work, and Spark sees few rows.
        with interpreted(read.spark):
            return Prefilter(jobs(run), found, progress, judges_open=judges_open)
    archived = 0 if archive is None else sum(archive.counts.values())
    is_small = snapshot.size() is Size.SMALL and (archive is None or archive.is_small)
    if isinstance(read, Jdbc) or is_small:
        return None
    made = fingerprints.of_messages(read, component, progress, run.app, _app_dir(run))
    parts = snapshot.number_of_parts(archived)
    seen = partial(grouping.summed, made.mapInArrow, parts=parts)
    found = PrefilterInput(seen, read.at, read.at)
    return Prefilter(jobs(run), found, progress, judges_open=judges_open)


def _archive(run: Run, declaration: Declaration, snapshot: Snapshot) -> Archive | None:
    """Return the archive to read too; None without one."""
    if run.archive is None:
        return None
    archive = archive_folder.there(
        run.archive, run.component.name, declaration.to_json(), as_of=snapshot.time
    )
    archive.check(snapshot, run.component.command_category)
    return archive


def under_own_names(rows: DataFrame, component: Component) -> DataFrame:
    """Return rows with the types' names of today, whatever they were stored under."""
    return rows.withColumn("type", own_name(F.col("type"), Declaration.of(component).names))


def with_latency(report: Report, rows: DataFrame, effects: DataFrame) -> Report:
    """Return a report with latency and volume.

    Args:
        report: the report.
        rows: those of `CommandsJob`.
        effects: those of `EffectsJob`.
    """
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
