"""One round of following a store: read what is new, judge, report what has persisted.

A round goes on with the state as `reconcile --state` does (`spark_jobs.state.step`), under one
snapshot, so that positions and messages are of one moment. With newer positions a command could be
reported as missing although its reservation was only not read yet.

What a round reads, and the verdicts on it, are in the folder of the run. All of it counts from the
moment at which the state names that folder. So a round that fails leaves no message out, and counts
none twice.

A round in which nothing has changed and nothing is due only asks the database.
"""

from collections import Counter
from datetime import UTC, datetime
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from reservation.messages.message import MAX_POSITION
from spark_jobs.common.declaration import categories_of
from spark_jobs.common.result import Report
from spark_jobs.findings import accepted
from spark_jobs.follow import persistence
from spark_jobs.reconcile import Source
from spark_jobs.run import Run
from spark_jobs.snapshot.snapshot import Snapshot, exported_snapshot
from spark_jobs.state import step
from spark_jobs.state.folder import StateFolder
from spark_jobs.state.read_positions import BLOCK
from spark_jobs.verdicts.counts import counted


class Audience(Protocol):
    """Receives the events of a follower."""

    def began(self, follower: "Follower") -> None:
        """Called before the first round."""

    def happened(self, event: persistence.ViolationEvent) -> None:
        """Called for a violation that has persisted for the grace, or was mended."""

    def looked(self, follower: "Follower") -> None:
        """Called after each round."""

    def waits(self, why: str) -> None:
        """Called when a round failed and is started again."""


class Follower:
    """Advances a state, round by round.

    Attributes:
        categories: the categories that it reads.
        report: the counts of the last round, without rows; None before the first.
        reported, mended: how many violations it has reported, and how many of these as mended or
            accepted.
    """

    def __init__(
        self, run: Run, state: StateFolder, spark: SparkSession, audience: Audience
    ) -> None:
        self.categories = categories_of(run.component)
        self.reported = self.mended = 0
        self._run = run
        self._state = state
        self._spark = spark
        self._audience = audience
        self._looked: object = None  # what verdicts depend on, in the last round of this process
        self.report = self._counted(datetime.now(UTC))

    @property
    def standing(self) -> dict[str, int]:
        """Reported violations that still exist, counted by kind."""
        manifest = self._state.manifest
        return {} if manifest is None or manifest.lasting is None else manifest.lasting.standing

    def _counted(self, time: datetime) -> Report | None:
        """Return what the state has counted, without rows; None if it is new, or judged anew."""
        manifest = self._state.judged
        if manifest is None:
            return None
        return counted(self._run.component, time, step.counts_of(manifest.counts))

    def round(self) -> None:
        """Read and judge what is new, report violations that persist or were mended, and commit."""
        with exported_snapshot(self._run.database_url) as snapshot:
            source = Source.of(self._run, snapshot, self._spark)
            looked = (
                snapshot.blocks(BLOCK, MAX_POSITION),
                step.judged_with(
                    snapshot, self._run.component, source.progress, values=self._run.values
                ),
                sorted(snapshot.accepted()),
            )
            if not self._is_settled(looked, snapshot):
                self._go_on(source)
        self._looked = looked
        self.report = self._counted(snapshot.time)

    def _is_settled(self, looked: object, snapshot: Snapshot) -> bool:
        """Return whether no verdict can have changed, and nothing is due to be reported."""
        manifest = self._state.judged
        if manifest is None or manifest.lasting is None or looked != self._looked:
            return False
        since = manifest.lasting.waits_since
        return since is None or since > snapshot.time - self._run.grace

    def _go_on(self, source: Source) -> None:
        state, snapshot = self._state, source.snapshot
        state.require_whole(by_size=True)
        state.remove_leftovers()
        step.check(state, snapshot, source.progress, is_archived=False)
        read = source.categories
        rows = source.rows(read, step.seed_of(state, snapshot), None)
        state_step = step.StateStep(state, rows, source.progress)
        judged = state_step.judge()
        found = state_step.store_findings(source.described(judged, read), judged.plan)
        decisions = snapshot.accepted()
        snapshot.release()
        found = accepted.without(found, decisions)
        lasting = None if state.manifest is None else state.manifest.lasting
        before = None if lasting is None else self._noted(lasting.folder)
        now, grace = snapshot.time, self._run.grace
        name = f"{state_step.name}/lasting"
        noted = persistence.noted(found, before, source.progress, now, grace)
        noted.write.parquet(str(state.folder / name))
        noted = self._noted(name)
        due = state_step.folder / "due"
        persistence.due(noted, before).write.parquet(str(due))
        lasts = persistence.summed_up(noted, name)
        state_step.merge_folders()
        # No Spark job runs between the report and the commit, which could fail.
        told: Counter[bool] = Counter()  # by whether it is mended
        for event in persistence.events(due, now, decisions):
            self._audience.happened(event)
            told[event.is_mended] += 1
        state_step.commit(lasts)
        self.reported += told[False]
        self.mended += told[True]

    def _noted(self, folder: str) -> DataFrame:
        return step.rows_in(self._state, self._spark, folder)
