"""A component's reconciliation, from the snapshot to the report."""

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from reservation.declaration.table import declarations
from spark_jobs import fold
from spark_jobs.archive import archive_folder
from spark_jobs.archive.facts import ArchivedFacts
from spark_jobs.archive.union import Union
from spark_jobs.common.caching import computed
from spark_jobs.common.declaration import Declaration
from spark_jobs.common.result import Report
from spark_jobs.details.details import detailed
from spark_jobs.facts.newer import newer
from spark_jobs.facts.reader import Facts
from spark_jobs.findings import accepted
from spark_jobs.findings.described import described, with_deleted
from spark_jobs.run import Run, app_dir, declaration_of, judged_by
from spark_jobs.session.session import spark_session
from spark_jobs.session.settings import having
from spark_jobs.snapshot.categories import Categories
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import Snapshot, exported_snapshot
from spark_jobs.state import folder, step
from spark_jobs.state.folder import StateFolder
from spark_jobs.verdicts import verdicts
from spark_jobs.verdicts.counts import counted
from spark_jobs.verdicts.meaning import Meanings
from spark_jobs.verdicts.rows import Rows
from spark_jobs.verdicts.verdicts import Judged

# Shows how far a session's jobs are, while a block lasts.
Watch = Callable[[SparkSession], AbstractContextManager[None]]


def reconcile(run: Run, watch: Watch | None = None) -> Report:
    """Compare a component's commands with their reservations, and these with the events."""
    with state_of(run) as state, working(run, watch) as (snapshot, spark):
        return in_session(run, snapshot, spark, state)


def state_of(run: Run) -> AbstractContextManager[StateFolder | None]:
    """Open the state of a run, which is locked before Spark starts."""
    if run.state is None:
        return nullcontext()
    return folder.open_state(run.state, run.component.name, judged_by(run))


@contextmanager
def session_of(run: Run, watch: Watch | None = None) -> Iterator[SparkSession]:
    """Open a watched session for a run.

    A missing database or schema is reported before Java starts.
    """
    with exported_snapshot(run.database_url) as snapshot:
        is_small = snapshot.is_small()
    with (
        spark_session(
            run.database_url,
            master=run.master,
            remote=run.remote,
            conf=run.conf,
            app=run.app,
            app_dir=run.app_dir,
            is_small=is_small,
        ) as spark,
        nullcontext() if watch is None else watch(spark),
    ):
        yield spark


@contextmanager
def working(run: Run, watch: Watch | None = None) -> Iterator[tuple[Snapshot, SparkSession]]:
    """Open a watched session, and then a snapshot of the store, for a run."""
    with session_of(run, watch) as spark, exported_snapshot(run.database_url) as snapshot:
        yield snapshot, spark


@dataclass(frozen=True, slots=True)
class Source:
    """A run's source: one snapshot of the store, and an archive if one is given.

    Attributes:
        run: the run.
        snapshot: the snapshot.
        spark: the session.
        progress: how far the consumers are.
    """

    run: Run
    snapshot: Snapshot
    spark: SparkSession
    progress: Progress

    @classmethod
    def of(cls, run: Run, snapshot: Snapshot, spark: SparkSession) -> "Source":
        return cls(run, snapshot, spark, snapshot.progress(run.component, run.grace))

    @property
    def since(self) -> int | None:
        """The global position from which on messages are new; None if all are looked at."""
        since = self.run.since
        return self.snapshot.position_at(since) if isinstance(since, datetime) else since

    @property
    def categories(self) -> Categories | Union:
        """Reads columns of messages."""
        declaration = Declaration.of(self.run.component)
        store = Categories(self.spark, self.snapshot, declaration)
        if self.run.archive is None:
            return store
        name, text = self.run.component.name, declaration.to_json()
        archive = archive_folder.read_archive(
            self.run.archive, name, text, as_of=self.snapshot.time
        )
        archive.check(self.snapshot, declarations(self.run.component).command_category)
        return Union(archive, store)

    def rows(self, read: Categories | Union, seed: int, progress: Progress | None) -> Rows:
        """Return what reads facts, and the messages that are looked at again."""
        run, declared = self.run, declarations(self.run.component)
        place = app_dir(run)
        comparison = Meanings(
            declared.command_category, declared.reservation_categories, run.app, place, run.values
        )
        of = (self.spark, self.snapshot, run.component, run.app, place, seed, progress)
        facts = ArchivedFacts(*of, read) if isinstance(read, Union) else Facts(*of)
        return Rows(facts, read.at, comparison)

    def described(self, judged: Judged, read: Categories | Union) -> DataFrame:
        """Return the rows of findings."""
        of = self.run.component, self.run.app, app_dir(self.run)
        found = described(judged.findings, partial(read.at, required=True), *of)
        found = with_deleted(found, self.progress, self.run.component)
        return accepted.identified(found, self.run.component.name)


def in_session(
    run: Run, snapshot: Snapshot, spark: SparkSession, state: StateFolder | None = None
) -> Report:
    """Reconcile in an open session, under an open snapshot, and with an open state if there is one.

    The snapshot is released once the store was read, before the findings are sorted, written and
    put into the state.
    """
    source, decisions = Source.of(run, snapshot, spark), snapshot.accepted()
    since = source.since
    with _judged(source, state, since) as (counts, findings, read):
        if not run.details:
            snapshot.release()
        found = accepted.divided(findings, decisions)
        report = counted(run.component, snapshot.time, counts)
        report = dataclasses.replace(
            report,
            since=since,
            findings=accepted.samples(found.open),
            accepted=found.accepted,
            accepted_counts=found.counts,
        )
        if run.findings is not None:
            known = {
                "run_time": (snapshot.time, "timestamp"),
                "store": (snapshot.store, "string"),
                "component": (run.component.name, "string"),
                "declaration": (declaration_of(run), "string"),
                "since": (since, "bigint"),
            }
            accepted.written(found.marked, run.findings, known)
        if run.details:
            of = run.component, run.app, app_dir(run)
            report = detailed(report, read, *of, findings)
    return dataclasses.replace(report, snapshot_held=snapshot.release())


@contextmanager
def _judged(
    source: Source, state: StateFolder | None, since: int | None
) -> Iterator[tuple[verdicts.Counts, DataFrame, Categories | Union]]:
    """Judge everything, or go on with a state, which is advanced at the end of the block."""
    run, read = source.run, source.categories
    if state is None:
        rows = source.rows(read, secrets.randbits(63), source.progress)
        if since is not None and isinstance(read, Categories):
            summaries = _of_newer(rows.facts, read, since)
        else:
            summaries = fold.fold(rows.facts.folded_together(), rows.facts.number)
        judged = verdicts.judge(summaries, rows, source.progress)
        with having(source.spark, judged.plan):
            found = computed(source.described(judged, read))
        yield judged.counts, found, read
        return
    step.check(state, source.snapshot, source.progress, is_archived=run.archive is not None)
    rows = source.rows(read, step.seed_of(state, source.snapshot), None)
    state_step = step.StateStep(state, rows, source.progress)
    if (unchanged := state_step.unchanged()) is not None:
        yield *unchanged, read
        return
    judged = state_step.judge()
    found = state_step.store_findings(source.described(judged, read), judged.plan)
    yield judged.counts, found, read
    state_step.commit()


def _of_newer(facts: Facts, read: Categories, since: int) -> DataFrame:
    """Return the summaries of groups with messages from a global position on."""
    new, older = newer(facts, read, since)
    groups = fold.fold(new, facts.number).select("is_key", "grp").distinct()
    summaries = fold.fold(new.unionByName(older), facts.number)
    return summaries.join(groups, ["is_key", "grp"], "left_semi")
