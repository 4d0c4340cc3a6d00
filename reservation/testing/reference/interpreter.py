"""One component on a log: each of its messages is taken, one at a time."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from psycopg import Connection

from reservation.component import Component
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.records import MessageDeclaration, Role
from reservation.declaration.table import declarations
from reservation.effects.addressing import (
    command_in,
    entity_stream_of,
    key_streams_of,
    unknown_type,
)
from reservation.effects.deciding import state_of
from reservation.effects.faults import RaisedByHandlerError, TakenIdError, is_interrupt
from reservation.entity.projection import Loaded
from reservation.errors import (
    ExpectedVersionError,
    HandlerError,
    MessageError,
)
from reservation.handlers.retry import AfterFailure, is_named, next_attempt
from reservation.idempotence.in_events import PositionInEvents
from reservation.idempotence.strategy import Incoming
from reservation.messages import stream_name
from reservation.messages.message import StoredMessage, followed_id
from reservation.messages.pseudo_event import starts
from reservation.store.writing.write import Row
from reservation.testing.calling import Call, call
from reservation.testing.reference.log import MemoryLog
from reservation.testing.reference.recognition import (
    entity_by_stream,
    first_copy,
    is_repeated,
    known_by,
    server_key,
)

# What becomes of messages that leave no dead letter.
DONE = ("reserved", "handled", "rejected", "duplicate", "redelivered", "ignored")


@dataclass(frozen=True, slots=True)
class HandlingOutcome:
    """The outcome of a message.

    Attributes:
        message: the message.
        category: the category that it was read from.
        outcome: one of `DONE`, or "conflict", "dead", "waiting" or "parked".
        entity: the stream of its entity, as far as it is known.
        error: why it is dead or waits; None for others.
        call: the call of its handler; None if there was none.
        key_stream: of a command that was compared with another, where that is.
    """

    message: StoredMessage
    category: str
    outcome: str
    entity: str | None = None
    error: MessageError | None = None
    call: Call | None = None
    key_stream: str | None = None


class _WrittenBefore(Exception):
    """A handler's decision is in the log already."""


class Interpreter:
    """A component's consumers.

    Attributes:
        log: the log.
        positions: by category, the global position of the last message that was taken.
        counts: how many messages became what.
        letters: by category, stream and position, the messages that were not handled.
        copies: the ids of the reserved copies.
        states: of `StateBased`, the newest states by the streams of their entities.
    """

    def __init__(
        self,
        component: Component[Any],
        log: MemoryLog,
        copy_id: Callable[[str], str],
        connection: Connection[Any] | None = None,
    ) -> None:
        self.component, self.log = component, log
        self._copy_id, self._connection = copy_id, connection
        self.positions, self.counts = Counter[str](), Counter[str]()
        self.letters: dict[tuple[str, str, int], HandlingOutcome] = {}
        self.states: dict[str, str] = {}
        self._memory: dict[Any, int] = {}
        self.copies: set[str] = set()
        self._entity: str | None = None

    @property
    def categories(self) -> list[str]:
        """The categories that are read, commands first."""
        component = self.component
        declared = declarations(component)
        commands = [declared.command_category] if declared.own.handled else []
        return [
            *commands,
            *declared.reservation_categories,
            *declared.subscribed_categories,
        ]

    def drain(self, category: str) -> list[HandlingOutcome]:
        """Take a category to its end."""
        taken = []
        for message in self.log.messages:  # which grows meanwhile
            at = message.global_position
            if at > self.positions[category] and _is_of(message, category):
                self.positions[category] = at
                taken.append(self.take(category, message))
        return taken

    def back(self, messages: int) -> None:
        """Set the positions back by so many messages."""
        for category, position in self.positions.items():
            read = [m for m in self.log.messages[:position] if _is_of(m, category)]
            left = [0, *(m.global_position for m in read)]
            self.positions[category] = left[max(len(read) - messages, 0)]

    def take(self, category: str, message: StoredMessage) -> HandlingOutcome:
        """Take a message, as often as it is tried, and set it aside if it cannot be handled.

        What a policy of its handler names is tried once: its next attempt has a time of its own.
        """
        tried, taken = 0, None
        while taken is None:
            try:
                taken = self.dispatch(category, message)
            except MessageError as error:
                if self._blocks(category):
                    taken = HandlingOutcome(message, category, "parked", self._entity)
                    continue
                following, is_named = self._following(category, message, error, tried)
                tried = following.attempts
                if is_named or following.wait is None:
                    outcome = "waiting" if following.wait is not None else "dead"
                    taken = HandlingOutcome(message, category, outcome, self._entity, error)
        if taken.outcome not in DONE:
            if taken.outcome == "conflict":  # which nothing waits behind
                taken = dataclasses.replace(taken, entity=None)
            self.letters.setdefault((category, message.stream_name, message.position), taken)
        self.counts[taken.outcome] += 1
        return taken

    def dispatch(self, category: str, message: StoredMessage) -> HandlingOutcome:
        """Take a message once."""
        component = self.component
        table = declarations(component)
        declared = table.of(category)
        self._entity = entity_by_stream(component, category, message)
        if declared.passes(message):
            return HandlingOutcome(message, category, "ignored")
        reserves = category == table.command_category
        reservation = declared[message.type].reservation
        direct = declared[message.type].handler is not None
        if not reservation and not (direct and (reserves or category in table.others)):
            raise unknown_type(declared, message)
        copies = reservation is not None and reserves
        if copies and (name := server_key(component, message)):
            if self._blocks(category):
                return HandlingOutcome(message, category, "parked", self._entity)
            return self._reserve(category, message, (name, None), declared[message.type])
        command = command_in(declared, message, is_interrupt)
        streams = (
            key_streams_of(reservation, message, command, is_interrupt)
            if reservation is not None and copies
            else None
        )
        self._entity = entity_stream_of(declared, message, command, is_interrupt)
        if self._blocks(category):
            return HandlingOutcome(message, category, "parked", self._entity)
        if streams is not None:
            return self._reserve(category, message, streams, declared[message.type])
        return self._handle(category, declared, message, command, self._entity)

    def _blocks(self, category: str) -> bool:
        """Return whether the message at hand waits behind a letter of its entity."""
        letters = ((key[0], taken.entity) for key, taken in self.letters.items())
        return self._entity is not None and (category, self._entity) in letters

    def _following(
        self, category: str, message: StoredMessage, error: MessageError, tried: int
    ) -> tuple[AfterFailure, bool]:
        """Return what follows, and whether the handler or its policy says so."""
        declared = declarations(self.component)
        cause = error.__cause__ if isinstance(error, RaisedByHandlerError) else None
        retry = declared.of(category)[message.type].retry
        following = next_attempt(cause, retry, declared.default_retry, tried)
        return following, is_named(cause, retry)

    def _compare(
        self,
        category: str,
        message: StoredMessage,
        name: str,
        first: StoredMessage,
        declared: MessageDeclaration,
    ) -> HandlingOutcome:
        same = is_repeated(self.component, declared, message, first)
        outcome = "duplicate" if same else "conflict"
        return HandlingOutcome(message, category, outcome, self._entity, key_stream=name)

    def _reserve(
        self,
        category: str,
        message: StoredMessage,
        streams: tuple[str, str | None],
        declared: MessageDeclaration,
    ) -> HandlingOutcome:
        name, first = first_copy(streams, self.log.stream)
        if first is not None:
            return self._compare(category, message, name, first, declared)
        metadata = message.follow_metadata()
        id_, class_ = self._copy_id(name), self.log.classes.get(message.global_position)
        self.copies.add(id_)
        self.log.add(id_, name, message.type, message.data, metadata.encode(), class_)
        return HandlingOutcome(message, category, "reserved", self._entity, key_stream=name)

    def _handle(
        self,
        category: str,
        declared: CategoryDeclarations,
        message: StoredMessage,
        command: object,
        stream: str,
    ) -> HandlingOutcome:
        initiates = declared[message.type].role is Role.INITIATE
        keeps_state = message.type in declared.state_based
        loaded = self.load(stream, projected=not keeps_state)
        if initiates and loaded.started:
            first = next(event for event in self.log.stream(stream) if starts(event))
            cause = first.metadata.causation_message_global_position or 0
            command_of_first = self.log.messages[cause - 1]
            return self._compare(
                category, message, stream, command_of_first, declared[message.type]
            )
        once = declared[message.type].once
        renamed = declared.types.renamed.get(type(command), ())
        incoming = Incoming(message, command, stream, False, renamed)
        line, value = known_by(once, category, incoming)
        if line is not None and self._memory.get(line, -1) >= value:
            outcome = "redelivered" if once is not None and once.keeps_state else "duplicate"
            return HandlingOutcome(message, category, outcome, stream)
        first_event = self.log.find(followed_id(message.id, stream, 0))
        if first_event is not None and first_event.stream_name == stream:
            return HandlingOutcome(message, category, "redelivered", stream)
        if keeps_state:
            loaded.entity = state_of(self.component, self.states.get(stream), message)
        connection = self._connection
        try:
            with nullcontext() if connection is None else connection.transaction():
                version = None if keeps_state else loaded.version
                done = call(
                    self.component, declared, message, command, stream, loaded, connection, version
                )
                self._write(message, done)
        except _WrittenBefore:
            return HandlingOutcome(message, category, "redelivered", stream)
        if done.state is not None:
            self.states[stream] = done.state
        if line is not None and (not isinstance(once, PositionInEvents) or done.decided.events):
            self._memory[line] = value
        outcome = "handled" if done.rejection is None else "rejected"
        return HandlingOutcome(message, category, outcome, stream, call=done)

    def load(self, stream: str, *, projected: bool = True) -> Loaded:
        """Return an entity as its events make it, or if it is not to be projected, a new one."""
        component = self.component
        loaded = Loaded(None if component.entity is None else component.entity())
        for event in self.log.stream(stream):
            if projected:
                loaded.entity = declarations(component).projection.apply_stored(
                    loaded.entity, event
                )
            loaded.version = event.position
            loaded.started = loaded.started or starts(event)
        return loaded

    def _write(self, message: StoredMessage, done: Call) -> None:
        """Write what a handler decided."""
        decided = done.decided
        rows: list[tuple[Row, type | None]] = list(
            zip_longest(decided.events, map(type, done.events))
        )
        classes = (type(one.message) for one in done.context.writes)
        rows += zip(decided.further, classes, strict=True)
        for row, _ in rows:
            found = self.log.find(row.id)
            if found is not None and found.stream_name == row.stream_name:
                raise _WrittenBefore
        try:
            self._check(message, rows)
        except ExpectedVersionError as error:
            raise HandlerError(
                f"The handler of {message} wrote with an expected version that is not met: {error}"
            ) from error
        for row, class_ in rows:
            self.log.write(row, class_)
        for scheduled, one in zip(decided.scheduled, done.context.scheduled, strict=True):
            self.log.schedule(scheduled, type(one.message))

    def _check(self, message: StoredMessage, rows: list[tuple[Row, type | None]]) -> None:
        """Refuse what the log would refuse, before any of it is written."""
        ahead = Counter[str]()
        for row, _ in rows:
            if (found := self.log.find(row.id)) is not None:
                raise TakenIdError(message, row.id, found.stream_name)
            version = self.log.version(row.stream_name) + ahead[row.stream_name]
            ahead[row.stream_name] += 1
            if row.expected_version not in (None, version):
                raise ExpectedVersionError(
                    f"Wrong expected version: {row.expected_version} (Stream: {row.stream_name}, "
                    f"Stream Version: {version})"
                )


def _is_of(message: StoredMessage, category: str) -> bool:
    return stream_name.category(message.stream_name) == category
