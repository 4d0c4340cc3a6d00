"""Handling one message: calling its handler, and collecting what that brings about."""

import contextlib
from collections.abc import Sequence
from functools import partial

from consumers.calls.handler_call import call
from consumers.calls.undoing import UndoableContext
from consumers.dead_letters.failure import HandlerRaisedError
from consumers.decisions.decisions import Decisions
from consumers.decisions.next_attempt import decide_on
from consumers.handling.decoding import Decoded
from consumers.runtime.context import ConsumerContext
from reservation.context import Context
from reservation.entity.projection import Loaded
from reservation.errors import HandlerError, MessageError, describe
from reservation.handlers.copying import copied
from reservation.handlers.returned import encode_events, encode_further, events_of
from reservation.messages.message import StoredMessage
from reservation.messages.pseudo_event import PSEUDO_EVENT
from reservation.store.writing import Row


class MessageHandling:
    """How one consumer of a component handles a message."""

    def __init__(self, context: ConsumerContext) -> None:
        """Prepare.

        Args:
            context: the consumer.
        """
        self._context = context
        self._component = context.component
        self._commands = context.component.commands
        # The types of messages whose handlers may have to be undone.
        self._undoable = set(context.component.retries)

    def handle(self, item: Decoded, stream_name: str, decisions: Decisions) -> None:
        """Call the handler, apply its events to the entity and collect them to be written.

        Args:
            item: the message, decoded, whose handler is not async.
            stream_name: the stream of its entity.
            decisions: where the entity is, and its effects go.

        Raises:
            HandlerRaisedError: the handler raised; see `undo`.
            MessageError: the message cannot be handled.
        """
        if self.passes(item, stream_name, decisions):
            return
        connection = self._context.connection
        self._context.heartbeat()
        message, component = item.message, self._component
        initiation = component.initiations.get(message.type)
        undoable = message.type in self._undoable
        context = (UndoableContext if undoable else Context)(
            message,
            entity_stream=stream_name,
            connection=connection,
            unordered=item.unordered,
        )
        entity = None if initiation is not None else lent(decisions.entities[stream_name], message)

        def handle() -> list[object]:
            if initiation is not None:
                returned = initiation.handler(item.command, context)
            else:
                returned = component.handlers[message.type](item.command, entity, context)
            return events_of(returned, message, self._commands, starts=initiation is not None)

        try:
            events = call(connection, message, handle)
        except HandlerRaisedError as error:
            error.undo = partial(self._undo, item, context, decisions)
            raise
        if undoable and isinstance(context, UndoableContext):
            context.keep()
        self.collect(item, stream_name, events, context, decisions)

    def passes(self, item: Decoded, stream_name: str, decisions: Decisions) -> bool:
        """Return whether a message needs no call, because it is a reissue or was handled before.

        Raises:
            ExpiredError: whether it was handled before is no longer known.
        """
        type_ = item.message.type
        if type_ in self._component.initiations and decisions.entities[stream_name].started:
            decisions.reissued.append((item.message, stream_name))
            return True
        strategy = self._component.strategies.get(type_)
        if strategy is not None and decisions.checks[strategy].is_duplicate(item.incoming):
            decisions.counts["duplicate"] += 1
            return True
        return False

    def context_of(self, item: Decoded, stream_name: str) -> Context:
        """Return the context for a call of an async handler, which has no connection."""
        return Context(item.message, entity_stream=stream_name, unordered=item.unordered)

    async def awaited(
        self, item: Decoded, stream_name: str, decisions: Decisions, context: Context
    ) -> list[object]:
        """Return the events of an async handler."""
        message, component = item.message, self._component
        initiation = component.initiations.get(message.type)
        if initiation is not None:
            returned = await initiation.handler(item.command, context)
        else:
            entity = lent(decisions.entities[stream_name], message)
            returned = await component.handlers[message.type](item.command, entity, context)
        return events_of(returned, message, self._commands, starts=initiation is not None)

    def undo(self, error: HandlerRaisedError, tried: int) -> bool:
        """Take back what a handler did that raised, if its message is to be tried later.

        Args:
            error: as `handle` raised it; what is to follow is noted in it.
            tried: how often the message was tried before.

        Returns:
            Whether nothing of the message is left, and it can be set aside; else the error stands.
        """
        return decide_on(error, self._component, tried) and error.undo()

    def _undo(self, item: Decoded, context: Context, decisions: Decisions) -> bool:
        """Take back what one call of a handler did; return whether that was possible.

        If it was not, the next call for a message of the type can be undone.
        """
        if isinstance(context, UndoableContext):
            context.undo()
        elif context.gave_connection:
            self._undoable.add(item.message.type)
            return False
        self.take_back(item, decisions)
        return True

    def take_back(self, item: Decoded, decisions: Decisions) -> None:
        """Let its strategy forget a message that failed."""
        strategy = self._component.strategies.get(item.message.type)
        if strategy is not None:
            decisions.checks[strategy].take_back(item.incoming)

    def remember(self, item: Decoded, decisions: Decisions) -> None:
        """Let its strategy remember a message that was handled before."""
        with contextlib.suppress(MessageError):
            check = decisions.checks[self._component.strategies[item.message.type]]
            check.is_duplicate(item.incoming)

    def collect(
        self,
        item: Decoded,
        stream_name: str,
        events: Sequence[object],
        context: Context,
        decisions: Decisions,
    ) -> None:
        """Apply the events of a handler to its entity, and collect all that it wrote."""
        message, component, loaded = item.message, self._component, decisions.entities[stream_name]
        metadata = message.follow_metadata()
        strategy = component.strategies.get(message.type)
        if strategy is not None:
            check = decisions.checks[strategy]
            events, metadata = check.effects(item.incoming, events, metadata)
        written = component.types.written
        rows = encode_events(events, message, stream_name, metadata, loaded.version, written)
        further = encode_further(context.writes, message, written)
        component.check_written(further, message)
        for row in rows:
            decisions.writes.append(row)
            self._apply(row, loaded, message)
        for row in further:
            self._further(row, message, decisions)
        decisions.counts["handled"] += 1

    def _further(self, row: Row, message: StoredMessage, decisions: Decisions) -> None:
        """Collect a message that a handler wrote besides its events.

        If its stream is that of another entity of the batch, what is decided on that entity later
        is decided on this message too.
        """
        decisions.conditional |= row.expected_version is not None
        loaded = decisions.entities.get(row.stream_name)
        if loaded is not None and row.expected_version in (None, loaded.version):
            row = row._replace(expected_version=loaded.version)
            self._apply(row, loaded, message)
        decisions.writes.append(row)
        decisions.further.append(row)

    def _apply(self, row: Row, loaded: Loaded, message: StoredMessage) -> None:
        self._component.projection.apply_encoded(loaded.entity, row, message)
        loaded.version += 1
        loaded.started = loaded.started or row.type != PSEUDO_EVENT


def lent(loaded: Loaded, message: StoredMessage) -> object:
    """Return a copy of an entity for a handler, so that only projectors change what is kept."""
    try:
        return copied(loaded.entity)
    except Exception as error:
        raise HandlerError(
            f"The {type(loaded.entity).__name__} that {message} is for cannot be copied for its "
            f"handler: {describe(error)}; keep in an entity what `copy.deepcopy` can copy"
        ) from error
