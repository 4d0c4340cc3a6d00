"""Sum up sketches by group on Spark's workers, column by column.

A message's numbers travel between workers in blocks, so that Spark moves few values and Arrow does
the work. Groups whose sums show the same are counted together: of millions of groups a few rows
remain, with the positions of their messages. Neither a block nor a row is large, because Java keeps
several copies of each value that it moves.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from spark_jobs.analysis.sketches.marks import Numbers
from spark_jobs.analysis.sketches.sketch import Sketch

Batches = Iterable[pa.RecordBatch]
Function = Callable[[Batches], Iterator[pa.RecordBatch]]

# The most messages of a block and of a row of positions, and how many rows are sent together.
_MOST_OF_BLOCK, _MOST_OF_ROW, _ROWS = 4_096, 16_384, 8

_BLOCKS = "job int, part int, block binary"
_BLOCK_SCHEMA = pa.schema([("job", pa.int32()), ("part", pa.int32()), ("block", pa.binary())])


def columns_of(sketches: Sequence[Sketch]) -> list[str]:
    """Return the columns that are seen of groups, of all sketches."""
    return list(dict.fromkeys(name for one in sketches for name in one.columns))


def summed(
    apply: Callable[[Function, str], DataFrame], sketches: Sequence[Sketch], parts: int
) -> DataFrame:
    """Return what is seen of groups."""
    schema = ", ".join(f"{field.name} {_TYPES[field.type]}" for field in _schema(sketches))
    blocks = apply(partial(_divided, sketches, parts), _BLOCKS)
    return blocks.repartitionById(parts, "part").mapInArrow(partial(_counted, sketches), schema)


def summed_here(tables: Sequence[pa.Table], sketches: Sequence[Sketch]) -> pa.Table:
    """Return the same, computed by this process."""
    schema = _schema(sketches)
    numbers = (sketch.of(table) for sketch, table in zip(sketches, tables, strict=True))
    found = (
        batch
        for job, (sketch, of) in enumerate(zip(sketches, numbers, strict=True))
        if len(of)
        for batch in _rows_of_each(job, sketch, of, schema)
    )
    return pa.Table.from_batches(found, schema)


def groups_of(table: pa.Table, sketch: Sketch) -> pa.Array:
    """Return the group of each message, which no progress changes; null if it is in none."""
    numbers = sketch.of(table)
    is_member = np.isin(table["global_position"].to_numpy(), numbers["global_position"].to_numpy())
    groups = np.zeros(len(table), np.int64)
    groups[is_member] = numbers["group"].to_numpy()
    return pa.array(groups, mask=~is_member)


def positions(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the positions in the one column of what `summed` gives, a row each."""
    for batch in batches:
        for value in batch.column(0):
            found = np.frombuffer(value.as_buffer(), np.int64)
            yield pa.RecordBatch.from_pydict({"global_position": found})


def as_they_are(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield batches without a change."""
    yield from batches


_TYPES = {pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary"}


def _schema(sketches: Sequence[Sketch]) -> pa.Schema:
    return pa.schema(
        [
            ("job", pa.int32()),
            ("groups", pa.int64()),
            ("messages", pa.int64()),
            ("positions", pa.binary()),
            *((name, pa.int64()) for name in columns_of(sketches)),
        ]
    )


def _divided(sketches: Sequence[Sketch], parts: int, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the numbers of messages in blocks, by job and part."""
    read = list(batches)
    if not read:
        return
    table = pa.Table.from_batches(read)
    read.clear()
    for job, sketch in enumerate(sketches):
        numbers = sketch.of(table)
        part = (numbers["group"].to_numpy().view(np.uint64) % np.uint64(parts)).astype(np.int64)
        numbers = numbers.take(np.argsort(part, kind="stable"))
        counts, begin = np.bincount(part, minlength=parts), 0
        for number, count in enumerate(counts.tolist()):
            for first in range(begin, begin + count, _MOST_OF_BLOCK):
                block = numbers.slice(first, min(_MOST_OF_BLOCK, begin + count - first))
                values = [job], [number], [_written(block)]
                columns = zip(values, _BLOCK_SCHEMA.types, strict=True)
                yield pa.RecordBatch.from_arrays(
                    [pa.array(value, type_) for value, type_ in columns], schema=_BLOCK_SCHEMA
                )
            begin += count


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def _counted(sketches: Sequence[Sketch], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Sum up blocks of one part, and yield what is seen of its groups."""
    blocks = defaultdict(list)
    for batch in batches:
        for job, block in zip(batch.column("job").to_pylist(), batch.column("block"), strict=True):
            blocks[job].append(pa.ipc.open_stream(block.as_buffer()).read_all())
    schema = _schema(sketches)
    for job in sorted(blocks):
        numbers = pa.concat_tables(blocks.pop(job))
        yield from _rows_of_each(job, sketches[job], numbers, schema)


def _rows_of_each(
    job: int, sketch: Sketch, numbers: pa.Table, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield what is seen of the groups of a job, and where their messages are."""
    found = _seen(sketch, numbers)
    count = len(found["groups"])
    found["job"] = pa.array(np.full(count, job))
    columns = [found.get(field.name, pa.nulls(count)).cast(field.type) for field in schema]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    yield from (rows.slice(first, _ROWS) for first in range(0, count, _ROWS))


def _seen(sketch: Sketch, numbers: pa.Table) -> dict[str, pa.Array]:
    """Return what is seen of groups, the different rows of it only."""
    group = numbers["group"].combine_chunks().dictionary_encode().indices
    sums = (
        numbers.set_column(numbers.column_names.index("group"), "group", group)
        .group_by("group", use_threads=False)
        .aggregate(list(sketch.sums))
    )
    groups = sketch.seen(sums).append_column("nth", pa.array(np.arange(len(sums))))
    different = groups.group_by(list(sketch.columns), use_threads=False).aggregate(
        [("nth", "count"), ("nth", "list")]
    )
    members = different["nth_list"].combine_chunks()
    row_of = np.empty(len(sums), np.int64)
    row_of[sums["group"].to_numpy()[members.values.to_numpy()]] = np.repeat(
        np.arange(len(different)), np.diff(members.offsets.to_numpy())
    )
    rows = row_of[group.to_numpy()]
    places = numbers["global_position"].to_numpy()[np.argsort(rows, kind="stable")]
    ends = np.cumsum(np.bincount(rows, minlength=len(different)))
    return _divided_rows(different, sketch, places, ends)


def _divided_rows(
    different: pa.Table, sketch: Sketch, places: Numbers, ends: Numbers
) -> dict[str, pa.Array]:
    """Return rows that have few positions each."""
    begins = np.concatenate(([0], ends[:-1]))
    pieces = [
        (row, first, min(first + _MOST_OF_ROW, end), first == begin)
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
        for first in range(begin, end, _MOST_OF_ROW)
    ]
    of_row, firsts, lasts, is_first = map(np.array, zip(*pieces, strict=True))
    groups = different["nth_count"].to_numpy()[of_row]
    return {
        "groups": pa.array(np.where(is_first, groups, 0)),
        "messages": pa.array(lasts - firsts),
        "positions": pa.array([places[first:last].tobytes() for _, first, last, _ in pieces]),
        **{name: different[name].combine_chunks().take(of_row) for name in sketch.columns},
    }
