"""Continue a state: merge its summaries with those of new messages, and judge what that changes.

A group is closed if its verdict depends on nothing that consumers do; the counts of closed groups
are stored. A run judges the groups of new messages, the groups that are not closed, and those with
letters, conflicts or corrections. Those of them that were closed are judged as they were stored,
too: the counts of such former summaries are subtracted from the stored ones.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from reservation.component import Component
from spark_jobs import fold
from spark_jobs.common import files as data_files
from spark_jobs.common.declaration import categories_of
from spark_jobs.common.errors import StateError
from spark_jobs.session.settings import having
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import Snapshot, parts_of
from spark_jobs.state.folder import (
    FINDINGS,
    MERGED,
    OPEN,
    READ,
    SUMMARIES,
    Head,
    LastingViolations,
    StateFolder,
    StateManifest,
    not_here,
    run_name,
)
from spark_jobs.state.read_positions import ReadPositions
from spark_jobs.verdicts.letter_states import states_of
from spark_jobs.verdicts.rows import Rows
from spark_jobs.verdicts.verdicts import Counts, Judged, added, judge

# More folders of summaries than that are merged into one.
_FOLDERS = 16

_GROUP = ["is_key", "grp"]


def seed_of(state: StateFolder, snapshot: Snapshot) -> int:
    """Return the seed of a state's hashes; begin anew if the server hashes differently now."""
    manifest = state.judged
    if manifest is not None:
        if snapshot.probe(manifest.seed) == manifest.probe:
            return manifest.seed
        state.begin_anew()
    return secrets.randbits(63)


class StateStep:
    """One run, which turns a state into the next.

    Attributes:
        name: the name of its folder.
    """

    def __init__(self, state: StateFolder, rows: Rows, progress: Progress) -> None:
        self._state, self._rows, self._progress = state, rows, progress
        self._facts, self._spark = rows.facts, rows.facts.spark
        heads = self._facts.snapshot.head
        self._heads = {name: Head(*heads(name)) for name in categories_of(self._facts.component)}
        self._before = state.judged
        last = state.manifest
        self._run = 1 if last is None else last.run + 1
        self.name = run_name(self._run)
        self._read_positions = ReadPositions()
        if self._before is not None:
            self._read_positions = read_positions_of(state.folder, self._before)
        self._probe = self._facts.snapshot.probe(self._facts.seed)
        self._closed, self._counts = Counts(), Counts()
        self._summaries = [] if self._before is None else [*self._before.summaries]
        self._judged_with = judged_with(
            self._facts.snapshot, self._facts.component, progress, values=rows.comparison.values
        )
        self._read_to = self._read_positions.head
        late, self._lacking = self._read_positions.compared(self._facts.snapshot)
        archived = map(self._read_positions.missing_from, self._facts.archived(self._read_to))
        self._late, self._new_messages = np.unique(np.concatenate([late, *archived])), 0
        for positions in chain([self._late], self._facts.positions(self._read_to)):
            self._read_positions.add(positions)
            self._new_messages += len(positions)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self._state.folder / self.name

    def unchanged(self) -> tuple[Counts, DataFrame] | None:
        """Return the counts and findings of the last run, if nothing has changed since."""
        before = self._before
        differs = self._new_messages or self._lacking
        if before is None or differs or before.judged_with != self._judged_with:
            return None
        return counts_of(before.counts), self._read(before.findings)

    def judge(self) -> Judged:
        """Read new messages, merge and judge."""
        self._state.begin(self._run)
        return self._merged(self._new(), self._facts.passes())

    def _merged(self, new: DataFrame | None, passes: DataFrame | None) -> Judged:
        summaries = [] if new is None else [new]
        folded = None if passes is None else fold.fold(passes, self._facts.number)
        if self._before is not None:
            not_closed, again = self._not_closed(), self._judged_again(new)
            stored = self._read(*self._before.summaries)
            summaries.append(fold.stored(stored, again, not_closed))
            self._closed = counts_of(self._before.closed)
            if folded is not None:
                folded = folded.join(again, _GROUP, "left_semi")
        if new is not None:
            self._summaries.append(f"{self.name}/{SUMMARIES}")
        summaries += [] if folded is None else [folded]
        if self._before is None and len(summaries) == 1:  # one fold has made them
            merged = fold.divided(summaries[0], self._parts)
        else:
            merged = fold.merged(*summaries, parts=self._parts)
        judged = judge(merged, self._rows, self._progress, lists=True)
        judged.groups.write.parquet(str(self.folder / OPEN))
        self._closed = added(self._closed, judged.closed)
        self._counts = added(self._closed, judged.others)
        return replace(judged, closed=self._closed)

    @property
    def _parts(self) -> int:
        """The number of parts that merged groups are split into."""
        return parts_of(self._new_messages) if self._before is not None else self._facts.number

    def store_findings(self, findings: DataFrame, plan: Mapping[str, str]) -> DataFrame:
        """Write the rows of findings, planned with these properties, and return them."""
        with having(self._spark, plan):
            findings.write.parquet(str(self.folder / FINDINGS))
        return self._read(f"{self.name}/{FINDINGS}")

    def _new(self) -> DataFrame | None:
        """Write the summaries of new messages; None if there are none."""
        if not self._new_messages and self._before is not None:
            return None
        facts = self._facts.all(
            after=dict.fromkeys(categories_of(self._facts.component), self._read_to)
        )
        if len(self._late):
            table = pa.table({"position": pa.array(self._late, pa.int64())})
            facts = facts.unionByName(self._facts.at(self._spark.createDataFrame(table)))
        place = self.folder / SUMMARIES
        fold.fold(facts, self._parts).write.parquet(str(place))
        if not [*data_files.data_files(place)]:
            raise not_here(place)
        return self._read(f"{self.name}/{SUMMARIES}")

    def _judged_again(self, new: DataFrame | None) -> DataFrame:
        """Return the groups that are judged again."""
        groups = self._not_closed()
        if new is not None:
            groups = groups.unionByName(new.select(*_GROUP))
        states = states_of(self._spark, self._progress)
        with_letters = self._rows.with_letters(states, self._progress)
        return groups.unionByName(with_letters.selectExpr("true AS is_key", "grp"))

    def _not_closed(self) -> DataFrame:
        assert self._before is not None  # noqa: S101  there are earlier runs
        return self._read(self._before.open)

    def _read(self, *names: str) -> DataFrame:
        return rows_in(self._state, self._spark, *names)

    def commit(self, lasting: LastingViolations | None = None) -> None:
        """Make what was read and judged the state."""
        self.merge_folders()
        (self.folder / READ).mkdir(mode=0o700)
        self._read_positions.store(self.folder / READ / "positions.parquet")
        self._put(lasting)

    def merge_folders(self) -> None:
        """Merge the summaries of many runs into one folder."""
        if len(self._summaries) > _FOLDERS:
            merged = fold.merged(self._read(*self._summaries), parts=self._facts.number)
            merged.write.parquet(str(self.folder / MERGED))
            self._summaries = [f"{self.name}/{MERGED}"]

    def _put(self, lasting: LastingViolations | None) -> None:
        last = self._state.manifest
        self._state.put(
            StateManifest(
                run=self._run,
                heads=self._heads,
                seed=self._facts.seed,
                probe=self._probe,
                summaries=self._summaries,
                closed=_stored(self._closed),
                counts=_stored(self._counts),
                judged_with=self._judged_with,
                store=self._facts.snapshot.store,
                lasting=lasting or (None if last is None else last.lasting),
            )
        )


def rows_in(state: StateFolder, spark: SparkSession, *names: str) -> DataFrame:
    """Return the rows in folders of a state; no job looks their columns up."""
    places = [state.folder / name for name in names]
    columns = from_arrow_schema(pq.read_schema(data_files.paths(*places)[0]))
    return spark.read.schema(columns).parquet(*map(str, places))


def read_positions_of(folder: Path, manifest: StateManifest) -> ReadPositions:
    """Return the positions that a state has read."""
    (path,) = data_files.paths(folder / manifest.read)
    return ReadPositions.stored(path)


def check(state: StateFolder, snapshot: Snapshot, progress: Progress, *, is_archived: bool) -> None:
    """Make sure that a state belongs to the store, which holds what has to be read again."""
    manifest = state.manifest
    if manifest is None:
        return
    deleted = {message_id for _, _, message_id in progress.deleted}
    state.check(
        {
            name: head.message_id is None
            or head.message_id in deleted
            or snapshot.holds(head.position, head.message_id)
            for name, head in manifest.heads.items()
        },
        snapshot.store,
    )
    if state.judged is None and not is_archived:
        _, lacking = read_positions_of(state.folder, manifest).compared(snapshot)
        if lacking:
            raise StateError(
                f"The state in {state.folder} was judged when the component declared other keys, "
                f"messages or handlers, so everything is read again, and the store lacks "
                f"{lacking:,} of the messages that it has read; read their archive too, or name "
                f"another folder"
            )


def judged_with(
    snapshot: Snapshot, component: Component, progress: Progress, *, values: bool
) -> str:
    """Return a digest of what verdicts depend on beside the log: progress, passes and `values`."""
    of = progress, progress.corrections, progress.given
    inputs = repr((of, snapshot.passes(component.name), values))
    return hashlib.sha256(inputs.encode()).hexdigest()


def _stored(counts: Counts) -> dict[str, dict[str, int]]:
    return {
        str(code): {name: number for name, number in numbers.items() if number}
        for code, numbers in counts.items()
    }


def counts_of(stored: Mapping[str, Mapping[str, int]]) -> Counts:
    """Return counts as a manifest has them."""
    return Counts({int(code): Counter(numbers) for code, numbers in stored.items()})
