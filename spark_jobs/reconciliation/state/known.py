"""The fingerprints that a state keeps of all messages that its runs have read, as Parquet.

Each has the group that each job puts it in, which no progress of the consumers changes. So the
groups that new messages belong to are found by reading one column.
"""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.sketches.grouping import Batches, Function
from spark_jobs.analysis.sketches.marks import Numbers
from spark_jobs.analysis.sketches.sketch import Sketch
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.reconciliation.reading.fingerprinting import SCHEMA, Fingerprinting

# How many messages a part of a file holds, each of which is read by itself.
_ROWS = 100_000


def group(job: str) -> str:
    """Return the name of the column with the group that a job puts a message in."""
    return f"group_{job}"


def grouped(table: pa.Table, sketches: Mapping[str, Sketch]) -> pa.Table:
    """Add the group of each message to fingerprints."""
    for job, sketch in sketches.items():
        table = table.append_column(group(job), grouping.groups_of(table, sketch))
    return table


def write(table: pa.Table, path: Path) -> None:
    """Write a table to a file."""
    with _writing(path, table.schema) as writer:
        writer.write_table(table, _ROWS)


@contextmanager
def _writing(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """Open a file to write, which is there once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    # Hashes have nearly no equal values, so dictionaries are useless.
    with pq.ParquetWriter(beside, schema, use_dictionary=False) as writer:
        yield writer
    beside.replace(path)


def write_by_workers(made: Fingerprinting, sketches: Mapping[str, Sketch], folder: Path) -> int:
    """Have Spark's workers write fingerprints to a folder, a file for each part."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = made.apply(partial(_written, dict(sketches), str(folder)), "rows bigint").collect()
    return sum(row["rows"] for row in rows)


def combine(files: Sequence[Path], path: Path) -> None:
    """Write the fingerprints in some files to one."""
    with _writing(path, pq.read_schema(files[0])) as writer:
        for file in files:
            with pq.ParquetFile(file) as opened:
                for batch in opened.iter_batches(_ROWS):
                    writer.write_batch(batch)


def _written(
    sketches: Mapping[str, Sketch], folder: str, batches: Batches
) -> Iterator[pa.RecordBatch]:
    """Write what a task reads; a task that runs once more replaces its file by an equal one."""
    read = list(batches)
    context = TaskContext.get()
    assert context is not None  # noqa: S101  Spark's workers have one
    if read:
        table = grouped(pa.Table.from_batches(read).cast(SCHEMA), sketches)
        write(table, Path(folder) / f"part-{context.partitionId():05}.parquet")
        yield pa.RecordBatch.from_pydict({"rows": [len(table)]})


class Known:
    """The fingerprints in some files."""

    def __init__(self, files: Sequence[Path], jobs: Sequence[str]) -> None:
        self._files = list(files)
        self._jobs = list(jobs)

    @property
    def schema(self) -> pa.Schema:
        """The columns: those of fingerprints, and the groups of the jobs."""
        return pa.schema([*SCHEMA, *((group(job), pa.int64()) for job in self._jobs)])

    def count(self) -> int:
        """Return how many there are."""
        return sum(pq.read_metadata(file).num_rows for file in self._files)

    def table(self) -> pa.Table:
        """Return all of them."""
        read = [pq.read_table(file, schema=self.schema) for file in self._files]
        return pa.concat_tables([self.schema.empty_table(), *read])

    def at(self, positions: Numbers) -> pa.Table:
        """Return those of messages at some global positions."""
        return self._where({"global_position": positions})

    def around(self, job: str, groups: Numbers) -> pa.Table:
        """Return those in some groups of a job."""
        return self._where({group(job): groups})

    def _where(self, wanted: Mapping[str, Numbers]) -> pa.Table:
        """Return the rows in which one of some columns has one of some values."""
        values = {name: np.unique(of) for name, of in wanted.items() if len(of)}
        parts = [(file, part) for file in self._files for part in _parts(file, values)]
        if not parts:
            return self.schema.empty_table()
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            found = threads.map(partial(_chosen, values, self.schema), *zip(*parts, strict=True))
            return pa.concat_tables([self.schema.empty_table(), *found])

    def apply(self, spark: SparkSession, function: Function, schema: str) -> DataFrame:
        """Apply a function on Spark's workers to the batches of all fingerprints."""
        files = [str(file) for file in self._files]
        numbers = spark.range(0, len(files), 1, max(1, len(files)))
        return numbers.mapInArrow(partial(_of_files, files, function), schema)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return them as a DataFrame."""
        if not self._files:
            return spark.createDataFrame(SCHEMA.empty_table())
        schema = ", ".join(f"{name} {type_}" for name, type_ in fingerprints.TYPES.items())
        return spark.read.schema(schema).parquet(*map(str, self._files))


def _parts(file: Path, values: Mapping[str, Numbers]) -> Iterator[int]:
    """Yield which parts of a file may hold one of some values, by their lowest and highest ones."""
    metadata = pq.read_metadata(file)
    places = {name: metadata.schema.names.index(name) for name in values}
    for part in range(metadata.num_row_groups):
        columns = metadata.row_group(part)
        if any(
            _may_hold(columns.column(at).statistics, values[name]) for name, at in places.items()
        ):
            yield part


def _may_hold(statistics: pq.Statistics | None, values: Numbers) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    first = np.searchsorted(values, statistics.min)
    return bool(first < np.searchsorted(values, statistics.max, "right"))


def _chosen(values: Mapping[str, Numbers], schema: pa.Schema, file: Path, part: int) -> pa.Table:
    """Return the chosen rows of a part of a file, of which the other columns are read only then."""
    with pq.ParquetFile(file) as opened:
        asked = opened.read_row_group(part, list(values), use_threads=False)
        is_wanted = np.zeros(len(asked), bool)
        for name, wanted in values.items():
            found = pc.is_in(asked[name], value_set=pa.array(wanted))
            is_wanted |= found.combine_chunks().to_numpy(zero_copy_only=False)
        if not is_wanted.any():
            return schema.empty_table()
        table = opened.read_row_group(part, use_threads=False)
        return table.select(schema.names).cast(schema).filter(pa.array(is_wanted))


@dataclass(frozen=True, slots=True)
class Watched:
    """The messages of a job's groups that may change although no message of them is new.

    Attributes:
        positions: their global positions.
        rows: their fingerprints; None if they are many.
    """

    positions: Numbers
    rows: pa.Table | None

    @classmethod
    def read(cls, files: Sequence[Path]) -> "Watched":
        """Return those that a run has written."""
        table = pa.concat_tables([pq.read_table(file) for file in files])
        positions: Numbers = table["global_position"].to_numpy()
        return cls(positions, table if table.num_columns > 1 else None)

    def write(self, folder: Path) -> None:
        """Write them for the next run."""
        of_many = pa.table({"global_position": self.positions})
        write(of_many if self.rows is None else self.rows, folder / "rows.parquet")


def _of_files(
    files: Sequence[str], function: Function, numbers: Batches
) -> Iterator[pa.RecordBatch]:
    """Apply a function to the fingerprints in those files whose numbers are given."""
    wanted = chain.from_iterable(batch.column(0).to_pylist() for batch in numbers)
    return function(chain.from_iterable(pq.read_table(files[n]).to_batches() for n in wanted))
