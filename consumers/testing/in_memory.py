"""A component, or several, on a log in memory: what a store would hold afterwards.

This is the reference interpreter with which the consumers are tested. It takes one message at a
time and reads the entity from the log before each, so it shows what is stored whatever the batch
size, the number of workers and the restarts. It does not show these themselves: transactions that
race, processes that are killed, handlers that differ from call to call.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from psycopg import Connection

from consumers.failures.failure import Failure, conflict
from reservation.component import Component
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.table import declarations
from reservation.effects.deciding import state_of
from reservation.errors import DeclarationError, ReservationError
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.messages.stream_name import category as category_of
from reservation.messages.stream_name import of
from reservation.messages.written import written_as
from reservation.serialization import codec
from reservation.store.writing.write import Write, row_of
from reservation.testing.messages import declaration_of, made_up_id, sent
from reservation.testing.reference.interpreter import HandlingOutcome, Interpreter
from reservation.testing.reference.log import TIME, MemoryLog
from reservation.testing.scenario import ScheduledMessage

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """The outcome of a message that a component took.

    Attributes:
        component: the component's name.
        message: the message.
        outcome: "reserved", "handled", "rejected", "duplicate" (a reissue), "redelivered" (handled
            before), "ignored"; or, of a dead letter, "conflict", "dead", "waiting" (for its next
            attempt) or "parked" (behind another letter of its entity).
        reason: the reason of a dead letter, as `reservation dead-letters list` shows it; else None.
        error: what a dead letter says; else None.
    """

    component: str
    message: StoredMessage
    outcome: str
    reason: str | None = None
    error: str | None = None


class InMemoryStore:
    """The contents of a store, and the outcome of each message.

    Attributes:
        outcomes: what became of each message, in the order of their taking. A command that is
            reserved is there twice, as itself and as its copy.
        scheduled: the messages that are written later, in order.
    """

    def __init__(
        self, interpreters: Sequence[Interpreter], log: MemoryLog, outcomes: list[MessageOutcome]
    ) -> None:
        """Keep what was run; see `run_in_memory`."""
        self._interpreters = {one.component.name: one for one in interpreters}
        self._log = log
        self.outcomes = outcomes
        self.scheduled = [
            ScheduledMessage(self._decoded_scheduled(row), row.stream_name, row.due)
            for row in log.scheduled
        ]

    @property
    def messages(self) -> list[StoredMessage]:
        """All messages, as they are stored, in the order of their global positions."""
        return list(self._log.messages)

    @property
    def streams(self) -> dict[str, list[Any]]:  # Any: messages are of all classes
        """The messages of each stream, decoded, without pseudo events.

        A message that no declaration can decode is a `StoredMessage`.
        """
        streams: dict[str, list[Any]] = {}
        for message in self._log.messages:
            held = streams.setdefault(message.stream_name, [])
            if message.type != PSEUDO_EVENT:
                held.append(self._decoded(message))
        return streams

    @property
    def reservations(self) -> dict[str, Any]:  # Any: commands are of all classes
        """The reserved commands, decoded, by the streams of their keys."""
        keys = {
            one.message.stream_name: one.message
            for one in self.outcomes
            if self._is_copy(one.message)
        }
        return {name: self._decoded(message) for name, message in keys.items()}

    @property
    def dead_letters(self) -> list[MessageOutcome]:
        """The messages that could not be handled, those that wait and those behind them too."""
        return [one for one in self.outcomes if one.reason is not None]

    @property
    def counts(self) -> Counter[str]:
        """Messages counted by outcome, as `consumers.Drained` has them."""
        return Counter(one.outcome for one in self.outcomes)

    def entity(self, component: Component[E], entity_id: str) -> E:
        """Return an entity as its events make it; of `StateBased` its newest state.

        Args:
            component: one of the components that were run.
            entity_id: the id of the entity.

        Raises:
            DeclarationError: the component was not run.
            MessageError: an event cannot be applied.
        """
        interpreter = self._interpreters.get(component.name)
        if interpreter is None:
            raise DeclarationError(f"{component.name} was not run; pass it to run_in_memory too")
        stream = of(component.name, entity_id)
        if stream in interpreter.states:
            message = self._log.messages[-1]
            state: E = state_of(component, interpreter.states[stream], message)
            return state
        entity: E = interpreter.load(stream).entity  # type: ignore[assignment]  # made by it
        return entity

    def _is_copy(self, message: StoredMessage) -> bool:
        return any(message.id in one.copies for one in self._interpreters.values())

    def _decoded(self, message: StoredMessage) -> Any:
        class_ = self._log.classes.get(message.global_position)
        try:
            for types in self._types(category_of(message.stream_name)):
                if message.type in types and class_ in (None, types[message.type]):
                    return types.decode(message)
            if class_ is not None:
                return message.decode(class_)
        except ReservationError:
            return message
        return message

    def _types(self, category: str) -> Iterable[Any]:
        """Give the registries of types in which a category's may be, the likeliest first."""
        tables = [declarations(one.component) for one in self._interpreters.values()]
        for table in tables:
            if category in (table.name, *table.own_categories):
                yield table.types
        for table in tables:
            if category in table.others:
                yield table.others[category].types
        for table in tables:
            yield table.types

    def _decoded_scheduled(self, row: Any) -> Any:
        class_ = self._log.scheduled_classes.get(row.id)
        return row if class_ is None else codec.decode_encoded(class_, row.data)


def run_in_memory(
    component: Component[Any] | Sequence[Component[Any]],
    messages: Iterable[object],
    *,
    time: datetime = TIME,
    connection: Connection[Any] | None = None,
) -> InMemoryStore:
    """Run a component, or several, on messages, and return what a store would hold afterwards.

    ``run_in_memory(account, [Open("123"), Deposit("d1", "123", 5), Deposit("d1", "123", 5)])``

    All categories are taken to their ends, in turns, one message at a time. What one component
    writes, the others read. A message that cannot be handled is set aside as the consumers do,
    after as many attempts, without waiting between them.

    Messages that are scheduled stay so. Nothing is forgotten: ``keep`` and ``window`` of
    strategies have no effect, and neither have rates, breakers, partitions and snapshots.

    Args:
        component: the component, or a list of components.
        messages: what is sent, in order. Each is a command, or a message that one of the components
            subscribes to, which goes to the stream that its sender would choose; or a `Write`, with
            its stream, and perhaps its id and metadata; or a `StoredMessage`, of which the
            positions are new. The same command again is a reissue; one with the id of another
            that says the same is that one.
        time: when the messages are stored, with a time zone.
        connection: what handlers get as ``context.connection``, to a database for tests; what a
            handler that fails did is rolled back. None for none.

    Returns:
        What a store would hold, and what became of each message.

    Raises:
        DeclarationError: a declaration is incomplete, two components have one name, or a message
            is of none of them, or of several.
        StoreError: a message cannot be stored, or its id is in use for another one.
    """
    components = [component] if isinstance(component, Component) else list(component)
    for one in components:
        one.check()
    names = Counter(one.name for one in components)
    if not names or len(names) < len(components):
        raise DeclarationError(
            "run_in_memory takes one or more components, each with a name of its own"
        )
    if not isinstance(messages, Iterable):
        raise DeclarationError("run_in_memory takes a list of messages; put [ ] around the message")
    log = MemoryLog(time)
    for message in messages:
        _send(log, components, message)
    interpreters = [
        Interpreter(one, log, lambda name: str(made_up_id("copy", name)), connection)
        for one in components
    ]
    outcomes: list[MessageOutcome] = []
    moved = True
    while moved:
        moved = False
        for interpreter in interpreters:
            for category in interpreter.categories:
                taken = interpreter.drain(category)
                moved = moved or bool(taken)
                outcomes += (_outcome(interpreter.component.name, one) for one in taken)
    return InMemoryStore(interpreters, log, outcomes)


def _outcome(name: str, taken: HandlingOutcome) -> MessageOutcome:
    message, outcome = taken.message, taken.outcome
    if outcome == "conflict":
        failure = conflict(message, str(taken.key_stream))
    elif taken.error is not None:
        failure = Failure.of(taken.error)
    else:
        return MessageOutcome(name, message, outcome, "parked" if outcome == "parked" else None)
    return MessageOutcome(name, message, outcome, failure.reason.value, failure.error)


def _send(log: MemoryLog, components: Sequence[Component[Any]], message: object) -> None:
    """Store a message as its sender would."""
    if isinstance(message, StoredMessage):
        if log.find(message.id) is None:
            log.add(
                message.id,
                message.stream_name,
                message.type,
                message.data,
                message.metadata_json,
            )
        return
    if isinstance(message, Write):
        written = _written(components, category_of(message.stream_name))
        write = message
    else:
        one, declared = _receiver(components, message)
        write, written = sent(one, declared, message), declared.types.written
    id_ = write.id or made_up_id("message", len(log.messages))
    row = row_of(write, id_ if isinstance(id_, uuid.UUID) else None, written=written)
    log.write(row, type(write.message))


def _written(components: Sequence[Component[Any]], category: str) -> Any:
    for one in components:
        if category in (one.name, *declarations(one).own_categories):
            return declarations(one).types.written
    return written_as


def _receiver(
    components: Sequence[Component[Any]], message: object
) -> tuple[Component[Any], CategoryDeclarations]:
    """Return the component that a message is for, and the declaration of its handler."""
    class_ = type(message)
    found = [
        one
        for one in components
        if class_.__name__ in declarations(one).own.handled
        or any(subscribed.types.has(class_) for subscribed in declarations(one).others.values())
    ]
    if len(found) > 1:
        raise DeclarationError(
            f"{class_.__name__} may be for {', '.join(one.name for one in found)}; name its stream "
            f"with a Write"
        )
    receiver = found[0] if found else components[0]
    return receiver, declaration_of(receiver, class_, None)
