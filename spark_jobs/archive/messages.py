"""Reading the files of an archive, a bounded portion at a time, without Spark."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from reservation.errors import ArchiveError
from reservation.maintenance.pruning import COMPARED, ArchivePortion
from reservation.messages.message import StoredMessage

_POSITION = "global_position"

# In the order of the attributes of a message.
_MESSAGE = ["id", "stream_name", "type", "position", _POSITION, "data", "metadata", "time"]
_PLACE = ["stream_name", "position"]

# About how many bytes of messages are held at a time where they are compared, and of each file
# where several are open; messages that are decoded at a time; bytes that are read of a column.
_COMPARED_BYTES, _BYTES, _ROWS, _BUFFER = 64 << 20, 4 << 20, 2_000, 1 << 20


def portions(path: Path, number: int) -> Iterator[ArchivePortion]:
    """Return the messages of a file in portions, to be compared with those of the store."""
    for batch in _batches(path, [_POSITION, *COMPARED], number, _COMPARED_BYTES):
        yield _portion(batch)


def messages(
    path: Path, after: int, wanted: Collection[int] | None = None
) -> Iterator[StoredMessage]:
    """Give the messages of a file behind a global position, or those at some positions only."""
    until = None if wanted is None else max(wanted)
    for batch in _batches(path, _MESSAGE, _ROWS, _BYTES, after, until):
        positions = batch.column(_POSITION)
        if wanted is None:
            rows = batch.filter(pc.greater(positions, after))
        else:
            rows = batch.filter(pc.is_in(positions, pa.array(sorted(wanted), pa.int64())))
        columns = {name: rows.column(name) for name in _MESSAGE}
        columns["time"] = columns["time"].cast(pa.timestamp("us"))  # in UTC, as the store has it
        yield from map(StoredMessage, *(column.to_pylist() for column in columns.values()))


def places(path: Path, streams: Collection[str]) -> Iterator[tuple[str, int]]:
    """Give the stream and the position there of each message of some streams in a file."""
    of_these = pa.array(sorted(streams), pa.string())
    for batch in _batches(path, _PLACE, 16 * _ROWS, _BYTES):
        rows = batch.filter(pc.is_in(batch.column("stream_name"), of_these))
        yield from zip(*(rows.column(name).to_pylist() for name in _PLACE), strict=True)


def bounds(path: Path) -> tuple[int, int] | None:
    """Return the first and last global position in a file; None if it does not say so."""
    try:
        with ParquetFile(path) as file:
            groups = [_bounds(file.metadata.row_group(n)) for n in range(file.num_row_groups)]
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error
    known = [found for found in groups if found is not None]
    if not known or len(known) < len(groups):
        return None
    return min(first for first, _ in known), max(last for _, last in known)


def _batches(
    path: Path,
    columns: Sequence[str],
    number: int,
    most_bytes: int,
    after: int = -1,
    until: int | None = None,
) -> Iterator[Any]:  # of pyarrow, which has no types
    """Give columns in portions, of the row groups with messages in a range of positions."""
    try:
        with ParquetFile(path, buffer_size=_BUFFER) as file:
            for group in range(file.num_row_groups):
                metadata = file.metadata.row_group(group)
                first, last = _bounds(metadata) or (after + 1, after + 1)
                if last <= after or (until is not None and first > until):
                    continue
                fitting = metadata.num_rows * most_bytes // max(1, metadata.total_byte_size)
                rows = max(1, min(number, fitting))
                yield from file.iter_batches(rows, row_groups=[group], columns=list(columns))
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _bounds(row_group: Any) -> tuple[int, int] | None:
    for n in range(row_group.num_columns):
        column = row_group.column(n)
        if column.path_in_schema == _POSITION:
            statistics = column.statistics
            has_both = statistics is not None and statistics.has_min_max
            return (statistics.min, statistics.max) if has_both else None
    return None


def _unreadable(path: Path, error: Exception) -> ArchiveError:
    return ArchiveError(f"{path} cannot be read: {error}; put it back from a copy")


def _portion(batch: Any) -> ArchivePortion:
    columns = {name: batch.column(name) for name in (_POSITION, *COMPARED)}
    columns["time"] = columns["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values = zip(*(columns[name].to_pylist() for name in COMPARED), strict=True)
    return ArchivePortion(columns[_POSITION].to_pylist(), [_digest(row) for row in values])


def _digest(row: Sequence[object]) -> str:
    texts = [None if value is None else str(value) for value in row]
    hashed = "".join("-" if text is None else f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(hashed.encode()).hexdigest()
