"""What the consumers did to messages, of which fingerprints are known.

It is what `spark_jobs.snapshot.progress.Progress.marked` adds to rows, computed on arrays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_jobs.snapshot.progress import Consumed

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

# What stands for no number of a category or type.
NONE = -1


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """The columns of fingerprints as arrays (`spark_jobs.analysis.verdicts.fingerprints`).

    What is null has the value 0, or `NONE` for a category or type; ``has_…`` are false for it.
    """

    global_position: Numbers
    time: Numbers
    category: Numbers
    type: Numbers
    is_first: Flags
    is_subscribed: Flags
    key: Numbers
    says: Numbers
    causation: Numbers
    kind: Numbers
    cardinal: Numbers
    has_key: Flags
    has_says: Flags
    has_causation: Flags
    has_kind: Flags

    @classmethod
    def of(cls, table: pa.Table) -> "Fingerprints":
        """Return those of a table."""
        values = {}
        for field in fields(cls):
            name = field.name
            if name.startswith("has_"):
                values[name] = _array(table.column(name[4:]).is_valid())
            else:
                values[name] = _filled(table.column(name), NONE if name in _NUMBERED else 0)
        return cls(**values)

    def where(self, chosen: Flags) -> "Fingerprints":
        """Return those of some of the messages."""
        return Fingerprints(*(getattr(self, field.name)[chosen] for field in fields(self)))


_NUMBERED = ("category", "type")


def _array(column: pa.ChunkedArray) -> NDArray[Any]:  # Any: of the column's own type
    return column.combine_chunks().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _filled(column: pa.ChunkedArray, nothing: int) -> NDArray[Any]:  # Any: of the column's type
    if pa.types.is_boolean(column.type):
        return _array(column.fill_null(False))
    return _array(column.cast(pa.int64()).fill_null(nothing))


@dataclass(frozen=True, slots=True)
class Marks:
    """What the consumers did to messages.

    Attributes:
        was_read: whether the consumer of the message's category has read it.
        is_letter: whether it passed the message without handling it.
        is_recorded: whether it recorded the message as a conflict.
        is_corrected: whether somebody corrected the message.
    """

    was_read: Flags
    is_letter: Flags
    is_recorded: Flags
    is_corrected: Flags

    @classmethod
    def of(cls, rows: Fingerprints, consumed: Mapping[int, Consumed]) -> "Marks":
        """Return those of messages."""
        marks = cls(*(np.zeros(len(rows.global_position), bool) for _ in fields(cls)))
        for category, one in consumed.items():
            here = rows.category == category
            marks.was_read[here] = _has_read(one, rows)[here]
            for mark, positions in (
                (marks.is_letter, one.letters),
                (marks.is_recorded, one.conflicts),
                (marks.is_corrected, [of.global_position for of in one.corrections]),
            ):
                if positions:
                    mark |= here & np.isin(rows.global_position, positions)
        return marks


def _has_read(consumed: Consumed, rows: Fingerprints) -> Flags:
    """Return which messages were read, as `Consumed.has_read` does."""
    at, position = rows.global_position, consumed.position
    if position is None:
        assert consumed.before is not None  # noqa: S101  one of both is known
        before: Flags = rows.time < (consumed.before - _EPOCH) // timedelta(microseconds=1)
        return before
    was_read: Flags = at <= position
    if consumed.highest > position:
        between = (at > position) & (at <= consumed.highest)
        for positions in (consumed.partitions, consumed.carried):
            if positions:
                # The remainder has the sign of the hash, as in Spark.
                partition = np.abs(np.fmod(rows.cardinal, len(positions)))
                was_read |= between & (at <= np.asarray(positions, np.int64)[partition])
    return was_read
