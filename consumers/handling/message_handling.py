"""Handling one message: calling its handler, and collecting the effects."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from consumers.calls.handler_call import call, call_without_connection
from consumers.calls.lending import BusyContext, LendingContext
from consumers.calls.undoing import UndoableContext
from consumers.effects.effects import Effects
from consumers.failures.failure import Failure, HandlerRaisedError, Reason
from consumers.handling.decoding import Decoded
from consumers.handling.entity_copies import EntityCopies
from consumers.handling.state_handling import StateContext, StateHandling
from consumers.limits.limits import Limits
from consumers.runtime.context import ConsumerContext
from consumers.runtime.observability.spans import MessageSpan
from reservation.context import Context
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.effects.deciding import (
    apply,
    decide,
    invoke,
    invoke_async,
    is_first,
    marks_first,
    rejection,
    with_first,
)
from reservation.errors import DatabaseUnavailableError, MessageError
from reservation.handlers.reject import Reject
from reservation.idempotence.passes import Pass, PassReason
from reservation.messages.message import StoredMessage

# What a message waits for that is paused by its type or its entity. A consumer looks again when it
# sees that a pause is over; after these seconds too, if it ended before it could do so.
PAUSED = Failure(Reason.PAUSED, wait=600.0)

_WITHOUT_LIMITS = nullcontext()


class MessageHandling:
    """Handles a message for one consumer of a component.

    Attributes:
        connection_used: whether a handler has asked for the connection.
    """

    def __init__(self, context: ConsumerContext, limits: Limits | None = None) -> None:
        declared = declarations(context.component)
        self._context = context
        self._limits = limits
        self._log_context = context.log_context
        self._component = context.component
        self.connection_used = False
        self._declared = declared.of(context.category)
        self._is_subscribed = context.category in declared.others
        self._commands = declared.commands
        self._marks_first = marks_first(context.component)
        # The types of messages of which one failed after its handler had used the connection.
        self._undoable: set[str] = set()
        self._copies = EntityCopies(context.log)
        self._states = StateHandling(context)

    def handle(self, item: Decoded, stream_name: str, effects: Effects) -> Failure | None:
        """Call the handler, apply its events to the entity and collect them to be written.

        Returns what the message has to wait for instead, if a limit holds it up.
        """
        if self.skips(item, stream_name, effects):
            return None
        if self.is_paused(item):
            self.forget_handled(item, effects)
            return PAUSED
        if self._limits is not None:
            limit = self._limits.before_call(item.message, item.command)
            if limit is not None:
                self.forget_handled(item, effects)
                return limit
        self._handle_in_span(item, stream_name, effects)
        return None

    def _handle_in_span(self, item: Decoded, stream_name: str, effects: Effects) -> None:
        self._log_context.enter_message(item.message, stream_name)
        spans = self._context.spans
        if spans.tracing is None or not spans.wants_span(item.message):
            self._handle(item, stream_name, effects)
            return
        again = self.is_again(item, effects)
        with spans.handling(item.message, self._component.name, again=again) as span:
            self._handle(item, stream_name, effects, span)

    def _handle(
        self,
        item: Decoded,
        stream_name: str,
        effects: Effects,
        span: MessageSpan | None = None,
    ) -> None:
        connection = self._context.connection
        message, declared = item.message, self._declared
        self._context.calls(message.global_position)
        initiates = declared[message.type].role is Role.INITIATE
        if self._states.applies_to(item):
            self._handle_on_state(item, stream_name, effects, span)
            return
        undoable = message.type in self._undoable
        kind: type[LendingContext | BusyContext]
        if connection.pgconn.pipeline_status:
            kind = BusyContext
        else:
            kind = UndoableContext if undoable else LendingContext
        context = kind(
            message,
            entity_stream=stream_name,
            connection=connection,
            unordered=item.unordered,
            replies_to=declarations(self._component).replies_to,
        )
        entity = None if initiates else self._copy_of(stream_name, effects, message)
        handle = partial(invoke, declared, message, item.command, entity, context, self._commands)

        outcome = "handled"
        try:
            with self.calling(message):
                events = self.call(message, handle, context)
        except Reject as reject:
            outcome, events = "rejected", rejection(declared, message, reject, context)
        except HandlerRaisedError as error:
            error.entity_stream = stream_name
            error.undo = partial(self.undo_call, item, context, effects)
            raise
        if isinstance(context, UndoableContext):
            context.keep()
        self.collect(item, stream_name, events, context, effects, outcome, span)

    def _handle_on_state(
        self, item: Decoded, stream_name: str, effects: Effects, span: MessageSpan | None
    ) -> None:
        """Call a handler that has a state, and no connection."""
        message, outcome = item.message, "handled"
        context = self._states.context_of(item, stream_name, effects)
        try:
            state = self._states.state_of(context)
            handle = partial(
                invoke, self._declared, message, item.command, state, context, self._commands
            )
            try:
                with self.calling(message):
                    events = call(self._context.connection, message, handle)
            except Reject as reject:
                outcome, events = "rejected", self.rejection(item, reject, context)
            self.collect(item, stream_name, events, context, effects, outcome, span)
        except MessageError as error:
            if self.keeps_first(item, error, effects):
                return
            if isinstance(error, HandlerRaisedError):
                error.entity_stream = stream_name
                error.undo = lambda: True  # it has had no connection
            raise

    def call(
        self,
        message: StoredMessage,
        handle: Callable[[], list[object]],
        context: LendingContext | BusyContext,
    ) -> list[object]:
        """Call a handler of a message, and take back from the connection what it set on it."""
        if isinstance(context, BusyContext):
            try:
                return call_without_connection(message, handle)
            finally:
                context.check()
        losses = self._context.losses
        try:
            events = call(self._context.connection, message, handle, context.noted)
        except DatabaseUnavailableError as error:
            if not context.gave_connection:
                raise
            fault = losses.fault_of(message, error)
            if fault is None:
                raise
            raise fault from error
        finally:
            if context.gave_connection:
                self.connection_used = True
                context.restore_connection()
        if context.gave_connection:
            losses.none_of(message)
        return events

    def _copy_of(self, stream_name: str, effects: Effects, message: StoredMessage) -> object:
        return self._copies.of(effects.entities[stream_name].entity, stream_name, message)

    def skips(self, item: Decoded, stream_name: str, effects: Effects) -> bool:
        """Note a reissue, or a message that was handled before; return whether it is either."""
        type_ = item.message.type
        if self._declared[type_].role is Role.INITIATE and effects.entities[stream_name].started:
            effects.reissued.append((item.message, stream_name))
            self._context.spans.skipped(item.message, self._component.name, "reissued")
            return True
        strategy = self._declared[type_].once
        if strategy is None:
            return False
        if effects.checks[strategy].is_duplicate(item.incoming) and not strategy.keeps_state:
            effects.counts["duplicate"] += 1
            self._context.spans.skipped(item.message, self._component.name, "duplicate")
            # What the log shows, as long as it is there, is not recorded beside it.
            if self._is_subscribed and not strategy.leaves_trace:
                effects.passes.append(Pass(item.message, PassReason.DUPLICATE))
            return True
        return False

    def is_again(self, item: Decoded, effects: Effects) -> bool:
        """Return whether a message is a duplicate whose handler is called again."""
        return self._states.first_handling(item, effects) is not None

    def keeps_first(self, item: Decoded, error: MessageError, effects: Effects) -> bool:
        """Return whether the first handling of a message stands, so that an error is no failure."""
        return self._states.keeps_first(item, error, effects)

    def context_of(self, item: Decoded, stream_name: str, effects: Effects) -> Context:
        """Return the context for a call of an async handler, without the batch's connection."""
        if self._states.applies_to(item):
            return self._states.context_of(item, stream_name, effects)
        return Context(
            item.message,
            entity_stream=stream_name,
            connect=self._context.connect,
            unordered=item.unordered,
            replies_to=declarations(self._component).replies_to,
        )

    def inputs_of(
        self, item: Decoded, stream_name: str, effects: Effects, context: Context
    ) -> object:
        """Return what the async handler of a message sees, to compare it with what it saw."""
        of_state, version = None, None
        if isinstance(context, StateContext):
            of_state = context.before, context.first
        elif self._declared[item.message.type].role is not Role.INITIATE:
            version = effects.entities[stream_name].version
        return item.message, item.unordered, version, of_state

    def decide(self, item: Decoded, effects: Effects) -> float | Failure:
        """Return in how many seconds a handler may be called, or what its message waits for."""
        decision: float | Failure
        if self.is_paused(item):
            decision = PAUSED
        elif self._limits is None:
            return 0.0
        else:
            decision = self._limits.decide(item.message, item.command)
        if isinstance(decision, Failure):
            self.forget_handled(item, effects)
        return decision

    def calling(self, message: StoredMessage) -> AbstractContextManager[None]:
        """Run a block that calls the handler of a message, which its limits are to know of."""
        return _WITHOUT_LIMITS if self._limits is None else self._limits.calling(message)

    @property
    def pauses_some(self) -> bool:
        """Whether messages of some types or entities are paused."""
        pauses = self._context.pauses
        return pauses is not None and pauses.single is not None

    def is_paused(self, item: Decoded) -> bool:
        """Return whether messages of its type or its entity are paused."""
        pauses = self._context.pauses
        single = None if pauses is None else pauses.single
        return single is not None and single.concern(item.message.type, item.entity_stream)

    async def awaited(
        self, item: Decoded, stream_name: str, effects: Effects, context: Context
    ) -> list[object]:
        """Return the events of an async handler."""
        message, declared = item.message, self._declared
        initiates = declared[message.type].role is Role.INITIATE
        if isinstance(context, StateContext):
            entity = self._states.state_of(context)
        else:
            entity = None if initiates else self._copy_of(stream_name, effects, message)
        return await invoke_async(declared, message, item.command, entity, context, self._commands)

    def undo(self, error: HandlerRaisedError) -> bool:
        """Take back what a handler did that raised; return whether that was possible.

        If it is not, the next calls for messages of the type can be undone, at the cost of a
        savepoint for each that uses the connection.
        """
        if error.undo():
            return True
        self._undoable.add(error.message.type)
        return False

    def is_undoable(self, type_: str) -> bool:
        """Return whether calls for messages of a type are to be undone one by one."""
        return type_ in self._undoable

    def undo_call(self, item: Decoded, context: Context, effects: Effects) -> bool:
        """Take back what one call of a handler did; return whether that was possible."""
        if isinstance(context, UndoableContext):
            context.undo()
        elif context.gave_connection:
            return False
        self.forget_handled(item, effects)
        return True

    def forget_handled(self, item: Decoded, effects: Effects) -> None:
        """Let its strategy forget a message that failed."""
        strategy = self._declared[item.message.type].once
        if strategy is not None:
            effects.checks[strategy].forget(item.incoming)

    def remember(self, item: Decoded, effects: Effects) -> None:
        """Let its strategy remember a message that was handled before."""
        strategy = self._declared[item.message.type].once
        if strategy is not None:
            with contextlib.suppress(MessageError):
                effects.checks[strategy].is_duplicate(item.incoming)

    def rejection(self, item: Decoded, reject: Reject, context: Context) -> list[object]:
        """Return the event of a command that was rejected; what its handler wrote is dropped."""
        return rejection(self._declared, item.message, reject, context)

    def collect(
        self,
        item: Decoded,
        stream_name: str,
        events: Sequence[object],
        context: Context,
        effects: Effects,
        outcome: str = "handled",
        span: MessageSpan | None = None,
    ) -> None:
        """Apply the events of a handler to its entity, and collect all that it wrote."""
        if isinstance(context, StateContext):
            outcome = self._states.collect(item, stream_name, events, context, effects, outcome)
            if span is not None:
                span.outcome = outcome
            return
        message, component, loaded = item.message, self._component, effects.entities[stream_name]
        metadata = None
        if span is not None:
            span.outcome = outcome
            metadata = span.propagate(message.follow_metadata(), context)
        strategy = self._declared[message.type].once
        if strategy is not None:
            check = effects.checks[strategy]
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
            effects.passes.append(Pass.handled(message, further))
        for row in rows:
            effects.writes.append(row)
            effects.written += len(row.data)
            apply(component, row, loaded, message)
        for row in further:
            effects.conditional |= row.expected_version is not None
            effects.write(component, row, message)
            effects.further.append(row)
        effects.scheduled += scheduled
        if outcome == "rejected":
            loaded.started = loaded.started or self._declared[message.type].role is Role.INITIATE
        effects.counts[outcome] += 1
