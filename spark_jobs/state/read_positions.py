"""Global positions of the log that were read, as one bit each.

A writer that does not lock its category, such as a bare ``INSERT``, may commit after messages with
higher global positions. Such a late message is visible below the last position that was read, and
its bit is not set. The server counts the positions in each block of the log. It lists them only if
the count differs from that of the bits.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs.snapshot.snapshot import PositionArray, Snapshot

BLOCK = 32_768
_BYTES = BLOCK // 8


class ReadPositions:
    """The positions that were read."""

    def __init__(self, blocks: Mapping[int, bytes] | None = None) -> None:
        self._blocks = {
            number: np.frombuffer(bits, np.uint8).copy() for number, bits in (blocks or {}).items()
        }

    @classmethod
    def stored(cls, path: Path) -> "ReadPositions":
        """Read the positions from a file."""
        table = pq.read_table(path)
        return cls(dict(zip(table["block"].to_pylist(), table["bits"].to_pylist(), strict=True)))

    def store(self, path: Path) -> None:
        """Write the positions to a file."""
        numbers = sorted(self._blocks)
        bits = pa.array([self._blocks[number].tobytes() for number in numbers], pa.binary(_BYTES))
        table = pa.table({"block": pa.array(numbers, pa.int64()), "bits": bits})
        pq.write_table(table, path, compression="zstd")

    def add(self, positions: PositionArray) -> None:
        """Add positions."""
        for number, within in _by_block(positions):
            bits = self._blocks.setdefault(number, np.zeros(_BYTES, np.uint8))
            np.bitwise_or.at(bits, within >> 3, np.uint8(1) << (within & 7).astype(np.uint8))

    def missing_from(self, positions: PositionArray) -> PositionArray:
        """Return those of some positions that are not among them."""
        missing = [np.empty(0, np.int64)]
        for number, within in _by_block(positions):
            bits = self._blocks.get(number, np.zeros(_BYTES, np.uint8))
            is_set = bits[within >> 3] >> (within & 7).astype(np.uint8) & 1
            missing.append(number * BLOCK + within[is_set == 0])
        return np.concatenate(missing)

    @property
    def head(self) -> int:
        """The last of them; 0 without any."""
        return int(self._of_block(max(self._blocks))[-1]) if self._blocks else 0

    def compared(self, snapshot: Snapshot) -> tuple[PositionArray, int]:
        """Return the positions of a snapshot, up to the last one here, that are not among them.

        The number says how many of those here the snapshot does not hold.
        """
        theirs = snapshot.blocks(BLOCK, self.head)
        ours = {number: self._count_and_sum(number) for number in self._blocks}
        differing = {
            number
            for number in theirs.keys() | ours.keys()
            if theirs.get(number) != ours.get(number)
        }
        listed = snapshot.positions_in(BLOCK, sorted(differing), self.head)
        late = self.missing_from(listed)
        read = sum(ours.get(number, (0, 0))[0] for number in differing)
        return late, read - (len(listed) - len(late))

    def _count_and_sum(self, number: int) -> tuple[int, int]:
        within = self._of_block(number) - number * BLOCK  # whose sum cannot overflow
        return len(within), int(within.sum()) + len(within) * number * BLOCK

    def _of_block(self, number: int) -> PositionArray:
        bits = self._blocks.get(number)
        if bits is None:
            return np.empty(0, np.int64)
        return number * BLOCK + np.flatnonzero(np.unpackbits(bits, bitorder="little"))


def _by_block(positions: PositionArray) -> Iterable[tuple[int, PositionArray]]:
    if not len(positions):
        return
    ordered = np.sort(positions)
    numbers = ordered // BLOCK
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    for part in np.split(ordered, starts[1:]):
        number = int(part[0] // BLOCK)
        yield number, part - number * BLOCK
