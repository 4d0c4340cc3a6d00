"""The rows that are not in order, with their verdicts, as one run leaves them to the next.

Where they are few, this process keeps them, and only the rows of groups that have changed are
judged again. The others keep their verdicts, and what they add to the counts. Where they are many,
Spark judges all of them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.analysis.sketches.marks import Numbers
from spark_jobs.analysis.verdicts.judging import (
    FOUND,
    PAIR,
    Counts,
    Job,
    Lookup,
    pairs_of,
    with_alike,
)
from spark_jobs.common import files as data_files
from spark_jobs.common.caching import kept_on_disk, unpersisted
from spark_jobs.reconciliation.state import known
from spark_jobs.snapshot.progress import Progress

# The column with what a row adds to the counts.
_COUNTED = "counted"

_COMPARED = "global_position bigint, compared_with bigint, same boolean"


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The pairs of messages that were compared by what they mean.

    Attributes:
        spark: the session.
        home: the folder of the state.
        names: the folders in it with the pairs; the last ones are of this run.
    """

    spark: SparkSession
    home: Path
    names: list[str]

    def frame(self) -> DataFrame:
        """Return the pairs, with whether both mean the same."""
        folders = [str(self.home / name) for name in self.names]
        return self.spark.read.schema(_COMPARED).parquet(*folders)

    def pairs(self) -> pa.Table:
        """Return the pairs, read by this process."""
        files = data_files.paths(*(self.home / name for name in self.names))
        return pa.concat_tables([pq.read_table(file, columns=list(PAIR)) for file in files])

    def unknown(self, pairs: DataFrame) -> DataFrame:
        """Return those of some pairs that were not compared."""
        return pairs.join(self.frame(), list(PAIR), "left_anti") if self.names else pairs

    def marked(self, rows: DataFrame) -> DataFrame:
        """Mark rows that were found to mean the same as others."""
        return with_alike(rows, self.frame()) if self.names else rows

    def combine(self, name: str) -> None:
        """Write all pairs to one folder, which takes the place of the others."""
        self.frame().write.mode("overwrite").parquet(str(self.home / name))
        self.names[:] = [name]


@dataclass(frozen=True, slots=True)
class InDoubt:
    """Judges the rows of a job that are not in order.

    Attributes:
        spark: the session.
        job: the job.
        progress: how far the consumers are.
        comparisons: the pairs of messages that were compared.
        before: the folder with the rows that the last run has judged; None without one.
        folder: where rows are written to.
        compared: the name of the folder for the pairs that are compared.
    """

    spark: SparkSession
    job: Job
    progress: Progress
    comparisons: Comparisons
    before: Path | None
    folder: Path
    compared: str

    def judge_few(
        self, lookup: Lookup, doubtful: Numbers, changed: Numbers | None
    ) -> tuple[Counts, DataFrame]:
        """Judge those that are read now, or are of groups that have changed."""
        kept = self._kept(doubtful)
        at = np.empty(0, np.int64) if kept is None else kept["global_position"].to_numpy()
        missing = np.setdiff1d(doubtful, at)
        is_changed = np.isin(at, changed) if changed is not None else np.ones(len(at), bool)
        if kept is None or len(missing) or is_changed.any():
            again = None if kept is None else kept.filter(pa.array(is_changed))
            judged = self._judge_again(lookup, missing, again)
            if kept is not None:
                others = kept.filter(pa.array(~is_changed)).select(judged.schema.names)
                judged = pa.concat_tables([judged, others.cast(judged.schema)])
            kept = judged
        known.write(kept, self.folder / "rows.parquet")
        found = kept.filter(pc.greater(pc.list_value_length(kept["findings"]), 0))
        return _sums(kept), self._frame(found.select([*FOUND, "group"]))

    def _kept(self, doubtful: Numbers) -> pa.Table | None:
        """Return those of the rows that the last run has judged that are not in order now."""
        if self.before is None:
            return None
        table = pa.concat_tables(
            [
                pq.read_table(file, coerce_int96_timestamp_unit="us")
                for file in data_files.paths(self.before)
            ]
        )
        place = table.schema.get_field_index("time")
        table = table.set_column(place, "time", table["time"].cast(pa.timestamp("us", tz="UTC")))
        return table.filter(pc.is_in(table["global_position"], value_set=pa.array(doubtful)))

    def _judge_again(self, lookup: Lookup, missing: Numbers, again: pa.Table | None) -> pa.Table:
        """Judge rows that are read now, and those that were judged before."""
        rows = self.job.rows(lookup(self._frame(pa.table({"global_position": missing}))))
        if again is not None and len(again):
            schema = to_arrow_schema(rows.schema, timezone="UTC")
            before = self._frame(again.select(schema.names).cast(schema), rows.schema)
            rows = before.unionByName(rows) if len(missing) else before
        judged = self._judged(rows).toArrow()
        return self._judged(rows).toArrow() if self._has_alike(judged, lookup) else judged

    def _has_alike(self, judged: pa.Table, lookup: Lookup) -> bool:
        """Compare what differs and was never compared; return whether any of it means the same."""
        comparison = self.job.comparison
        if comparison is None:
            return False
        pairs = judged.filter(judged["compared_with"].is_valid()).select(PAIR)
        pairs = pairs.group_by(PAIR).aggregate([])
        if self.comparisons.names:
            pairs = pairs.join(self.comparisons.pairs(), list(PAIR), join_type="left anti")
        if not len(pairs):
            return False
        compared = comparison.compared(self._frame(pairs), lookup, self.progress.given)
        table = compared.toArrow()
        known.write(table, self.comparisons.home / self.compared / "pairs.parquet")
        self.comparisons.names.append(self.compared)
        return bool(pc.any(table["same"]).as_py())

    def judge(self, lookup: Lookup, doubtful: DataFrame) -> tuple[Counts, DataFrame]:
        """Judge all of them."""
        rows = self.job.rows(lookup(doubtful))
        if self.before is not None:
            kept = self.spark.read.schema(rows.schema).parquet(str(self.before))
            kept = kept.join(doubtful, "global_position", "left_semi")
            others = doubtful.join(kept.select("global_position"), "global_position", "left_anti")
            rows = kept.unionByName(self.job.rows(lookup(others)))
        counts, judged = self._write(rows)
        comparison = self.job.comparison
        if comparison is None or not comparison.is_needed(counts):
            return counts, judged
        pairs = kept_on_disk(self.comparisons.unknown(pairs_of(judged)))
        with unpersisted([pairs]):
            if not pairs.count():
                return counts, judged
            compared = comparison.compared(pairs, lookup, self.progress.given)
            compared.write.mode("overwrite").parquet(str(self.comparisons.home / self.compared))
        self.comparisons.names.append(self.compared)
        if not self.comparisons.frame().where("same").count():
            return counts, judged
        return self._write(rows)

    def _write(self, rows: DataFrame) -> tuple[Counts, DataFrame]:
        judged = self._judged(rows)
        judged.write.mode("overwrite").parquet(str(self.folder))
        judged = self.spark.read.schema(judged.schema).parquet(str(self.folder))
        counted = [F.sum(f"{_COUNTED}.`{name}`").alias(name) for name in self.job.counts()]
        sums = judged.agg(*counted).collect()[0]
        return {name: int(sums[name] or 0) for name in self.job.counts()}, judged

    def _judged(self, rows: DataFrame) -> DataFrame:
        """Return rows with their verdicts, and what they add to the counts."""
        judged = self.job.judge(self.progress.marked(self.comparisons.marked(rows)))
        more = [] if self.job.comparison is None else ["compared_with"]
        counted = [count.cast("bigint").alias(name) for name, count in self.job.counts().items()]
        columns = dict.fromkeys([*rows.columns, *FOUND, *more])
        return judged.select(*columns, F.struct(*counted).alias(_COUNTED))

    def _frame(self, table: pa.Table, schema: StructType | None = None) -> DataFrame:
        # Spark does not take columns without any chunk.
        whole = table.combine_chunks() if len(table) else table.schema.empty_table()
        return self.spark.createDataFrame(whole, schema)


def _sums(judged: pa.Table) -> Counts:
    """Return the sums of what rows add to the counts."""
    counted = judged[_COUNTED].combine_chunks()
    return {
        field.name: pc.sum(values).as_py() or 0
        for field, values in zip(counted.type, counted.flatten(), strict=True)
    }
