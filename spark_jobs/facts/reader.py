"""Reading facts, in ranges of global positions or at some of them, on Spark's workers.

The rows come as Arrow, and nothing but keys that only the component's own code makes passes through
Python.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from reservation.component import Component
from reservation.declaration.table import declarations
from spark_jobs.common.declaration import Declaration, categories_of
from spark_jobs.facts import keys
from spark_jobs.facts.codes import Codes
from spark_jobs.facts.hashing import hashed
from spark_jobs.facts.query import FACT, OF_CODE, FactsQuery, PassFactsQuery
from spark_jobs.session.session import parallelism
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import PositionArray, Snapshot
from spark_jobs.source import reading
from spark_jobs.source.columns import CategoryQuery, schema
from spark_jobs.source.options import arrow_schema

# Ranges for each core, so that the others need not wait for a slow one.
_RANGES = 2

# What the fold reads.
FOLDED = ("position", "code", "key", "digest", "cause", "kind", "cardinal")


@dataclass(frozen=True, slots=True)
class Facts:
    """Reads the facts of a component from one snapshot of the store.

    Attributes:
        spark: the session.
        snapshot: what is read.
        component: whose messages they are.
        app, app_dir: the app path by which Spark's workers find it, and its folder; None where its
            modules were sent to them.
        seed: of the hashes.
        progress: how far the consumers are; None if the facts are stored.
    """

    spark: SparkSession
    snapshot: Snapshot
    component: Component
    app: str
    app_dir: Path | None
    seed: int
    progress: Progress | None

    @property
    def folded(self) -> tuple[str, ...]:
        """The columns that are folded: without the cardinal ids where nothing depends on them."""
        progress = self.progress
        if progress is None or not self.snapshot.has_positions:
            return FOLDED
        if any(map(progress.uneven, progress.consumed)):
            return FOLDED
        return tuple(name for name in FOLDED if name != "cardinal")

    @property
    def number(self) -> int:
        """Into how many parts the facts of everything are divided."""
        return self.snapshot.number_of_parts()

    def all(
        self, columns: Sequence[str] = FOLDED, after: Mapping[str, int] | None = None
    ) -> DataFrame:
        """Return the facts of all messages behind some global position of each category."""
        return self._parts(self._queries(columns), columns, after or {}, {})

    def passes(
        self, columns: Sequence[str] = FOLDED, after: Mapping[str, int] | None = None
    ) -> DataFrame | None:
        """Return the facts of passes, of messages behind some global position of each category.

        They are None if the component subscribes to nothing.
        """
        subscribed = declarations(self.component).subscribed_categories
        if not (subscribed and self.snapshot.has_positions):
            return None
        declaration, consumer = Declaration.of(self.component), self.component.name
        queries = [
            PassFactsQuery(one, self._read(columns), declaration, consumer=consumer)
            for one in subscribed
        ]
        return self._parts(queries, columns, after or {}, {})

    def folded_together(self, after: Mapping[str, int] | None = None) -> DataFrame:
        """Return what is folded: the facts of messages, as of `all`, and those of their passes."""
        found, passes = self.all(self.folded, after), self.passes(self.folded, after)
        return found if passes is None else found.unionByName(passes)

    def between(
        self, after: Mapping[str, int], until: Mapping[str, int], columns: Sequence[str] = FOLDED
    ) -> DataFrame:
        """Return the facts of categories behind some global positions, and up to others."""
        queries = [one for one in self._queries(columns) if one.category in until]
        return self._parts(queries, columns, after, until)

    def at(
        self, positions: DataFrame, columns: Sequence[str] = FOLDED, *, required: bool = False
    ) -> DataFrame:
        """Return the facts of the messages at the positions in the one column of a DataFrame.

        It can be required that none is missing.
        """
        composed = [one.composed() for one in self._queries(columns)]
        read = partial(reading.chosen, composed, self.snapshot.id, self._arrow(columns))
        if required:
            read = partial(reading.require_all, read)
        return self._frame(positions, read, columns)

    def of_streams(
        self,
        names: DataFrame,
        categories: Sequence[str],
        columns: Sequence[str],
        *,
        first: int = 1,
        last: int,
    ) -> DataFrame:
        """Return the facts in a range of the streams in the one column of a DataFrame.

        Those of other categories are left out.
        """
        wanted = [one for one in self._queries(columns) if one.category in categories]
        composed = [one.composed() for one in wanted]
        of = (composed, first, last, self.snapshot.id, self._arrow(columns))
        return self._frame(names, partial(reading.of_streams, *of), columns)

    def positions(self, head: int) -> Iterator[PositionArray]:
        """Yield the global positions of all messages of the log behind one."""
        return self.snapshot.positions_behind(head)

    def archived(self, last: int) -> Iterator[PositionArray]:
        """Yield the global positions up to one of the messages that are in an archive: none."""
        del last
        yield from ()

    def _parts(
        self,
        queries: Sequence[CategoryQuery],
        columns: Sequence[str],
        after: Mapping[str, int],
        until: Mapping[str, int],
    ) -> DataFrame:
        number = _RANGES * parallelism(self.spark)
        texts = self.snapshot.parts(queries, number, after=after, until=until)
        read = partial(reading.parts, texts, self.snapshot.id, self._arrow(columns))
        numbers = self.spark.range(0, len(texts), 1, max(1, len(texts)))
        return self._frame(numbers, read, columns)

    def _frame(self, rows: DataFrame, read: keys.Function, columns: Sequence[str]) -> DataFrame:
        types = {name: FACT[name] for name in columns}
        made = partial(_finished, read, arrow_schema(types), self.app, self.app_dir, self.seed)
        return rows.mapInArrow(made if self._of_code(columns) else read, schema(types))

    def _read(self, columns: Sequence[str]) -> list[str]:
        """Return what is read for columns."""
        return [*columns, *self._of_code(columns)]

    def _of_code(self, columns: Sequence[str]) -> list[str]:
        """Return what is read for keys that only the component's own code makes."""
        by_function = Declaration.of(self.component).by_function
        return [*OF_CODE] if by_function and "key" in columns else []

    def _arrow(self, columns: Sequence[str]) -> pa.Schema:
        types = {**FACT, **OF_CODE}
        return arrow_schema({name: types[name] for name in self._read(columns)})

    def _queries(self, columns: Sequence[str]) -> list[FactsQuery]:
        names = self._read(columns)
        codes, declaration = Codes.of(self.component), Declaration.of(self.component)
        return [
            FactsQuery(
                category,
                names,
                declaration,
                codes=codes,
                seed=self.seed,
                progress=self.progress,
                by_time=not self.snapshot.has_positions,
            )
            for category in categories_of(self.component)
        ]


def _finished(
    read: keys.Function,
    schema_: pa.Schema,
    app: str,
    app_dir: Path | None,
    seed: int,
    rows: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Make the keys that only the component's own code makes."""
    for batch in read(rows):
        made = hashed(keys.keys(app, app_dir, *(batch.column(name) for name in OF_CODE)), seed)
        key = pa.compute.if_else(
            batch.column("function_data").is_valid(), made, batch.column("key")
        )
        columns = [key if name == "key" else batch.column(name) for name in schema_.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema_)
