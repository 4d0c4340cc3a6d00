"""Handling a batch with async handlers: entities side by side, the messages of each in order.

What is written is what handling one message at a time would write. Each entity has a lane: its
messages are handled one after the other, each on what those before it left. A key by which a
strategy recognizes messages joins the lanes that it is in. Handlers that are not async are called
in the order of the messages, because they may use the connection. The effects of all are collected
in that order too.

One thing crosses lanes: what a handler writes to the stream of another entity of the batch. Then
the batch is run again, one message at a time, and so is each later one with such a message.
"""

import asyncio
from collections.abc import Coroutine, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from consumers.calls.handler_call import await_call
from consumers.dead_letters.failure import Failure, HandlerRaisedError
from consumers.decisions.blocking import Blocking
from consumers.decisions.decisions import Decisions
from consumers.decisions.next_attempt import decide_on
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.lanes import Slot, lanes
from consumers.handling.message_handling import MessageHandling
from consumers.runtime.backoff import Backoff
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.errors import MessageError, SerializationError
from reservation.handlers.reject import Reject


class ConcurrentHandling:
    """How one consumer of a component handles batches with messages of async handlers."""

    def __init__(
        self, context: ConsumerContext, messages: MessageHandling, decoding: Decoding
    ) -> None:
        self._context = context
        self._declared = declarations(context.component).of(context.category)
        self._messages = messages
        self._whose = decoding.whose
        self._crossing: set[str] = set()  # types whose handlers write to other entities

    def takes(self, decoded: Sequence[Decoded]) -> bool:
        """Return whether any message of a batch has an async handler."""
        concurrency = self._declared.concurrency
        return any(
            item.message.type in concurrency for item in decoded if item.entity_stream is not None
        )

    def run(self, decoded: Sequence[Decoded], decisions: Decisions, blocking: Blocking) -> None:
        """Handle the messages of a batch, and collect what they bring about."""
        slots = [Slot(n, item) for n, item in enumerate(decoded)]
        handled = [slot for slot in slots if slot.item.entity_stream is not None]
        in_order = any(slot.item.message.type in self._crossing for slot in handled)
        divided = [handled] if in_order else lanes(handled, partial(self._line, decisions))
        run = _Run(self._context, self._messages, decisions, blocking, in_order=in_order)
        self._context.event_loop.run(partial(run.calls, divided, handled))
        if not in_order:
            self._refuse_crossing(handled, decisions)
        self._collect(slots, decisions, blocking)

    def _line(self, decisions: Decisions, slot: Slot) -> Hashable | None:
        """Return what a message's strategy recognizes it by, whichever its entity is."""
        strategy = self._declared[slot.item.message.type].once
        line = None if strategy is None else decisions.checks[strategy].line(slot.item.incoming)
        return None if line is None else (strategy, line)

    def _refuse_crossing(self, slots: Sequence[Slot], decisions: Decisions) -> None:
        """Make sure that nothing was written to the stream of another entity of the batch."""
        for slot in slots:
            effects, message = slot.effects, slot.item.message
            if effects is None:
                continue
            streams = {row.stream_name for row in effects.writes} - {slot.item.entity_stream}
            if not streams.isdisjoint(decisions.entities):
                self._crossing.add(message.type)
                raise SerializationError(
                    f"The handler of {message} wrote to the stream of another entity of its "
                    f"batch, which is handled again, one message at a time"
                )

    def _collect(self, slots: Sequence[Slot], decisions: Decisions, blocking: Blocking) -> None:
        """Collect the effects in the order of the messages."""
        for slot in slots:
            item, message, effects = slot.item, slot.item.message, slot.effects
            if item.redelivered:
                continue
            entity = self._whose(message, item) if blocking.failed or slot.error else None
            if blocking.parks(message, entity):
                continue
            if slot.error is not None:
                if not blocking.sets_aside(message, entity, slot.error, slot.attempts):
                    slot.error.global_position = message.global_position
                    raise slot.error
            elif item.key_stream is not None:
                decisions.add_reservation(message, item.key_stream, item.former_stream)
            elif effects is not None and effects is not decisions:
                decisions.add_effects(effects)


class _Run:
    """The handling of one batch."""

    def __init__(
        self,
        context: ConsumerContext,
        messages: MessageHandling,
        decisions: Decisions,
        blocking: Blocking,
        *,
        in_order: bool,
    ) -> None:
        declared = declarations(context.component)
        self._declared = declared.of(context.category)
        self._attempts = declared.attempts
        self._heartbeat = context.heartbeat
        self._log_context = context.log_context
        self._loop = context.event_loop
        self._spans, self._consumer = context.spans, context.component.name
        self._messages = messages
        self._decisions = decisions
        self._blocking = blocking
        self._policy = blocking.policy
        self._in_order = in_order
        types, limits = self._declared.types, self._declared.concurrency
        limiters = {types[name]: asyncio.Semaphore(limit) for name, limit in limits.items()}
        self._limiters = {name: limiters[types[name]] for name in limits}
        self._previous: dict[int, asyncio.Event] = {}

    def calls(
        self, divided: Sequence[Sequence[Slot]], slots: Sequence[Slot]
    ) -> list[Coroutine[Any, Any, None]]:
        """Return a coroutine for each lane."""
        previous: asyncio.Event | None = None
        for slot in slots:
            if slot.item.message.type not in self._limiters:
                if previous is not None:
                    self._previous[slot.ordinal] = previous
                previous = slot.called = asyncio.Event()
        return [self._lane(lane) for lane in divided]

    async def _lane(self, lane: Sequence[Slot]) -> None:
        """Handle the messages of a lane; of each entity up to the first that fails."""
        failed: set[str] = set()
        try:
            for slot in lane:
                item, stream_name = slot.item, str(slot.item.entity_stream)
                if item.redelivered:
                    self._messages.remember(item, self._decisions)
                elif stream_name not in failed and not await self._handle(slot, stream_name):
                    failed.add(stream_name)
                if slot.called is not None:
                    slot.called.set()
        finally:
            for slot in lane:
                if slot.called is not None:
                    slot.called.set()

    async def _handle(self, slot: Slot, stream_name: str) -> bool:
        """Handle a message; return whether that succeeded, and its entity can go on."""
        decisions = self._decisions
        loaded = decisions.entities.get(stream_name)
        entity = {} if loaded is None else {stream_name: loaded}
        effects = (
            decisions if self._in_order else Decisions(entities=entity, checks=decisions.checks)
        )
        try:
            if slot.called is None:
                succeeded = await self._await(slot, stream_name, effects)
            else:
                succeeded = await self._call(slot, stream_name, effects)
        except MessageError as error:
            error.global_position = slot.item.message.global_position
            raise
        if succeeded:
            slot.effects = effects
        return succeeded

    async def _call(self, slot: Slot, stream_name: str, effects: Decisions) -> bool:
        """Call a handler that is not async, after all such handlers before it."""
        if slot.ordinal in self._previous:
            await self._previous[slot.ordinal].wait()
        try:
            with self._loop.blocking():
                self._messages.handle(slot.item, stream_name, effects)
        except HandlerRaisedError as error:
            if not self._messages.undo(error, self._policy.tried(slot.item.message)):
                raise
            slot.error = error
        return slot.error is None

    async def _await(self, slot: Slot, stream_name: str, effects: Decisions) -> bool:
        """Await an async handler, as often as its message is to be tried now."""
        item, message, messages = slot.item, slot.item.message, self._messages
        if messages.passes(item, stream_name, effects):
            return True
        backoff = Backoff()
        while True:
            async with self._limiters[message.type]:
                self._heartbeat()
                context = messages.context_of(item, stream_name, effects)
                again = messages.is_again(item, effects)
                call = partial(messages.awaited, item, stream_name, effects, context)
                outcome = "handled"
                self._log_context.enter_message(message, stream_name)
                try:
                    with self._spans.handling(message, self._consumer, again=again) as span:
                        try:
                            events = await await_call(message, call, self._loop)
                        except Reject as reject:
                            outcome, events = "rejected", messages.rejection(item, reject, context)
                        if span is not None:
                            span.outcome = outcome
                except MessageError as error:
                    if messages.keeps_first(item, error, effects):
                        return True
                    if isinstance(error, HandlerRaisedError):
                        error.entity_stream = stream_name
                    if self._is_over(slot, error):
                        slot.error = error
                        messages.take_back(item, effects)
                        return False
                    events = None
                if events is not None:
                    messages.collect(item, stream_name, events, context, effects, outcome, span)
                    return True
            slot.attempts += 1
            await asyncio.sleep(backoff.next())
            # The handler may have changed the command before it failed.
            item = replace(item, command=self._declared.types.decode(message))

    def _is_over(self, slot: Slot, error: MessageError) -> bool:
        """Return whether a message that failed is set aside; if not, it is tried again directly."""
        policy = self._policy
        tried = policy.tried(slot.item.message) + slot.attempts - 1
        if isinstance(error, HandlerRaisedError) and decide_on(error, self._declared, tried):
            return True
        if policy.stop and policy.again is None:
            raise error
        if slot.attempts >= self._attempts or not Failure.of(error).may_pass:
            return True
        self._blocking.was_tried(slot.item.message, slot.item.entity_stream, error, slot.attempts)
        return False
