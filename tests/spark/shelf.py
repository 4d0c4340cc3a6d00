"""A component with a command of each kind, and its messages, put where a test wants them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg import Connection

from reservation import Component, Key
from reservation.messages.message import followed_id, further_id
from tests.spark.builders import insert
from tests.support.stored_positions import store_position


@dataclass
class Deposit:
    a_id: str
    key: str
    says: str


@dataclass
class Withdraw:
    a_id: str
    key: str
    says: str


@dataclass
class Open:
    a_id: str
    says: str


@dataclass
class Close:
    a_id: str


component = Component("a", id="a_id")
for _reserved in (Deposit, Withdraw):
    component.handle(_reserved, key=Key("key", into="t", shared=True))(lambda *_: None)
component.initiate(Open)(lambda *_: None)
component.handle(Close, once=None)(lambda *_: None)

# The consumer of the copies has read those up to the first, that of the commands those up to the
# last, and it began at the second, so of the conflicts below that nothing is recorded.
COPIES_READ, BEGAN, COMMANDS_READ = 999, 2_000, 2_999
FOLLOWED, UNWATCHED, WATCHED, UNREAD = 1, COPIES_READ + 1, BEGAN + 1, COMMANDS_READ + 1


@dataclass(frozen=True)
class Message:
    """A message of a case.

    Attributes:
        stream, type, data: as they are stored, with `{e}` for the id of the case's entity.
        cause: which message of the case it follows, or the global position of none.
        derived: how its id derives from that of its cause; None if it does not.
        read: whether the consumer of the commands has read it.
        letter: the reason for which it is a dead letter.
    """

    stream: str
    type: str
    data: dict[str, Any] = field(default_factory=dict)
    cause: int | None = None
    derived: Any = None
    read: bool = True
    letter: str | None = None
    first: int | None = None


def sent(key: str | None = "k", says: str = "same", type_: str = "Deposit") -> Message:
    """Return a command."""
    data = {"aId": "{e}", "key": key, "says": says}
    return Message("a:command-{e}", type_, data)


def opens(says: str = "same") -> Message:
    """Return a command that initiates."""
    return Message("a:command-{e}", "Open", {"aId": "{e}", "says": says})


def copy(says: str = "same", stream: str = "t-{e}+k", type_: str = "Deposit") -> Message:
    """Return a reserved command."""
    return Message(stream, type_, {"aId": "{e}", "key": "k", "says": says})


def event(cause: int | None, type_: str = "Done", stream: str = "a-{e}", **more: Any) -> Message:
    """Return an event that follows a message of the case."""
    return Message(stream, type_, {}, cause, **more)


def derived(ordinal: int) -> Any:
    """Derive an id as the framework does for what a handler returns."""
    return lambda cause, entity, stream: followed_id(cause, stream, ordinal)


def further(ordinal: int, entity: str | None = None) -> Any:
    """Derive an id as the framework does for what a handler writes to another entity."""
    return lambda cause, own, stream: further_id(cause, entity or own, stream, ordinal)


def derived_elsewhere(ordinal: int) -> Any:
    """Derive an id as the framework does for another stream."""
    return lambda cause, entity, stream: followed_id(cause, f"{stream}x", ordinal)


def unread(message: Message) -> Message:
    """Return it as one that the consumer of the commands has not read."""
    return replace(message, read=False)


def letter(message: Message, reason: str = "handler") -> Message:
    """Return it as a dead letter."""
    return replace(message, letter=reason)


class Shelf:
    """Writes the messages of cases, each for an entity of its own."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._next = {start: start for start in (FOLLOWED, UNWATCHED, WATCHED, UNREAD)}
        self._entities = 0

    def put(self, region: int, messages: Sequence[Message]) -> list[int]:
        """Write the messages of a case; return their global positions."""
        self._entities += 1
        entity, written = f"e{self._entities}", []
        for message in messages:
            place = region if message.read else UNREAD
            at, self._next[place] = self._next[place], self._next[place] + 1
            written.append((at, str(uuid.uuid4())))
            self._write(message, entity, at, written)
        return [at for at, _ in written]

    def _write(
        self, message: Message, entity: str, at: int, written: list[tuple[int, str]]
    ) -> None:
        stream, metadata, id_ = message.stream.format(e=entity), {}, written[-1][1]
        if message.cause is not None:
            cause, cause_id = (
                written[message.cause] if message.cause < len(written) else (message.cause, "")
            )
            metadata["causationMessageGlobalPosition"] = cause
            if message.derived is not None:
                id_ = str(message.derived(cause_id, f"a-{entity}", stream))
        if message.first is not None:
            metadata["localProperties"] = {"first": message.first}
        data = {
            name: value.format(e=entity) if isinstance(value, str) else value
            for name, value in message.data.items()
        }
        insert(self._connection, stream, message.type, data, metadata, at=at, id_=id_)
        if message.letter is not None:
            category = stream.partition("-")[0]
            self._connection.execute(
                "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
                "message_id, stream_name, type, state, reason, process) "
                "VALUES ('a', %s, %s, %s, %s, %s, 'dead', %s, 'p')",
                [category, at, id_, stream, message.type, message.letter],
            )

    def consumers(self) -> None:
        """Say how far the consumers are."""
        for category, position in (("a:command", COMMANDS_READ), ("t", COPIES_READ)):
            self._connection.execute(
                "INSERT INTO reservation.groups (consumer, category, partitions, first_position) "
                "VALUES ('a', %s, 1, %s)",
                [category, BEGAN],
            )
            store_position(self._connection, "a", category, position)
