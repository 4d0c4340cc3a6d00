"""Given events, when a command, then what follows: a component's decisions, without a database.

A message goes the way that it goes in the consumers. A command that is reserved is copied, and its
copy handled; a repeated one is recognized; what they refuse raises the same error. What needs a
server is not shown: transactions, tables of one's own, kills and concurrency.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NamedTuple, TypeGuard, cast

from psycopg import Connection

from reservation.component import Component
from reservation.context import Context
from reservation.declaration.category import CategoryDeclarations
from reservation.declaration.table import declarations
from reservation.effects.deciding import state_of
from reservation.effects.faults import RaisedByHandlerError, conflict
from reservation.errors import DeclarationError, MessageError
from reservation.handlers.protocols import Entity
from reservation.handlers.retry import Retry, RetryLater, is_named, next_attempt
from reservation.messages.comparison import same_json
from reservation.messages.message import StoredMessage
from reservation.messages.metadata import Metadata
from reservation.messages.stream_name import category as category_in
from reservation.messages.stream_name import of
from reservation.serialization import codec
from reservation.store.writing.write import Write
from reservation.testing.messages import (
    Stored,
    category_of,
    declaration_of,
    encoded,
    made_up_id,
    sent,
)
from reservation.testing.reference.interpreter import HandlingOutcome, Interpreter
from reservation.testing.reference.log import TIME, MemoryLog, id_conflict

Outcome = Literal["handled", "rejected", "duplicate", "redelivered", "ignored", "waiting"]


class FurtherMessage(NamedTuple):
    """A message that a handler wrote besides its events; it equals a tuple of the two.

    Attributes:
        message: the message.
        stream_name: the stream that it goes to.
    """

    message: object
    stream_name: str


class ScheduledMessage(NamedTuple):
    """A message that a handler scheduled; it equals a tuple of the three.

    Attributes:
        message: the message.
        stream_name: the stream that it goes to.
        due: when it is to be written, in UTC.
    """

    message: object
    stream_name: str
    due: datetime


@dataclass(frozen=True, slots=True)
class Result(Generic[Entity]):
    """The effects of a message, or of several in a row.

    Attributes:
        events: the events of the entity, in order, as the handlers returned them.
        writes: the further messages, in order.
        scheduled: the messages that are written later, in order.
        rejection: why the command was rejected with `Reject`; None if it was not. As those below,
            of the last message.
        retry_later: how long its handler asked to wait with `RetryLater`; None if it did not.
        outcome: "handled", "rejected", "waiting" for its next attempt, after `RetryLater` or by the
            ``retry=`` of its handler, "ignored", or where its handler was not called "duplicate" (a
            reissue) or "redelivered" (handled before).
        entity: the entity after it, made from its events; of `StateBased` the state. None of a
            component without one.
        message: the stored message, as its handler had it.
        context: the context that its handler was given; None if no handler was called.
        stored: all messages that were stored for it, with their ids, metadata and positions.
        error: of a message that waits, the error of this attempt, whose ``__cause__`` is what its
            handler raised; else None.
    """

    events: list[Any]  # Any: events are of all classes of the component's
    writes: list[FurtherMessage]
    scheduled: list[ScheduledMessage]
    rejection: str | None
    retry_later: timedelta | None
    outcome: Outcome
    entity: Entity
    message: StoredMessage
    context: Context | None
    stored: list[StoredMessage]
    error: MessageError | None = None


def given(
    component: Component[Entity],
    entity_id: str | None = None,
    events: Sequence[object] = (),
    *,
    streams: Mapping[str, Sequence[object]] | None = None,
    state: Entity | None = None,
    time: datetime = TIME,
    connection: Connection[Any] | None = None,
) -> "Scenario[Entity]":
    """Begin a scenario with what is stored before.

    ``given(account, "123", [Opened("123"), Deposited("123", 5)]).when(Withdraw("123", 7))``

    Args:
        component: the component.
        entity_id: the id of the entity that it is about; None if nothing is given of any.
        events: the events in the stream of that entity, in order. `Stored` stands for one of a
            former shape.
        streams: other streams, by their names, with their messages in order.
        state: of `StateBased`, the state of the entity, in the place of events.
        time: when the messages are stored, with a time zone; a handler has that of its message as
            ``context.time``.
        connection: what handlers get as ``context.connection``, to a database for tests; rolling
            back is up to the test. None for none.

    Raises:
        DeclarationError: the declaration is incomplete, events or a state are given of no entity,
            the id or the events are of another type, or there is no such state.
        StoreError: a given message cannot be stored, or a stream cannot have its name.
    """
    component.check()
    if entity_id is None and (events or state is not None):
        raise DeclarationError(
            f"given: there are events or a state, and no entity; name it, as in "
            f'given({component.name}, "123", [...])'
        )
    if not isinstance(entity_id, str | None):
        raise DeclarationError(
            f"given: the id of an entity is a str, as in the name of its stream; give "
            f"{str(entity_id)!r}"
        )
    if not isinstance(events, Iterable):
        raise DeclarationError("given: the events of an entity are a list; put [ ] around it")
    log = MemoryLog(time)
    facts = dict(streams or {})
    about = None if entity_id is None else of(component.name, entity_id)
    if about is not None:
        if about in facts:
            raise DeclarationError(f"given: {about} is there twice; give its events once")
        facts = {about: events, **facts}
    for name, messages in facts.items():
        for message in messages:
            _store(component, log, name, message)
    scenario = Scenario(component, log, connection, facts)
    if state is not None and about is not None:
        scenario.set_state(about, state)
    return scenario


class Scenario(Generic[Entity]):
    """The store so far; each `when` adds what follows."""

    def __init__(
        self,
        component: Component[Entity],
        log: MemoryLog,
        connection: Connection[Any] | None,
        facts: Mapping[str, Sequence[object]],
    ) -> None:
        """Begin; see `given`."""
        self._component = component
        self._log = log
        self._copy: str | None = None
        self._interpreter = Interpreter(component, log, self._copy_id, connection)
        self._tried = Counter[tuple[str, str, str | None]]()  # of what waits, how often
        # Where nothing is given of an entity, no command can miss it by a typing error.
        self._known = {name for name in facts if category_in(name) == component.name}

    def set_state(self, entity_stream: str, state: Entity) -> None:
        """Let a state be the newest of an entity.

        Raises:
            DeclarationError: no handler has `StateBased`, or the state has no form in JSON.
        """
        component = self._component
        declared = declarations(component)
        of_others = (one.state_based for one in declared.others.values())
        if not declared.own.state_based and not any(of_others):
            raise DeclarationError(
                f"given: no handler of {component.name} is declared with once=StateBased(), so "
                f"entities are made from events; give these"
            )
        try:
            self._interpreter.states[entity_stream] = codec.encode(state)
        except Exception as error:
            raise DeclarationError(
                f"given: the state cannot be stored: {codec.explain(error)}"
            ) from error

    def when(
        self,
        message: object,
        *,
        category: str | None = None,
        id: uuid.UUID | None = None,  # noqa: A002  the field's word
        time: datetime | None = None,
        metadata: Metadata | None = None,
    ) -> Result[Entity]:
        """Handle a message, or several in a row, and return what follows.

        After an error, or if its message waits for the next attempt, nothing is stored of it: given
        again, that is the next attempt, and the last one by its ``retry=`` raises the error.

        Args:
            message: a command of the component, a message that it subscribes to, or a list of them.
            category: the subscribed category; None for the only one that there is for its class,
                which may be that of a command.
            id: the id of the message that the handler gets, for ids that derive from it; None for
                one that is the same at every run. With an id that was given before, the same
                message is handled again.
            time: when it is stored, with a time zone; None for the time as it was.
            metadata: what its sender gave it, such as a reply stream; None for none.

        Raises:
            DeclarationError: the component has no handler for it; or events of another entity are
                given, and none of its own.
            MessageError: the consumers would refuse it, or what its handler did. What the handler
                itself raised is the ``__cause__``.
            MessageIdConflictError: the id is in use for another message.
        """
        several = list(message) if isinstance(message, list | tuple) else [message]
        if not several:
            raise DeclarationError("when: there is no message to handle")
        if id is not None and len(several) > 1:
            raise DeclarationError("when: one id cannot serve several messages")
        if time is not None:
            self._log.time = time
        done: Result[Entity] | None = None
        for one in several:
            after = self._when(one, category, id, metadata)
            done = after if done is None else _joined(done, after)
        assert done is not None  # noqa: S101  there is a message
        return done

    def _when(
        self,
        message: object,
        category: str | None,
        id_: uuid.UUID | None,
        metadata: Metadata | None,
    ) -> Result[Entity]:
        component, log = self._component, self._log
        declared = declaration_of(component, type(message), category)
        self._check_entity(declared, message)
        before = len(log.messages)
        category_to, stored = self._send(declared, message, id_, metadata)
        tried = stored.stream_name, stored.type, stored.data
        try:
            taken = self._dispatch(category_to, stored)
        except BaseException as error:
            handled = log.messages[-1] if len(log.messages) > before else stored
            log.forget(before)
            if not _waits(error, declared[stored.type].retry, self._tried[tried]):
                raise
            self._tried[tried] += 1
            taken = HandlingOutcome(handled, category_to, "waiting", error=error)
        return self._result(taken, declared.entity_stream(message), log.messages[before:])

    def _dispatch(self, category: str, message: StoredMessage) -> HandlingOutcome:
        """Take a message; one that is reserved as its copy."""
        taken = self._interpreter.dispatch(category, message)
        if taken.outcome == "reserved":
            copy = self._log.messages[-1]
            taken = self._interpreter.dispatch(category_in(copy.stream_name), copy)
        if taken.outcome == "conflict":
            raise MessageError(conflict(message, str(taken.key_stream)))
        return taken

    def _send(
        self,
        declared: CategoryDeclarations,
        message: object,
        id_: uuid.UUID | None,
        metadata: Metadata | None,
    ) -> tuple[str, StoredMessage]:
        """Store a message as its sender would; return it, and the category to read it from."""
        component, log = self._component, self._log
        write = sent(component, declared, message)
        handled = id_ or made_up_id("message", len(log.messages))
        write = replace(write, id=handled, metadata=metadata)
        row = encoded(declared, write)
        found = log.find(handled)
        if found is not None:  # once more, as it was read before
            if found.type != row.type or not same_json(found.data or "null", row.data):
                raise id_conflict(row, found)
            return category_in(found.stream_name), found
        if row.type in declared.reservations:  # the handler gets the copy
            self._copy = str(handled)
            row = row._replace(id=made_up_id("command", handled))
        return category_of(component, declared), log.write(row, type(message))

    def _result(
        self, taken: HandlingOutcome, entity_stream: str, stored: list[StoredMessage]
    ) -> Result[Entity]:
        interpreter, call = self._interpreter, taken.call
        cause = None if taken.error is None else taken.error.__cause__
        entity: Any = None
        if entity_stream in interpreter.states:
            entity = state_of(self._component, interpreter.states[entity_stream], taken.message)
        elif self._component.entity is not None:
            entity = interpreter.load(entity_stream).entity
        context = None if call is None else call.context
        return Result(
            events=[] if call is None else call.events,
            writes=[FurtherMessage(one.message, one.stream_name) for one in _writes(context)],
            scheduled=[
                ScheduledMessage(one.message, one.stream_name, one.due)
                for one in (() if context is None else context.scheduled)
            ],
            rejection=None if call is None else call.rejection,
            retry_later=cause.after if isinstance(cause, RetryLater) else None,
            outcome=cast(Outcome, taken.outcome),
            entity=entity,
            message=taken.message,
            context=context,
            stored=stored,
            error=taken.error,
        )

    def _copy_id(self, stream_name: str) -> str:
        return self._copy or str(made_up_id("copy", stream_name))

    def _check_entity(self, declared: CategoryDeclarations, message: object) -> None:
        try:
            stream = declared.entity_stream(message)
        except Exception:  # noqa: BLE001  which the handling refuses
            return
        if self._known and stream not in self._known:
            raise DeclarationError(
                f"when: {type(message).__name__} is for {stream}, and the given streams are "
                f"{', '.join(sorted(self._known))}; correct its id, or give "
                f"streams={{{stream!r}: []}} too"
            )


def _waits(error: BaseException, retry: Retry | None, tried: int) -> TypeGuard[MessageError]:
    """Return whether a message that was tried so often before waits for its next attempt."""
    if not isinstance(error, RaisedByHandlerError) or not is_named(error.__cause__, retry):
        return False
    once = Retry(attempts=1)
    return next_attempt(error.__cause__, retry, once, tried).wait is not None


def _store(component: Component[Any], log: MemoryLog, name: str, message: object) -> None:
    """Store a fact that is given."""
    id_ = made_up_id("given", name, log.version(name) + 1)
    if isinstance(message, Stored):
        log.write(message.row(id_, name))
    else:
        declared = declarations(component).of(category_in(name))
        log.write(encoded(declared, Write(message, name, id_)), type(message))


def _writes(context: Context | None) -> Sequence[Write]:
    return () if context is None else context.writes


def _joined(before: Result[Entity], last: Result[Entity]) -> Result[Entity]:
    """Return what followed from messages in a row."""
    return replace(
        last,
        events=[*before.events, *last.events],
        writes=[*before.writes, *last.writes],
        scheduled=[*before.scheduled, *last.scheduled],
        stored=[*before.stored, *last.stored],
    )
