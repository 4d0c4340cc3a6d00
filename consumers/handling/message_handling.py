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
from consumers.runtime.observability.spans import MessageSpan
from reservation.context import Context
from reservation.effects.deciding import (
    apply,
    decide,
    invoke,
    invoke_async,
    is_first,
    lent,
    marks_first,
    rejection,
    with_first,
)
from reservation.errors import MessageError
from reservation.handlers.reject import Reject
from reservation.idempotence.passes import Pass, PassReason
from reservation.messages.message import StoredMessage
from reservation.store.writing.write import Row


class MessageHandling:
    """How one consumer of a component handles a message.

    Attributes:
        gave_connection: whether a handler has asked for the connection.
    """

    def __init__(self, context: ConsumerContext) -> None:
        """Prepare.

        Args:
            context: the consumer.
        """
        self._context = context
        self._log_context = context.log_context
        self._component = context.component
        self._declared = context.component.declared_in(context.category)
        self._is_subscribed = context.category in context.component.subscribed
        self._commands = context.component.commands
        self._marks_first = marks_first(context.component)
        # The types of messages whose handlers may have to be undone.
        self._undoable = set(self._declared.retries)
        self.gave_connection = False

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
        self._log_context.enter_message(item.message, stream_name)
        spans = self._context.spans
        if spans.tracing is None or not spans.takes(item.message):
            self._handle(item, stream_name, decisions)
            return
        with spans.handling(item.message, self._component.name) as span:
            self._handle(item, stream_name, decisions, span)

    def _handle(
        self,
        item: Decoded,
        stream_name: str,
        decisions: Decisions,
        span: MessageSpan | None = None,
    ) -> None:
        connection = self._context.connection
        self._context.heartbeat()
        message, declared = item.message, self._declared
        initiates = message.type in declared.initiations
        undoable = message.type in self._undoable
        context = (UndoableContext if undoable else Context)(
            message,
            entity_stream=stream_name,
            connection=connection,
            unordered=item.unordered,
        )
        entity = None if initiates else lent(decisions.entities[stream_name].entity, message)
        handle = partial(invoke, declared, message, item.command, entity, context, self._commands)

        outcome = "handled"
        try:
            events = call(connection, message, handle)
        except Reject as reject:
            outcome, events = "rejected", rejection(declared, message, reject, context)
        except HandlerRaisedError as error:
            error.entity_stream = stream_name
            error.undo = partial(self._undo, item, context, decisions)
            self.gave_connection |= context.gave_connection
            raise
        if context.gave_connection:
            self.gave_connection = True
        if undoable and isinstance(context, UndoableContext):
            context.keep()
        self.collect(item, stream_name, events, context, decisions, outcome, span)

    def passes(self, item: Decoded, stream_name: str, decisions: Decisions) -> bool:
        """Return whether a message needs no call, because it is a reissue or was handled before.

        Raises:
            ExpiredError: whether it was handled before is no longer known.
        """
        type_ = item.message.type
        if type_ in self._declared.initiations and decisions.entities[stream_name].started:
            decisions.reissued.append((item.message, stream_name))
            self._context.spans.passed(item.message, self._component.name, "reissued")
            return True
        strategy = self._declared.strategies.get(type_)
        if strategy is not None and decisions.checks[strategy].is_duplicate(item.incoming):
            decisions.counts["duplicate"] += 1
            self._context.spans.passed(item.message, self._component.name, "duplicate")
            # What the log shows, as long as it is there, is not recorded beside it.
            if self._is_subscribed and not strategy.leaves_trace:
                decisions.passes.append(Pass(item.message, PassReason.DUPLICATE))
            return True
        return False

    def context_of(self, item: Decoded, stream_name: str) -> Context:
        """Return the context for a call of an async handler, which has no connection."""
        return Context(item.message, entity_stream=stream_name, unordered=item.unordered)

    async def awaited(
        self, item: Decoded, stream_name: str, decisions: Decisions, context: Context
    ) -> list[object]:
        """Return the events of an async handler."""
        message, declared = item.message, self._declared
        initiates = message.type in declared.initiations
        entity = None if initiates else lent(decisions.entities[stream_name].entity, message)
        return await invoke_async(declared, message, item.command, entity, context, self._commands)

    def undo(self, error: HandlerRaisedError, tried: int, *, in_part: bool = False) -> bool:
        """Take back what a handler did that raised, if the batch is to be committed without it.

        If that is not possible, and its message could have been set aside, the next call for a
        message of the type can be undone.

        Args:
            error: as `handle` raised it; what is to follow is noted in it.
            tried: how often the message was tried before.
            in_part: whether the batch can end before a message that is not set aside.

        Returns:
            Whether nothing of the message is left in the transaction; else the error stands.
        """
        if not decide_on(error, self._declared, tried) and not in_part:
            return False
        if error.undo():
            return True
        if error.is_decided:
            self._undoable.add(error.message.type)
        return False

    def _undo(self, item: Decoded, context: Context, decisions: Decisions) -> bool:
        """Take back what one call of a handler did; return whether that was possible."""
        if isinstance(context, UndoableContext):
            context.undo()
        elif context.gave_connection:
            return False
        self.take_back(item, decisions)
        return True

    def take_back(self, item: Decoded, decisions: Decisions) -> None:
        """Let its strategy forget a message that failed."""
        strategy = self._declared.strategies.get(item.message.type)
        if strategy is not None:
            decisions.checks[strategy].take_back(item.incoming)

    def remember(self, item: Decoded, decisions: Decisions) -> None:
        """Let its strategy remember a message that was handled before."""
        with contextlib.suppress(MessageError):
            check = decisions.checks[self._declared.strategies[item.message.type]]
            check.is_duplicate(item.incoming)

    def rejection(self, item: Decoded, reject: Reject, context: Context) -> list[object]:
        """Return the event of a command that was rejected; what its handler wrote is dropped."""
        return rejection(self._declared, item.message, reject, context)

    def collect(
        self,
        item: Decoded,
        stream_name: str,
        events: Sequence[object],
        context: Context,
        decisions: Decisions,
        outcome: str = "handled",
        span: MessageSpan | None = None,
    ) -> None:
        """Apply the events of a handler to its entity, and collect all that it wrote.

        Args:
            item: the message, decoded.
            stream_name: the stream of its entity.
            events: what the handler returned, or the event of its rejection.
            context: what else it wrote.
            decisions: where the entity is, and its effects go.
            outcome: "handled" or "rejected".
            span: the span in which it was handled; None if none is recorded.
        """
        message, component, loaded = item.message, self._component, decisions.entities[stream_name]
        metadata = None
        if span is not None:
            span.outcome = outcome
            metadata = span.carried_by(message.follow_metadata(), context)
        strategy = self._declared.strategies.get(message.type)
        if strategy is not None:
            check = decisions.checks[strategy]
            metadata = metadata or message.follow_metadata()
            events, metadata = check.effects(item.incoming, events, metadata)
        if self._marks_first and is_first(loaded):
            metadata = with_first(metadata or message.follow_metadata(), loaded)
        rows, further, scheduled = decide(
            component,
            message,
            stream_name,
            events,
            context,
            metadata=metadata,
            version=loaded.version,
        )
        if not rows and self._is_subscribed:
            decisions.passes.append(Pass.handled(message, further))
        for row in rows:
            decisions.writes.append(row)
            decisions.written += len(row.data)
            apply(component, row, loaded, message)
        for row in further:
            self._further(row, message, decisions)
        decisions.scheduled += scheduled
        if outcome == "rejected":
            loaded.started = loaded.started or message.type in self._declared.initiations
        decisions.counts[outcome] += 1

    def _further(self, row: Row, message: StoredMessage, decisions: Decisions) -> None:
        """Collect a message that a handler wrote besides its events.

        If its stream is that of another entity of the batch, what is decided on that entity later
        is decided on this message too.
        """
        decisions.conditional |= row.expected_version is not None
        loaded = decisions.entities.get(row.stream_name)
        if loaded is not None and row.expected_version in (None, loaded.version):
            row = row._replace(expected_version=loaded.version)
            apply(self._component, row, loaded, message)
        decisions.writes.append(row)
        decisions.written += len(row.data)
        decisions.further.append(row)
