"""Runs that read only new messages, and judge only the groups that these change.

A state is a folder that every part of Spark can reach. It holds the fingerprints of all messages
that were read so far (`.known`), the rows of the groups that are not in order, with their verdicts
(`.in_doubt`), and the groups that may change although no message of them is new. A manifest holds
the counts, up to where the log was read, and how far the consumers were.

A run reads the fingerprints of the messages that came after. It sums up the groups that these
belong to, and those that may have changed, twice: as they were, which is subtracted from the counts
of what is in order, and as they are, which is added. What is not in order is judged row by row. The
counts are those of a run over everything.

Messages that differ as they are stored are compared by what they mean. The results are kept, so
each pair is decoded once.

What was judged by another declaration is read and judged anew; only what a follower has reported
stays.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.analysis.verdicts import fingerprints, judging
from spark_jobs.analysis.verdicts.judging import Counts, Lookup, Read
from spark_jobs.analysis.verdicts.prefilter import PrefilterJob
from spark_jobs.common import files as data_files
from spark_jobs.common.errors import StateError
from spark_jobs.reconciliation.reading.fingerprinting import Fingerprinting, frame_of
from spark_jobs.reconciliation.state import changes, known
from spark_jobs.reconciliation.state.changes import Summed
from spark_jobs.reconciliation.state.in_doubt import Comparisons, InDoubt
from spark_jobs.reconciliation.state.known import Known, Watched
from spark_jobs.reconciliation.state.stored_state import (
    ANEW,
    Head,
    State,
    StoredFingerprints,
    not_here,
    run_name,
)
from spark_jobs.session.settings import OF_FEW_ROWS, having
from spark_jobs.snapshot.progress import Progress

# Opens, for as long as its context lasts, what reads some of the messages; is given whether they
# are few.
OpenLookup = Callable[[bool], AbstractContextManager[Lookup]]

# Fingerprints are in one folder for each run; beyond so many folders they are combined.
_FOLDERS = 16


class IncrementalRun:
    """One run, which turns a state into the next.

    Attributes:
        name: the folder of the run, within that of the state.
        lasting: since when violations persist, for a follower; None without one.
        known: the fingerprints of the messages that earlier runs have read.
        kept: the DataFrames that Spark caches for it.
    """

    def __init__(
        self,
        spark: SparkSession,
        state: State,
        jobs: Sequence[PrefilterJob],
        heads: Mapping[str, Head],
        progress: Progress,
        made: StoredFingerprints,
        opened: OpenLookup,
        *,
        store: str | None = None,
        log: Head | None = None,
        everything: Read | None = None,
    ) -> None:
        self._spark = spark
        self._state = state
        self._jobs = list(jobs)
        self._sketches = {job.name: job.sketch(progress) for job in jobs}
        self._heads = dict(heads)
        self._progress = progress
        self._made = made
        self._opened = opened
        self._store = store
        self._log = log
        self._everything = everything
        last = state.manifest
        self.lasting = None if last is None else last.lasting
        self._run = 1 if last is None else last.run + 1
        self.name = run_name(self._run)
        before = self._before = state.judged
        is_same = before is not None and not changes.is_corrected_since(before, progress)
        self._comparisons = Comparisons(
            spark, state.folder, [*before.compared] if before is not None and is_same else []
        )
        self._is_whole = before is None or changes.may_be_anywhere(before, progress)
        self._folders = [] if before is None else [*before.fingerprints.folders]
        self.known = self._fingerprints()
        self._watched = {} if before is None else self._watched_by(before.run)
        self._new: dict[str, pa.Table] = {}
        self._summed: Summed | None = None
        self.kept: list[DataFrame] = []
        self._counts: dict[str, Counts] = {}
        self._findings: dict[str, DataFrame] = {}
        state.begin(self._run)

    @property
    def is_few(self) -> bool:
        """Whether few messages of the store are new."""
        before = {} if self._before is None else self._before.heads
        nothing = Head(0, None)
        new = sum(
            head.tally.count - before.get(category, nothing).tally.count
            for category, head in self._heads.items()
        )
        return new <= changes.HERE

    def add(self, made: Fingerprinting, *, is_few: bool) -> None:
        """Add the messages that are new, as their fingerprints."""
        if is_few:
            self.add_table(made.table(), "rows")
            return
        self._is_whole = True
        place = self._place(self._own, "rows")
        count = known.write_by_workers(made, self._sketches, place)
        if Known(data_files.paths(place), list(self._sketches)).count() != count:
            raise not_here(place)
        if count:
            self._keep_own()

    def add_table(self, table: pa.Table, part: str) -> None:
        """Add the fingerprints of new messages; a part that is added again replaces itself."""
        table = known.grouped(table, self._sketches)
        self._new[part] = table
        if len(table):
            known.write(table, self._place(self._own, f"{part}.parquet"))
            self._keep_own()

    def possible_passes(self, subscribed: Sequence[int], passes: Sequence[int]) -> list[int]:
        """Return where there may be passes by now of messages that were read before.

        A message may be read while it is pending, and be passed afterwards. Its pass is behind what
        was read then, so it is looked for with each message that still has to be handled, and with
        each that became visible late. Other messages need none.
        """
        watched = self._watched["effects"]
        rows = [self.known.at(watched.positions) if watched.rows is None else watched.rows]
        rows += [table for part, table in self._new.items() if part == "late"]
        table = pa.concat_tables(rows)
        category = table["category"].to_numpy()
        at, is_handled = table["global_position"].to_numpy(), table["is_subscribed"].to_numpy()
        wanted = -at[np.isin(category, subscribed) & is_handled]
        places: list[int] = np.setdiff1d(wanted, at[np.isin(category, passes)]).tolist()
        return places

    def sum_up(self) -> None:
        """Find the groups that are in order, once everything new was added."""
        watched = {name: of.rows for name, of in self._watched.items() if of.rows is not None}
        is_whole = self._is_whole or len(watched) < len(self._jobs)
        # Arrow does the work, and Spark sees few rows.
        with having(self._spark, OF_FEW_ROWS):
            if is_whole or self._before is None:
                everything = self._fingerprints()
                self._summed = changes.sum_up(self._spark, self._jobs, everything, self._progress)
            else:
                self._summed = changes.sum_up_changes(
                    self._spark,
                    self._jobs,
                    self._before,
                    self.known,
                    watched,
                    pa.concat_tables([self.known.schema.empty_table(), *self._new.values()]),
                    self._progress,
                )
        kept = self._summed.sums.kept
        self.kept += [] if kept is None else [kept]

    @property
    def is_few_in_doubt(self) -> bool:
        """Whether only few messages are to be judged row by row."""
        return self._sums.sums.is_few

    def take(self, job: PrefilterJob) -> Counts:
        """Judge what is not in order; return the counts of a run over everything."""
        summed, folder = self._sums, judged_folder(self._run, job.name)
        before = None if self._before is None else judged_folder(self._before.run, job.name)
        in_doubt = InDoubt(
            self._spark,
            job,
            self._progress,
            self._comparisons,
            None if before is None else self._place(before),
            self._place(folder),
            f"{self.name}/{job.name}/compared",
        )
        sums, changed = summed.sums, summed.changed
        with self._opened(sums.is_few) as lookup:
            if sums.is_few:
                of_job = None if changed is None else changed[job.name]
                counts, found = in_doubt.judge_few(lookup, sums.doubtful_here(job), of_job)
            else:
                counts, found = in_doubt.judge(lookup, sums.doubtful(job))
        judged = sum(pq.read_metadata(file).num_rows for file in self._files(folder))
        if lacking := sums.number_of_doubtful(job) - judged:
            raise StateError(
                f"The store does not hold {lacking:,} messages any more that the state in "
                f"{self._state.folder} has read, and that must be judged again together with newer "
                f"ones; read their archive too, or {ANEW}"
            )
        watched = summed.watched(job, self._fingerprints())
        watched.write(self._place(watched_folder(self._run, job.name)))
        self._findings[job.name] = judging.findings_of(found)
        total = Counter(counts)
        total.update(summed.in_order[job.name])
        self._counts[job.name] = dict(total)
        return self._counts[job.name]

    def check(self, made: Fingerprinting, archived: DataFrame | None = None) -> None:
        """Make sure that the fingerprints are those of the store."""
        names = [name for name in fingerprints.TYPES if name != "global_position"]
        here, there = (
            # Passes are recorded apart from the log.
            rows.where("global_position > 0").select("global_position", F.struct(*names).alias(of))
            for rows, of in (
                (self._fingerprints().frame(self._spark), "here"),
                (frame_of(made), "there"),
            )
        )
        here_, there_ = F.col("here"), F.col("there")
        differences = here.join(there, "global_position", "full_outer").where(
            ~here_.eqNullSafe(there_)
        )
        if archived is not None:
            gone = differences.where(there_.isNull()).join(
                archived.select("global_position"), "global_position", "left_anti"
            )
            differences = differences.where(there_.isNotNull()).unionByName(gone)
        found = differences.agg(
            F.count_if(here_.isNotNull() & there_.isNotNull()).alias("changed"),
            F.count_if(there_.isNull()).alias("gone"),
            F.count_if(here_.isNull()).alias("unknown"),
            F.min("global_position").alias("first"),
        ).collect()[0]
        if found["first"] is not None:
            raise StateError(
                f"The state in {self._state.folder} is not what the store holds: "
                f"{found['changed']:,} messages were changed since they were read, "
                f"{found['gone']:,} are gone and {found['unknown']:,} were never read; the "
                f"first is at global position {found['first']}; {ANEW}"
            )

    def rows(self, job: PrefilterJob) -> DataFrame:
        """Return all rows of a job, which a state does not hold."""
        assert self._everything is not None  # noqa: S101  for who asks for rows
        return job.rows(self._everything)

    def findings(self) -> DataFrame:
        """Return all rows that need attention, of the jobs that were taken."""
        return judging.combined([rows for _, rows in sorted(self._findings.items())])

    def bring_together(self) -> None:
        """Combine what is in too many folders; the largest of fingerprints may stay as it is."""
        if len(self._folders) > _FOLDERS:
            sizes = {
                folder: sum(file.stat().st_size for file in self._files(folder))
                for folder in self._folders
            }
            largest = max(sizes, key=lambda folder: sizes[folder])
            rest = sum(sizes.values()) - sizes[largest]
            stays = [largest] if rest < sizes[largest] else []
            together = f"{self.name}/together"
            combined = [folder for folder in self._folders if folder not in stays]
            known.combine(self._files(*combined), self._place(together, "rows.parquet"))
            if self._own in combined:
                shutil.rmtree(self._place(self._own))
            self._folders = [*stays, together]
        if len(self._comparisons.names) > _FOLDERS:
            self._comparisons.combine(f"{self.name}/compared")

    def commit(self) -> None:
        """Make this run's result the state."""
        self.bring_together()
        made, of_run = self._made, self._run
        self._state.put(
            of_run,
            heads=self._heads,
            log=self._log,
            progress=self._progress,
            counts=self._counts,
            in_order=self._sums.in_order,
            fingerprints=StoredFingerprints(
                self._folders, made.seed, made.is_of_server, made.probe
            ),
            watched=[
                folder
                for name in self._counts
                for folder in (judged_folder(of_run, name), watched_folder(of_run, name))
            ],
            store=self._store,
            lasting=self.lasting,
            compared=self._comparisons.names,
        )

    @property
    def _sums(self) -> Summed:
        assert self._summed is not None  # noqa: S101  `sum_up` comes first
        return self._summed

    @property
    def _own(self) -> str:
        """The folder with the fingerprints that this run adds."""
        return f"{self.name}/fingerprints"

    def _keep_own(self) -> None:
        if self._own not in self._folders:
            self._folders.append(self._own)

    def _fingerprints(self) -> Known:
        """Return the fingerprints of all messages that were read up to now."""
        return Known(self._files(*self._folders), [job.name for job in self._jobs])

    def _watched_by(self, run: int) -> dict[str, Watched]:
        """Return what a run watched, for each job."""
        return {
            job.name: Watched.read(self._files(watched_folder(run, job.name))) for job in self._jobs
        }

    def _place(self, *parts: str) -> Path:
        return self._state.folder.joinpath(*parts)

    def _files(self, *folders: str) -> list[Path]:
        return data_files.paths(*map(self._place, folders))


def watched_folder(run: int, job: str) -> str:
    """Return the folder, within that of the state, with the positions that a run watches."""
    return f"{run_name(run)}/{job}/watched"


def judged_folder(run: int, job: str) -> str:
    """Return the folder, within that of the state, with the rows that a run has judged."""
    return f"{run_name(run)}/{job}/judged"
