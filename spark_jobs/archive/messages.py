"""The messages of an archive in portions, to be compared with those of the store."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from reservation.maintenance.pruning import COMPARED, ArchivePortion
from spark_jobs.common.errors import ArchiveError

_COLUMNS = ["global_position", *COMPARED]

# About how many bytes of messages are held at a time.
_BYTES = 64 * 2**20


def portions(path: Path, number: int) -> Iterator[ArchivePortion]:
    """Return the messages of a file, in portions."""
    try:
        with ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group)
                fitting = size.num_rows * _BYTES // max(1, size.total_byte_size)
                rows = max(1, min(number, fitting))
                for batch in file.iter_batches(rows, row_groups=[group], columns=_COLUMNS):
                    yield _portion(batch)
    except (OSError, pa.ArrowException) as error:
        raise ArchiveError(f"{path} cannot be read: {error}") from error


def _portion(batch: Any) -> ArchivePortion:  # of pyarrow, which has no types
    columns = {name: batch.column(name) for name in _COLUMNS}
    columns["time"] = columns["time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values = zip(*(columns[name].to_pylist() for name in COMPARED), strict=True)
    return ArchivePortion(columns["global_position"].to_pylist(), [_digest(row) for row in values])


def _digest(row: Sequence[object]) -> str:
    texts = [None if value is None else str(value) for value in row]
    hashed = "".join("-" if text is None else f"{len(text)}:{text}" for text in texts)
    return hashlib.sha256(hashed.encode()).hexdigest()
