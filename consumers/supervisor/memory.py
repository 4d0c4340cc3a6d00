"""The memory that a host shares with its processes: what each consumer of each has in flight.

There are two records for each: the one that it writes, and the one that it left behind when its
process died last. The memory is of a file without a name, which ends with the last process.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.runtime.in_flight import NOTHING, RECORD, InFlight, Record, read, write


class Memory:
    """The records of so many processes, each with the same consumers.

    Attributes:
        descriptor: that of the file, for other processes.
    """

    def __init__(
        self, processes: int, consumer_ids: Sequence[ConsumerId], descriptor: int | None = None
    ) -> None:
        """Make the memory, or take that of a descriptor."""
        size = processes * len(consumer_ids) * 2 * RECORD
        if descriptor is None:
            descriptor = _nameless()
            os.truncate(descriptor, size)
        self.descriptor = descriptor
        self._processes = processes
        self._consumer_ids = consumer_ids
        self._bytes = memoryview(mmap.mmap(descriptor, size))

    def in_flight(self, process: int, consumer_id: ConsumerId) -> InFlight:
        """Return the record of a consumer, with those of the same consumer in other processes."""
        mine = self._record(process, consumer_id, 0)
        processes = range(self._processes)
        others = [self._record(other, consumer_id, 1) for other in processes]
        others += [self._record(other, consumer_id, 0) for other in processes if other != process]
        return InFlight(mine, others)

    def records(self, process: int) -> Iterator[tuple[ConsumerId, Record]]:
        """Yield what each consumer of a process has in flight."""
        for consumer_id in self._consumer_ids:
            yield consumer_id, read(self._record(process, consumer_id, 0))

    def hand_on(self, process: int, stuck: ConsumerId | None = None) -> None:
        """Keep what a dead process had in flight, for those that go on with its work.

        An attempt that was counted for a message does not count if the message was not read yet, or
        if another consumer had messages in flight too: they may have ended the process. If one
        of them was stuck, its attempt counts although its message was not by itself.
        What was left to a consumer without partitions stays: it had not taken that over yet.
        """
        records = dict(self.records(process))
        ambiguous = sum(record.was_read for record in records.values()) > 1
        for consumer_id, record in records.items():
            if stuck is None:
                kept = record.owing(record.counted, -1 if ambiguous or not record.was_read else 0)
            elif consumer_id == stuck:
                kept = record.owing(max(record.called, 0), 0 if record.counted else 1)
            else:
                kept = record.owing(record.counted, -1).without_messages()
            if record.partitions:
                write(self._record(process, consumer_id, 1), kept)
            write(self._record(process, consumer_id, 0), NOTHING)

    def _record(self, process: int, consumer_id: ConsumerId, which: int) -> memoryview:
        ordinal = process * len(self._consumer_ids) + self._consumer_ids.index(consumer_id)
        start = (2 * ordinal + which) * RECORD
        return self._bytes[start : start + RECORD]


def _nameless() -> int:
    """Return the descriptor of a file without a name: in memory, if the system has that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("reservation")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
