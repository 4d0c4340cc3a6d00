"""Calling the handlers of one batch: a task for each of its lanes, as long as the batch lasts.

A batch waits for its calls for a limited time. Then it leaves the lanes that await an async
handler: their tasks go on, and return the results of the calls. No further call begins.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from consumers.calls.repeated_call import await_repeatedly
from consumers.effects.effects import Effects
from consumers.failures.failure import Failure, HandlerRaisedError
from consumers.handling.concurrent.admission import Admission
from consumers.handling.concurrent.lanes import Lane, Slot
from consumers.handling.decoding import Decoded
from consumers.handling.message_handling import MessageHandling
from consumers.runtime.context import ConsumerContext
from consumers.runtime.event_loop import Tasks
from consumers.runtime.in_flight import SOME
from consumers.runtime.running_calls import AsyncCall, CallResult
from reservation.context import Context
from reservation.declaration.table import declarations
from reservation.errors import MessageError
from reservation.handlers.reject import Reject
from reservation.messages.message import StoredMessage


class LaneRun:
    """The handling of one batch."""

    def __init__(
        self,
        context: ConsumerContext,
        messages: MessageHandling,
        batch_effects: Effects,
        entity_of: Callable[[StoredMessage, Decoded], str | None],
        *,
        in_order: bool,
    ) -> None:
        declared = declarations(context.component).of(context.category)
        self._context = context
        self._running, self._loop = context.running, context.running.loop
        self._messages = messages
        self._batch_effects = batch_effects
        self._entity_of = entity_of
        self._in_order = in_order
        self._admission = Admission(self._running, lambda: context.is_paused)
        self._lanes: Sequence[Lane] = ()
        self._handled: Collection[int] = ()
        self._previous: dict[int, asyncio.Event] = {}
        self._kinds = {name: declared.types[name] for name in declared.concurrency}
        for name, limit in declared.concurrency.items():
            self._running.limit(self._kinds[name], limit)

    def run(self, lanes: Sequence[Lane], slots: Sequence[Slot]) -> None:
        """Handle the messages of lanes, until the time is over."""
        self._lanes = lanes
        if self._running.letters:
            self._handled = {slot.item.message.global_position for slot in slots}
        self._running.freed = self._admission.admit
        try:
            self._loop.run(partial(self._begin, slots), self._wait)
        finally:
            self._running.freed = None

    # Any: what is sent to a coroutine.
    def _begin(self, slots: Sequence[Slot]) -> list[Coroutine[Any, Any, CallResult | None]]:
        """Return a coroutine for each lane."""
        previous: asyncio.Event | None = None
        for slot in slots:
            if slot.item.message.type not in self._kinds:
                if previous is not None:
                    self._previous[slot.ordinal] = previous
                previous = slot.called = asyncio.Event()
        return [self._lane(lane) for lane in self._lanes]

    async def _wait(self, tasks: Tasks) -> Tasks:
        """Wait until each lane has ended, or is left; return the tasks of those that are left.

        None is left with ``in_order``: a message may write to the entities of later ones.
        """
        patience = None if self._running.patient else self._loop.patience
        _, rest = await asyncio.wait(tasks, timeout=patience)
        if not rest:
            return ()
        self._admission.end()
        await asyncio.sleep(0)  # the calls admitted last begin
        left = set()
        for lane, task in zip(self._lanes, tasks, strict=True):
            if lane.calling is not None and not self._in_order:
                self._leave(lane, *lane.calling, task)
                left.add(task)
        if rest := rest - left:
            await asyncio.wait(rest)
        return left

    def _leave(
        self, lane: Lane, slot: Slot, context: Context, task: "asyncio.Task[CallResult | None]"
    ) -> None:
        """Leave a lane with the call that it awaits."""
        item, message, messages = slot.item, slot.item.message, self._messages
        inputs = messages.inputs_of(item, str(item.entity_stream), self._batch_effects, context)
        entity = self._entity_of(message, item)
        slot.call = lane.call = AsyncCall(
            message.stream_name, entity, inputs, slot.ordering_keys, context, task
        )
        self._running.add(message.global_position, slot.call)
        messages.forget_handled(item, self._batch_effects)
        lane.finish(slot)
        for later in lane.rest:
            self._may_handle(lane, later)
            lane.finish(later)

    async def _lane(self, lane: Lane) -> CallResult | None:
        """Handle the messages of a lane; if it is left, return the result of its call."""
        lane.rest = iter(lane.slots)
        try:
            for slot in lane.rest:
                if self._may_handle(lane, slot):
                    await self._handle(lane, slot, str(slot.item.entity_stream))
                    if lane.call is not None:
                        return lane.outcome
                lane.finish(slot)
        finally:
            for slot in lane.slots:
                if slot.called is not None:
                    slot.called.set()
        return None

    def _may_handle(self, lane: Lane, slot: Slot) -> bool:
        """Return whether a message may be handled; if not, note what it waits for."""
        if slot.item.redelivered:
            self._messages.remember(slot.item, self._batch_effects)
            return False
        if slot.item.entity_stream in lane.blocked:
            return False
        if lane.last_waiting is not None:
            slot.wait_behind(lane.last_waiting)
            return False
        return True

    async def _handle(self, lane: Lane, slot: Slot, stream_name: str) -> None:
        """Handle a message, unless it has to wait."""
        batch_effects = self._batch_effects
        loaded = batch_effects.entities.get(stream_name)
        entity = {} if loaded is None else {stream_name: loaded}
        effects = (
            batch_effects
            if self._in_order
            else Effects(entities=entity, checks=batch_effects.checks)
        )
        try:
            if slot.called is None:
                succeeded = await self._await(lane, slot, stream_name, effects)
            else:
                succeeded = await self._call(slot, stream_name, effects)
        except MessageError as error:
            error.global_position = slot.item.message.global_position
            raise
        if succeeded:
            slot.effects = effects

    async def _call(self, slot: Slot, stream_name: str, effects: Effects) -> bool:
        """Call a handler that is not async, after those before it."""
        if slot.ordinal in self._previous:
            await self._previous[slot.ordinal].wait()
        if self._waits_for_call(slot):
            return False
        if not await self._admission.enter(slot.ordinal, None):
            slot.must_wait, slot.is_refused = _never, True
            return False
        try:
            with self._loop.blocking():
                slot.limit = self._messages.handle(slot.item, stream_name, effects)
        except HandlerRaisedError as error:
            if not self._messages.undo(error):
                raise
            slot.error = error
        return slot.error is None and slot.limit is None

    async def _await(self, lane: Lane, slot: Slot, stream_name: str, effects: Effects) -> bool:
        """Await an async handler, or use the result of its call; return whether it succeeded."""
        item, messages, running = slot.item, self._messages, self._running
        kind = self._kinds[item.message.type]
        former = running.ended(item.message.global_position)
        if former is not None:
            if messages.skips(item, stream_name, effects):
                return True
            context = messages.context_of(item, stream_name, effects)
            if former.inputs == messages.inputs_of(item, stream_name, effects, context):
                return self._use(slot, stream_name, effects, former.context, former.task.result())
            messages.forget_handled(item, effects)
            running.drop([item.message.global_position])
        if self._waits_for_call(slot):
            return False
        if not await self._admission.enter(slot.ordinal, kind):
            slot.must_wait = lambda: running.closed or not running.has_place(kind)
            slot.is_refused = True
            return False
        try:
            if messages.skips(item, stream_name, effects):
                return True
            begins_in = messages.decide(item, effects)
            if isinstance(begins_in, Failure):
                slot.limit = begins_in
                return False
            context = messages.context_of(item, stream_name, effects)
            lane.calling = slot, context
            outcome = await self._outcome(lane, item, stream_name, effects, context, begins_in)
        finally:
            lane.calling = None
            running.give_place(kind)
        if lane.call is not None:
            lane.outcome = outcome
            return False
        return self._use(slot, stream_name, effects, context, outcome)

    def _waits_for_call(self, slot: Slot) -> bool:
        """Return whether a message waits for the call for a letter that it may repeat."""
        call = self._running.blocking_call(slot.ordering_keys, self._handled)
        if call is not None:
            slot.must_wait = call.blocks
        return call is not None

    async def _outcome(
        self,
        lane: Lane,
        item: Decoded,
        stream_name: str,
        effects: Effects,
        context: Context,
        begins_in: float,
    ) -> CallResult:
        """Call an async handler, in so many seconds; return the result of the call."""
        if begins_in:
            await asyncio.sleep(begins_in)
        message, messages, loop = item.message, self._messages, self._loop
        spans, consumer = self._context.spans, self._context.component.name
        handler = partial(messages.awaited, item, stream_name, effects, context)
        again = messages.is_again(item, effects)
        self._context.calls(SOME)
        self._context.log_context.enter_message(message, stream_name)

        def is_cancelled() -> bool:
            return loop.cancelling or (lane.call is not None and lane.call.is_cancelled)

        try:
            with spans.handling(message, consumer, again=again) as span:
                outcome = "handled"
                try:
                    with messages.calling(message):
                        events = await await_repeatedly(
                            message, handler, is_cancelled, context, self._context.log
                        )
                except Reject as reject:
                    outcome = "rejected"
                    events = messages.rejection(item, reject, context)
                if span is not None:
                    span.outcome = outcome
                return CallResult(outcome, events, span=span)
        except MessageError as error:
            return CallResult("failed", error=error)

    def _use(
        self,
        slot: Slot,
        stream_name: str,
        effects: Effects,
        context: Context,
        outcome: CallResult | None,
    ) -> bool:
        """Collect the result of a call; return whether it succeeded."""
        assert outcome is not None  # noqa: S101  a lane that was left returns one
        item, messages, error = slot.item, self._messages, outcome.error
        if error is None:
            messages.collect(
                item, stream_name, outcome.events, context, effects, outcome.outcome, outcome.span
            )
            return True
        if messages.keeps_first(item, error, effects):
            return True
        if isinstance(error, HandlerRaisedError):
            error.entity_stream = stream_name
        slot.error = error
        messages.forget_handled(item, effects)
        return False


def _never() -> bool:
    """Return False: a message need not wait."""
    return False
