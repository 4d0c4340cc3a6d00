"""Messages that are written together, and the statements that write them."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from reservation.errors import MessageIdConflictError, RefusedError, StoreError
from reservation.messages.ids import uuid7s
from reservation.postgres.arrays import Array, IntArray, JsonArray, TextArray, UuidArray
from reservation.store.statements import QUERIES, Statement
from reservation.store.writing.position import WrittenPosition, read_position, read_positions
from reservation.store.writing.write import Row, Write, row_of

# A little less than PostgreSQL takes in one message of its protocol. It ends the connection of a
# client that sends more, and then it seems that the write may have been committed.
MOST_BYTES = 1_000_000_000
_PORTION = 4 << 20  # characters of data
_ROW_BYTES = 64  # of the id, the expected version and the lengths, at most


class WriteBatch:
    """Messages to be written together, all or none.

    Attributes:
        ids: the ids of the messages, in the order given; a retry within the batch repeats one.
        rows: the messages, each once.
        expects: the streams that have to be at an expected version.
    """

    def __init__(self, writes: Iterable[Write], max_bytes: int) -> None:
        if not isinstance(writes, Iterable):
            raise StoreError(f"A batch is a list of Writes, not a {type(writes).__name__}")
        writes = list(writes)
        by_id: dict[uuid.UUID, Row] = {}
        self.ids: list[uuid.UUID] = []
        for write, new_id in zip(writes, uuid7s(len(writes)), strict=True):
            row = row_of(write, new_id, max_bytes)
            self.ids.append(row[0])
            known = by_id.setdefault(row[0], row)
            if known is not row and known[1:-1] != row[1:-1]:
                raise MessageIdConflictError(
                    f"Message id {row[0]} is in the batch twice, for different messages; "
                    f"give each an id of its own"
                )
        self.rows = list(by_id.values())
        self.expects = frozenset(row[1] for row in self.rows if row[-1] is not None)
        check_size(self.rows)

    @classmethod
    def encoded(cls, rows: Sequence[Row]) -> "WriteBatch":
        """Return the batch of messages that are already encoded, each once."""
        batch = cls((), 0)
        batch.ids = [row[0] for row in rows]
        batch.rows = list(rows)
        batch.expects = frozenset(row[1] for row in rows if row[-1] is not None)
        check_size(batch.rows)
        return batch

    def statement(self) -> Statement[list[WrittenPosition]]:
        """Return the statement that writes the batch.

        Its result is the position of each message in its stream, in the order given.
        """
        if len(self.rows) == 1:
            return Statement(
                QUERIES["write_message"],
                self.rows[0],
                lambda found: [read_position(found)] * len(self.ids),
                self.ids,
                self.expects,
                repeated=True,
                committing=QUERIES["commit_message"],
            )
        return Statement(
            QUERIES["write_messages"],
            self._arrays(),
            lambda found: self._in_order([one for one in read_positions(found) if one is not None]),
            self.ids,
            self.expects,
            repeated=True,
            committing=QUERIES["commit_messages"],
        )

    def statement_or_fail(self) -> Statement[None]:
        """Return the statement that writes the batch, or fails where a message was written before.

        That is known of those that have an expected version. The SQLSTATE is `REWRITTEN` then.
        """
        versions = [row.expected_version for row in self.rows]
        expected = [None if version is None else version + 1 for version in versions]
        parameters: Sequence[Any]
        if len(self.rows) == 1:
            query, parameters = QUERIES["write_message_or_fail"], [*self.rows[0]]
        else:
            query, parameters = QUERIES["write_messages_or_fail"], self._arrays()
        parameters = [*parameters, IntArray(expected)]
        return Statement(query, parameters, lambda _: None, self.ids, self.expects, repeated=True)

    def statement_of_each(self) -> Statement[list[WrittenPosition | None]]:
        """Return the statement that writes each message as if it were written alone.

        Its result is the position of each row in its stream, None for one that is refused.
        """
        return Statement(
            QUERIES["write_each"],
            self._arrays(),
            read_positions,
            self.ids,
            self.expects,
            committing=QUERIES["commit_each"],
        )

    def _arrays(self) -> list[Array | None]:
        ids, names, types, data, metadata, versions = zip(*self.rows, strict=True)
        return [
            UuidArray(ids),
            TextArray(names),
            TextArray(types),
            JsonArray(data),
            JsonArray(metadata),
            IntArray(versions) if self.expects else None,
        ]

    def _in_order(self, positions: list[WrittenPosition]) -> list[WrittenPosition]:
        """Return the positions of the messages in the order given from those of the rows."""
        if len(self.rows) == len(self.ids):
            return positions
        by_id = {row[0]: position for row, position in zip(self.rows, positions, strict=True)}
        return [by_id[message_id] for message_id in self.ids]


def portions(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Give rows in portions of few bytes, so that writing one takes little memory."""
    begin, size = 0, 0
    for n, row in enumerate(rows):
        size += len(row.data)
        if size >= _PORTION:
            yield rows[begin : n + 1]
            begin, size = n + 1, 0
    if begin < len(rows):
        yield rows[begin:]


def check_size(rows: Sequence[Row]) -> None:
    """Refuse rows that are too long together for the server to take them at once."""
    characters = sum(
        len(name) + len(type_) + len(data) + len(metadata or "")
        for _, name, type_, data, metadata, _ in rows
    )
    if 4 * characters + len(rows) * _ROW_BYTES <= MOST_BYTES:  # UTF-8's longest
        return
    size = sum(map(size_of, rows))
    if size > MOST_BYTES:
        raise RefusedError(
            f"The {len(rows)} messages are {size} bytes long together; the server takes "
            f"{MOST_BYTES} at once: write them in several batches"
        )


def size_of(row: Row) -> int:
    """Return how many bytes of a statement a message takes, at most."""
    return _ROW_BYTES + sum(len(text.encode()) for text in row[1:5] if text)
