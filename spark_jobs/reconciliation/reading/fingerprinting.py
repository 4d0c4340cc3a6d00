"""Reading messages as fingerprints, which the server makes if it can, and else Spark."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from reservation.component import Component
from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.sketches.grouping import Function
from spark_jobs.analysis.sketches.sketch import Sketch
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.analysis.verdicts.judging import Lookup, Read
from spark_jobs.common.declaration import sources_of
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.session.session import parallelism
from spark_jobs.snapshot.progress import Progress
from spark_jobs.source import reading
from spark_jobs.source.columns import CategoryQuery, schema
from spark_jobs.source.options import arrow_schema

SCHEMA = arrow_schema(fingerprints.TYPES)

# How many messages one query looks up by their positions.
_AT_ONCE = 10_000


class Fingerprinting(Protocol):
    """Reads messages as fingerprints."""

    def apply(self, function: Function, schema: str) -> DataFrame:
        """Apply a function on Spark's workers to the batches of fingerprints; see `grouping`."""

    def table(self) -> pa.Table:
        """Return the fingerprints, read by this process."""

    def at(self, positions: Sequence[int]) -> pa.Table:
        """Return those of the messages at some global positions, wherever they are."""


@dataclass(frozen=True, slots=True)
class ServerFingerprints:
    """Fingerprints that the server makes; see `Fingerprinting`.

    Attributes:
        read: reads the categories.
        component: the component whose categories they are.
        progress: how far the consumers are that they will be marked with; None if they are kept.
        seed: of the hashes.
    """

    read: Categories
    component: Component
    progress: Progress | None
    seed: int

    def apply(self, function: Function, schema: str) -> DataFrame:
        """Apply a function on Spark's workers."""
        return self._apply(self.read.parts(self._queries()), function, schema)

    def _apply(self, parts: Sequence[str], function: Function, schema: str) -> DataFrame:
        read = partial(reading.parts, parts, self.read.snapshot.id, SCHEMA)
        return self.read.rows_of_parts(parts).mapInArrow(partial(_both, read, function), schema)

    def table(self) -> pa.Table:
        """Return the fingerprints, read by this process."""
        return self._read(self.read.parts(self._queries(), 1))

    def at(self, positions: Sequence[int]) -> pa.Table:
        """Return those of some messages."""
        composed = [query.composed() for query in self._queries()]
        return self._read(
            query.at(positions[first : first + _AT_ONCE])
            for first in range(0, len(positions), _AT_ONCE)
            for query in composed
        )

    def seen(self, sketches: Sequence[Sketch]) -> DataFrame:
        """Return what is seen of groups by the fingerprints (`grouping.summed`)."""
        if self.read.is_here:
            table = self.table()
            return self.read.spark.createDataFrame(
                grouping.summed_here([table] * len(sketches), sketches)
            )
        parts = self.read.parts(self._queries())
        number = max(len(parts), parallelism(self.read.spark))
        return grouping.summed(partial(self._apply, parts), sketches, number)

    def _read(self, queries: Iterator[str] | Sequence[str]) -> pa.Table:
        return pa.Table.from_batches(self.read.batches(queries, SCHEMA), SCHEMA)

    def _queries(self) -> list[CategoryQuery]:
        return [
            fingerprints.query_of(
                name, self.read.declaration, self.component, self.seed, self.progress
            )
            for name in self.read.snapshot.readable(sources_of(self.component))
        ]


@dataclass(frozen=True, slots=True)
class SparkFingerprints:
    """Fingerprints that Spark makes of columns, and are kept; see `Fingerprinting`.

    Attributes:
        read: reads the messages.
        lookup: reads some messages, wherever they are.
        frame: makes a DataFrame of a table.
        component: whose messages they are.
        app, app_dir: the app path by which Spark's workers find the component, and its folder; None
            if its modules were sent to them.
        seed: of the hashes.
    """

    read: Read
    lookup: Lookup
    frame: Callable[[pa.Table], DataFrame]
    component: Component
    app: str
    app_dir: Path | None
    seed: int

    def apply(self, function: Function, schema: str) -> DataFrame:
        """Apply a function on Spark's workers."""
        return self._of(self.read).mapInArrow(function, schema)

    def table(self) -> pa.Table:
        """Return the fingerprints, collected by this process."""
        return self._of(self.read).toArrow().cast(SCHEMA)

    def at(self, positions: Sequence[int]) -> pa.Table:
        """Return those of some messages."""
        chosen = self.frame(pa.table({"global_position": pa.array(positions, pa.int64())}))
        return self._of(self.lookup(chosen)).toArrow().cast(SCHEMA)

    def _of(self, read: Read) -> DataFrame:
        return fingerprints.of_messages(
            read, self.component, None, self.app, self.app_dir, self.seed
        )


def frame_of(made: Fingerprinting) -> DataFrame:
    """Return fingerprints as a DataFrame."""
    return made.apply(grouping.as_they_are, schema(fingerprints.TYPES))


def _both(
    read: Function, function: Function, batches: grouping.Batches
) -> Iterator[pa.RecordBatch]:
    return function(read(batches))
