"""A log in memory, which refuses what the store refuses."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from reservation.errors import ExpectedVersionError, MessageIdConflictError
from reservation.messages.comparison import same_json
from reservation.messages.message import StoredMessage
from reservation.store.writing.scheduling import ScheduledRow
from reservation.store.writing.write import Row

# When messages are stored, unless a test says otherwise: the same at every run.
TIME = datetime(2026, 1, 1, tzinfo=UTC)


class MemoryLog:
    """Messages in their order.

    Attributes:
        messages: all of them.
        scheduled: what is written later, in the order of scheduling.
        classes: by global position, the class that a message was written from, if it is known.
        scheduled_classes: by their ids, the classes of those that are written later.
        time: when the next message is stored.
    """

    def __init__(self, time: datetime = TIME) -> None:
        self.messages: list[StoredMessage] = []
        self.scheduled: list[ScheduledRow] = []
        self.classes: dict[int, type] = {}
        self.scheduled_classes: dict[uuid.UUID, type] = {}
        self.time = time
        self._by_id: dict[str, StoredMessage] = {}
        self._streams: defaultdict[str, list[StoredMessage]] = defaultdict(list)

    def stream(self, name: str) -> Sequence[StoredMessage]:
        """Return the messages of a stream."""
        return self._streams.get(name, ())

    def version(self, name: str) -> int:
        """Return the position of the last message of a stream, -1 if there is none."""
        return len(self.stream(name)) - 1

    def find(self, id_: uuid.UUID | str) -> StoredMessage | None:
        """Return the message with an id."""
        return self._by_id.get(str(id_))

    def write(self, row: Row, class_: type | None = None) -> StoredMessage:
        """Write a message at the end of its stream; the same one again is the one that is there."""
        found = self.find(row.id)
        if found is not None:
            same = (found.stream_name, found.type) == (row.stream_name, row.type)
            if not same or not same_json(found.data or "null", row.data or "null"):
                raise id_conflict(row, found)
            return found
        version = self.version(row.stream_name)
        if row.expected_version not in (None, version):
            raise ExpectedVersionError(
                f"Wrong expected version: {row.expected_version} (Stream: {row.stream_name}, "
                f"Stream Version: {version})"
            )
        return self.add(str(row.id), row.stream_name, row.type, row.data, row.metadata, class_)

    def schedule(self, row: ScheduledRow, class_: type) -> None:
        """Keep a message that is written later, once."""
        if row.id not in self.scheduled_classes:
            self.scheduled.append(row)
            self.scheduled_classes[row.id] = class_

    def forget(self, position: int) -> None:
        """Take back the messages after a global position."""
        for message in reversed(self.messages[position:]):
            self._streams[message.stream_name].pop()
            del self._by_id[message.id]
            self.classes.pop(message.global_position, None)
        del self.messages[position:]

    def add(
        self,
        id_: str,
        name: str,
        type_: str,
        data: str | None,
        metadata: str | None,
        class_: type | None = None,
    ) -> StoredMessage:
        """Add a message whose id is not in use."""
        at = len(self.messages) + 1
        position = self.version(name) + 1
        message = StoredMessage(id_, name, type_, position, at, data, metadata, self.time)
        self.messages.append(message)
        self._by_id[id_] = message
        self._streams[name].append(message)
        if class_ is not None:
            self.classes[at] = class_
        return message


def id_conflict(row: Row, found: StoredMessage) -> MessageIdConflictError:
    """Return the error of an id that is in use for another message."""
    return MessageIdConflictError(
        f"Message id {row.id} is in use for another message in stream {found.stream_name}; give "
        f"another message an id of its own"
    )
