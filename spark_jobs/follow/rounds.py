"""One round of following a store: look, read what is new, judge, report what has persisted.

A round looks at the store in one transaction: how far the consumers are, and what the last message
of each category is. It then reads from where the state ends to exactly these messages, and judges
what they change (`spark_jobs.reconciliation.state.incremental`). So positions and messages are of
one moment. With newer positions a command could be reported as missing although its reservation was
only not read yet. The transaction need not stay open meanwhile. A writer that holds the category's
lock makes nothing visible before the last message that was seen, and what another writer does is
found by the next round that counts.

A round also counts the messages up to where the state ends, because one that was written without
the lock may have become visible there. Counting a large store takes long, so it takes at most a
tenth of the time.

What a round reads, and the verdicts on it, are in the folder of the run. All of it counts from the
moment at which the state names that folder. So a round that fails leaves no message out, and counts
none twice.

A round in which nothing has changed and nothing is due only asks the database.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from reservation.maintenance.finding_decisions import Decision
from spark_jobs.analysis.verdicts.judging import Lookup
from spark_jobs.common.caching import unpersisted
from spark_jobs.common.concurrency import run_concurrently
from spark_jobs.common.declaration import categories_of
from spark_jobs.common.result import Report
from spark_jobs.follow import persistence
from spark_jobs.reconciliation import accepted
from spark_jobs.reconciliation.reading.of_run import Reading
from spark_jobs.reconciliation.run import Run, jobs
from spark_jobs.reconciliation.state import heads, new_messages
from spark_jobs.reconciliation.state.incremental import IncrementalRun
from spark_jobs.reconciliation.state.stored_state import Head, State, StoredFingerprints
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import Snapshot, exported_snapshot

# A count takes at most one part in so many of the time until the next.
_COUNT_ONE_IN = 10


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


@dataclass(frozen=True, slots=True)
class StoreView:
    """The store at one moment.

    Attributes:
        time: when that was, in UTC.
        heads: the last message of each category.
        progress: how far the consumers are.
        late: the categories with late messages, each with the global position up to which it was
            read.
        store: the id of the store; None if it has none.
        made: how the fingerprints of its messages are made.
        accepted: the decisions by which findings were accepted, by the findings' ids.
        log: the last position of all, with the tally of the whole log up to it.
    """

    time: datetime
    heads: dict[str, Head]
    progress: Progress
    late: dict[str, int]
    store: str | None
    made: StoredFingerprints
    accepted: dict[str, Decision] = field(default_factory=dict)
    log: Head | None = None

    @property
    def until(self) -> dict[str, int]:
        """The global position up to which each category is read."""
        return {category: head.position for category, head in self.heads.items()}


class Follower:
    """Advances a state, round by round.

    Attributes:
        categories: the categories that it reads.
        report: the counts of the last round, without rows; None before the first.
        reported, mended: how many violations it has reported, and how many of these as mended or
            accepted.
    """

    def __init__(self, run: Run, state: State, spark: SparkSession, audience: Audience) -> None:
        self.categories = categories_of(run.component)
        self.reported = self.mended = 0
        self._run = run
        self._state = state
        self._spark = spark
        self._audience = audience
        self._jobs = jobs(run)
        self._counts_from = 0.0
        self._accepted: Collection[str] | None = None  # those of the last round of this process
        self.report = self._counted(datetime.now(UTC))

    @property
    def standing(self) -> dict[str, int]:
        """How many reported violations of each kind still exist."""
        manifest = self._state.manifest
        return {} if manifest is None or manifest.lasting is None else manifest.lasting.standing

    def _counted(self, time: datetime) -> Report | None:
        """Return what the state has counted, without rows; None if it is new, or judged anew."""
        manifest, (reconciling, effects) = self._state.judged, self._jobs
        if manifest is None:
            return None
        of_categories, events = effects.results(manifest.counts[effects.name])
        return Report(
            component=self._run.component.name,
            time=time,
            categories=reconciling.results(manifest.counts[reconciling.name]),
            effects=of_categories,
            events=events,
            findings=[],
            subscriptions=effects.subscriptions(manifest.counts[effects.name]),
        )

    def look(self) -> StoreView:
        """Look at the store."""
        with exported_snapshot(self._run.database_url) as snapshot:
            return self.look_at(snapshot)

    def look_at(self, snapshot: Snapshot) -> StoreView:
        """Look at the store as a snapshot shows it."""
        component, start = self._run.component, time.monotonic()
        counts = start >= self._counts_from
        made = new_messages.made_as_before(self._state, self._reading(snapshot))
        last, behind, log = heads.found(component, self._state, snapshot, counts=counts)
        if counts:
            end = time.monotonic()
            self._counts_from = end + _COUNT_ONE_IN * (end - start)
        progress = snapshot.progress(component, self._run.grace)
        decisions = snapshot.accepted()
        return StoreView(
            snapshot.time, last, progress, behind, snapshot.store, made, decisions, log
        )

    def _reading(self, snapshot: Snapshot, until: Mapping[str, int] | None = None) -> Reading:
        return Reading(self._run, snapshot, self._spark, until=until or {})

    def round(self, look: StoreView) -> None:
        """Read and judge what is new, report violations that persist or were mended, and commit."""
        if not self._is_settled(look):
            self._go_on(look)
        self.report = self._counted(look.time)

    def _is_settled(self, look: StoreView) -> bool:
        """Return whether no verdict can have changed, and nothing is due to be reported."""
        manifest = self._state.judged
        if manifest is None or manifest.lasting is None or manifest.heads != look.heads:
            return False
        if self._accepted != look.accepted.keys():
            return False
        since = manifest.lasting.waits_since
        if since is not None and since <= look.time - self._run.grace:
            return False
        # If the age of messages decides what was read, only pending verdicts change with time.
        is_pending = any(
            count
            for counts in manifest.counts.values()
            for name, count in counts.items()
            if name.endswith(" pending")
        )

        def matters(progress: Progress) -> object:
            return {
                name: (
                    one.position,
                    tuple(one.partitions),
                    tuple(one.carried),
                    one.before if is_pending else None,
                    sorted(one.letters),
                    sorted(one.conflicts),
                    one.first_position,
                    sorted(one.corrections),
                )
                for name, one in progress.consumed.items()
            }

        return matters(manifest.was()) == matters(look.progress)

    def _go_on(self, look: StoreView) -> None:
        self._state.require_whole(by_size=True)
        self._state.remove_leftovers()
        with exported_snapshot(self._run.database_url) as snapshot:
            step = self._read(look, snapshot)
        with unpersisted(step.kept):
            step.sum_up()
            run_concurrently([partial(step.take, job) for job in self._jobs])
            grace, folder = self._run.grace, f"{step.name}/lasting"
            before = None if step.lasting is None else self._noted(step.lasting.folder)
            found = accepted.identified(step.findings(), self._run.component.name)
            found = accepted.without(found, look.accepted)
            noted = persistence.noted(found, before, look.progress, look.time, grace)
            noted.write.parquet(str(self._state.folder / folder))
            noted = self._noted(folder)
            step.lasting = persistence.summed_up(noted, folder)
            step.bring_together()
            events = list(persistence.events(noted, before, look.time, look.accepted))
            # No Spark job runs between the report and the commit, which could fail.
            for event in events:
                self._audience.happened(event)
            step.commit()
            self._accepted = look.accepted.keys()
            mended = sum(event.is_mended for event in events)
            self.reported += len(events) - mended
            self.mended += mended

    def _read(self, look: StoreView, snapshot: Snapshot) -> IncrementalRun:
        """Read what came after the state, up to what was seen, and what became visible late."""
        state, after = self._state, self._state.after
        step = IncrementalRun(
            self._spark,
            state,
            self._jobs,
            look.heads,
            look.progress,
            look.made,
            self._lookup,
            store=look.store,
            log=look.log,
        )
        has_new = any(last > after.get(name, 0) for name, last in look.until.items())
        reading = self._reading(snapshot, look.until)
        new_messages.add(step, look.made, reading, after, look.late, has_new=has_new)
        return step

    @contextmanager
    def _lookup(self, is_few: bool) -> Iterator[Lookup]:
        """Open the store to read some messages of it, whenever they came."""
        with exported_snapshot(self._run.database_url) as snapshot:
            yield self._reading(snapshot)(is_few=is_few).at

    def _noted(self, folder: str) -> DataFrame:
        return self._spark.read.parquet(str(self._state.folder / folder))
