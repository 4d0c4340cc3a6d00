"""The facts of an archive and of the store, as those of one log."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc
from pyarrow.dataset import dataset
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom

from spark_jobs.archive.union import Union
from spark_jobs.common.declaration import categories_of
from spark_jobs.facts.archived import NEEDED, Maker
from spark_jobs.facts.query import FACT
from spark_jobs.facts.reader import FOLDED, Facts
from spark_jobs.snapshot.snapshot import PositionArray
from spark_jobs.source.columns import schema


@dataclass(frozen=True, slots=True)
class ArchivedFacts(Facts):
    """Reads the facts of a component from an archive and a snapshot of the store.

    Attributes:
        union: reads columns of both.
    """

    union: Union

    @property
    def number(self) -> int:
        """Into how many parts the facts of everything are divided."""
        return self.snapshot.number_of_parts(sum(self.union.archive.counts.values()))

    def all(
        self, columns: Sequence[str] = FOLDED, after: Mapping[str, int] | None = None
    ) -> DataFrame:
        """Return the facts of all messages behind some global position of each category."""
        after, categories = after or {}, categories_of(self.component)
        archived = self._archived(self.union.archived(after), columns)
        late = Facts.at(self, self.union.late(after, categories), columns)
        stored = Facts.all(self, columns, self.union.behind(after))
        return archived.unionByName(stored).unionByName(late)

    def between(
        self, after: Mapping[str, int], until: Mapping[str, int], columns: Sequence[str] = FOLDED
    ) -> DataFrame:
        """Return the facts of categories behind some global positions, and up to others."""
        archived = self.union.archived(after).where(F.col("category").isin(*until))
        found = self._archived(archived, columns)
        stored = Facts.between(self, after, until, columns)
        return found.join(stored, "position", "left_anti").unionByName(stored)

    def at(
        self, positions: DataFrame, columns: Sequence[str] = FOLDED, *, required: bool = False
    ) -> DataFrame:
        """Return the facts of the messages at the positions in the one column of a DataFrame.

        It can be required that none is missing.
        """
        positions = positions.toDF("global_position")
        archived = self.union.archived({}).join(positions, "global_position", "left_semi")
        others = positions.join(archived.select("global_position"), "global_position", "left_anti")
        stored = Facts.at(self, others, columns, required=required)
        return self._archived(archived, columns).unionByName(stored)

    def positions(self, head: int) -> Iterator[PositionArray]:
        """Yield the global positions of all messages behind one, in the archive or the store."""
        yield from self._in_files(pc.field("global_position") > head)
        yield from Facts.positions(self, head)

    def archived(self, last: int) -> Iterator[PositionArray]:
        """Yield the global positions up to one of the messages that are in the archive."""
        yield from self._in_files(pc.field("global_position") <= last)

    def _in_files(self, condition: pc.Expression) -> Iterator[PositionArray]:
        files = dataset(self.union.archive.files, format="parquet")
        for batch in files.to_batches(columns=["global_position"], filter=condition):
            yield batch.column(0).to_numpy()

    def _archived(self, messages: DataFrame, columns: Sequence[str]) -> DataFrame:
        made = self.union.columns(messages, categories_of(self.component), NEEDED)
        maker = Maker(
            self.app,
            self.app_dir,
            self.seed,
            tuple(columns),
            by_time=not self.snapshot.has_positions,
        )
        return made.mapInArrow(maker, schema({name: FACT[name] for name in columns}))
