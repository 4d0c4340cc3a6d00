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
        self, processes: int, every: Sequence[ConsumerId], descriptor: int | None = None
    ) -> None:
        """Make the memory, or take that of a descriptor."""
        size = processes * len(every) * 2 * RECORD
        if descriptor is None:
            descriptor = _nameless()
            os.truncate(descriptor, size)
        self.descriptor = descriptor
        self._processes = processes
        self._every = every
        self._bytes = memoryview(mmap.mmap(descriptor, size))

    def in_flight(self, process: int, reads: ConsumerId) -> InFlight:
        """Return what a consumer writes, which reads what the others of its kind have left."""
        mine = self._record(process, reads, 0)
        others = [self._record(other, reads, 1) for other in range(self._processes)]
        others += [
            self._record(other, reads, 0) for other in range(self._processes) if other != process
        ]
        return InFlight(mine, others)

    def records(self, process: int) -> Iterator[tuple[ConsumerId, Record]]:
        """Yield what each consumer of a process has in flight."""
        for reads in self._every:
            yield reads, read(self._record(process, reads, 0))

    def hand_on(self, process: int, stuck: ConsumerId | None = None) -> None:
        """Keep what a process had in flight that has died, for those that go on with its work.

        An attempt that was counted for a message does not count if the message was not read yet, or
        if another consumer had messages in flight too: they may have ended the process. If one
        of them was stuck, its attempt counts although its message was not by itself.
        A consumer that held no partition had not taken over yet what was left to it, which stays.
        """
        records = dict(self.records(process))
        ambiguous = sum(record.was_read for record in records.values()) > 1
        for reads, record in records.items():
            if stuck is None:
                kept = record.owing(record.counted, -1 if ambiguous or not record.was_read else 0)
            elif reads == stuck:
                kept = record.owing(max(record.called, 0), 0 if record.counted else 1)
            else:
                kept = record.owing(record.counted, -1).without_messages()
            if record.partitions:
                write(self._record(process, reads, 1), kept)
            write(self._record(process, reads, 0), NOTHING)

    def _record(self, process: int, reads: ConsumerId, which: int) -> memoryview:
        number = (process * len(self._every) + self._every.index(reads)) * 2 + which
        return self._bytes[number * RECORD : (number + 1) * RECORD]


def _nameless() -> int:
    """Return the descriptor of a file without a name: in memory, or where that is not known."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("reservation")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
