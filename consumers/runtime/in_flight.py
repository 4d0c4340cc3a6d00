"""The messages that each consumer has in flight, in memory that outlives its process.

A message may end the process that handles it, and with it all consumers of that process. Their host
then looks at what each had in flight, and hands that on, so that the next process takes only those
messages one by one. Each consumer writes a record of its own, without locks: a few bytes for each
message.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reservation.messages.message import StoredMessage

# first, last, count, is of letters, counted, owed, correction, running; then the call, and signs of
# life.
_RANGE = struct.Struct("=qqqqqqqq")
_CALL = struct.Struct("=qq")
# The partitions that are held, a bit each; there are up to 1,024.
_PARTITIONS = 128
RECORD = _RANGE.size + _CALL.size + _PARTITIONS

# Instead of a message: one of those in flight, which is not known.
SOME = -1


@dataclass(frozen=True, slots=True)
class Record:
    """A consumer's work in flight.

    Attributes:
        first: the global position of the first message; 0 for none.
        last: that of the last, or up to where messages were taken one by one; 0 if not known.
        count: how many there were at most; 0 if none were in flight.
        are_letters: whether they were dead letters, to be handled again.
        counted: the message whose attempt is counted before it begins; 0 for none.
        owed: the message whose stored count of attempts is wrong, below 0 for a dead letter; 0 for
            none.
        correction: what is to be added to that count.
        running: how many letters had async calls that went on.
        called: the message whose handler was called; 0 for none, `SOME` where it is not known.
        signs: how many signs of life the consumer has given.
        partitions: those that it held.
    """

    first: int = 0
    last: int = 0
    count: int = 0
    are_letters: bool = False
    counted: int = 0
    owed: int = 0
    correction: int = 0
    running: int = 0
    called: int = 0
    signs: int = 0
    partitions: frozenset[int] = frozenset()

    @property
    def was_read(self) -> bool:
        """Whether there were messages in flight for which code of the component may have run."""
        return bool((self.count and self.last) or self.running)

    def owing(self, position: int, correction: int) -> "Record":
        """Return it with what is to be added to the count of attempts at a message, if anything."""
        if not (position and correction):
            return self
        owed = -position if self.are_letters else position
        return replace(self, owed=owed, correction=correction)

    def without_messages(self) -> "Record":
        """Return it without the messages, none of which is to blame."""
        return replace(self, first=0, last=0, count=0, running=0, called=0)


NOTHING = Record()


class InFlight:
    """The record of one consumer: it alone writes it, and others read it.

    Attributes:
        until: up to where messages are taken one by one, because a process has died; 0 if none are.
    """

    # Any: a part of a shared array, or bytes.
    def __init__(self, memory: Any = None, others: Sequence[Any] = ()) -> None:
        """Begin with nothing in flight.

        The record is in this memory, by default in one that ends with the process. ``others`` are
        the records of the same consumer in other processes of the host, now and before.
        """
        self._memory = memoryview(bytearray(RECORD) if memory is None else memory).cast("B")
        self._others = others
        self._seen: set[Record] = set()
        self._range = NOTHING
        self._signs = 0
        self._owed = (0, 0)
        self._running = 0
        self.until = 0

    def left(self, partitions: Iterable[int]) -> "list[Record] | None":
        """Return what was in flight of partitions whose holders have not given them back.

        None if that is not known of all of them: their host died too, or was another one. What was
        returned before is left out.
        """
        wanted = frozenset(partitions)
        records = [record for record in map(read, self._others) if record.partitions & wanted]
        if not wanted <= frozenset().union(*(record.partitions for record in records)):
            return None
        new = [record for record in records if record not in self._seen]
        self._seen.update(new)
        return new

    def reads(self, after: int, most: int) -> None:
        """Note that up to so many messages are about to be read."""
        self._write(Record(after + 1, 0, most, counted=self._range.counted))

    def takes(self, messages: Sequence[StoredMessage], *, are_letters: bool = False) -> None:
        """Note messages that are decided on."""
        if not messages:
            return
        first, last = messages[0].global_position, messages[-1].global_position
        now = self._range
        if are_letters or not now.last:
            self._write(Record(first, last, len(messages), are_letters, now.counted))

    def adds(self, messages: Sequence[StoredMessage]) -> None:
        """Note messages that are decided on before those in flight are committed."""
        now = self._range
        count = now.count + len(messages)
        self._write(replace(now, last=messages[-1].global_position, count=count))

    def counts(self, position: int, is_letter: bool) -> None:
        """Note that an attempt at a message or letter is counted, and then begins; 0 for none."""
        if abs(self._owed[0]) == position:
            self._owed = (0, 0)
        are_letters = is_letter if position else self._range.are_letters
        self._write(replace(self._range, counted=position, are_letters=are_letters))

    def owes(self, record: Record) -> None:
        """Note what is still to be added to a count of attempts, until that is counted anew."""
        self._owed = (record.owed, record.correction)
        self._write(self._range)

    def calls(self, position: int) -> None:
        """Note that the handler of a message is called, which is a sign of life too."""
        self._signs += 1
        _CALL.pack_into(self._memory, _RANGE.size, position, self._signs)

    def beats(self) -> None:
        """Give a sign of life."""
        self._signs += 1
        _CALL.pack_into(self._memory, _RANGE.size, self._called, self._signs)

    def runs(self, letters: int) -> None:
        """Note how many letters have async calls that go on."""
        if letters != self._running:
            self._running = letters
            self._write(self._range)

    def waits(self) -> None:
        """Note that nothing is in flight until it is the turn of the next message.

        That may be one whose attempt was counted before its connection was lost.
        """
        now = self._range
        self._write(Record(counted=now.counted, are_letters=bool(now.counted) and now.are_letters))

    def returned(self) -> None:
        """Note that no handler is called at the moment."""
        self.calls(0)

    def committed(self) -> None:
        """Note that what was in flight is committed."""
        self._write(NOTHING)

    def holds(self, partitions: Iterable[int]) -> None:
        """Note which partitions are held."""
        bits = sum(1 << partition for partition in partitions)
        start = _RANGE.size + _CALL.size
        self._memory[start : start + _PARTITIONS] = bits.to_bytes(_PARTITIONS, "little")

    @property
    def _called(self) -> int:
        return int(_CALL.unpack_from(self._memory, _RANGE.size)[0])

    def _write(self, record: Record) -> None:
        self._range = record
        owed, correction = self._owed
        last = max(record.last, self.until)
        now = replace(record, last=last, owed=owed, correction=correction, running=self._running)
        _write_range(self._memory, now)


# Any: as above.
def read(memory: Any) -> Record:
    """Return what a record says."""
    view = memoryview(memory).cast("B")
    first, last, count, letters, counted, owed, correction, running = _RANGE.unpack_from(view)
    called, signs = _CALL.unpack_from(view, _RANGE.size)
    bits = int.from_bytes(view[_RANGE.size + _CALL.size : RECORD], "little")
    partitions = frozenset(n for n in range(bits.bit_length()) if bits >> n & 1)
    return Record(
        first,
        last,
        count,
        bool(letters),
        counted,
        owed,
        correction,
        running,
        called,
        signs,
        partitions,
    )


# Any: as above.
def write(memory: Any, record: Record) -> None:
    """Write a whole record, which no consumer writes at the time."""
    view = memoryview(memory).cast("B")
    _write_range(view, record)
    _CALL.pack_into(view, _RANGE.size, record.called, record.signs)
    InFlight(view).holds(record.partitions)


def _write_range(view: memoryview, record: Record) -> None:
    _RANGE.pack_into(
        view,
        0,
        record.first,
        record.last,
        record.count,
        record.are_letters,
        record.counted,
        record.owed,
        record.correction,
        record.running,
    )
