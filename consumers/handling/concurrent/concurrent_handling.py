"""Handling a batch with async handlers: entities side by side, the messages of each in order.

What is written is what handling one message at a time would write. Each entity has a lane: its
messages are handled one after the other, each on what those before it left. A key by which a
strategy recognizes messages joins the lanes that it is in. Handlers that are not async are called
in the order of the messages, because they may use the connection. The effects of all are collected
in that order too.

A batch waits for its calls for a while. Messages whose calls go on then are letters, behind which
later ones of their entities are parked, and the batch ends before the first message that could not
be called. The outcome of such a call is used when its letter is handled, unless what its handler
saw has changed meanwhile.

A handler crosses lanes if it writes to the stream of another entity of the batch. Then the batch is
run again, one message at a time, and so is each later one with a message of that type.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

from consumers.effects.blocking import Blocking
from consumers.effects.effects import Effects
from consumers.handling.concurrent.lane_run import LaneRun
from consumers.handling.concurrent.lanes import Lane, Slot, first_left_out, lanes
from consumers.handling.decoding import Decoded, Decoding
from consumers.handling.message_handling import MessageHandling
from consumers.runtime.context import ConsumerContext
from reservation.declaration.table import declarations
from reservation.errors import SerializationError
from reservation.messages.message import StoredMessage


@dataclass(slots=True)
class _Waiting:
    """The messages decided on last that wait for calls, by their global positions."""

    running: list[int] = field(default_factory=list)
    postponed: dict[int, Callable[[], bool]] = field(default_factory=dict)
    parked: list[int] = field(default_factory=list)


class ConcurrentHandling:
    """Handles batches with messages of async handlers for one consumer of a component."""

    def __init__(
        self, context: ConsumerContext, messages: MessageHandling, decoding: Decoding
    ) -> None:
        self._context = context
        self._declared = declarations(context.component).of(context.category)
        self._messages = messages
        self._running = context.running
        self._entity_of = decoding.entity_of
        self._crossing: set[str] = set()  # types whose handlers write to other entities
        self._waiting = _Waiting()

    def applies_to(self, decoded: Sequence[Decoded]) -> bool:
        """Return whether any message of a batch has an async handler."""
        concurrency = self._declared.concurrency
        return any(
            item.message.type in concurrency for item in decoded if item.entity_stream is not None
        )

    def run(self, decoded: Sequence[Decoded], batch_effects: Effects, blocking: Blocking) -> None:
        """Handle the messages of a batch, and collect their effects."""
        slots = [Slot(n, item) for n, item in enumerate(decoded)]
        handled = [slot for slot in slots if slot.item.entity_stream is not None]
        in_order = any(slot.item.message.type in self._crossing for slot in handled)
        batch_lanes = (
            [Lane(handled)]
            if in_order
            else lanes(handled, partial(self._ordering_keys, batch_effects))
        )
        LaneRun(
            self._context, self._messages, batch_effects, self._entity_of, in_order=in_order
        ).run(batch_lanes, handled)
        if not in_order:
            self._refuse_crossing(handled, batch_effects)
        self._collect(slots, batch_effects, blocking)

    def begin(self) -> None:
        """Note that messages are about to be decided on."""
        self._waiting = _Waiting()

    def decided(self, batch_effects: Effects) -> None:
        """Note what was decided, for when it is committed."""
        letters = batch_effects.letters
        entities = self._running.entities | {letter.entity for letter in letters if letter.runs}
        self._waiting.parked += [
            letter.message.global_position
            for letter in letters
            if letter.state == "parked" and letter.entity in entities
        ]

    def committed(self, messages: Sequence[StoredMessage]) -> None:
        """Note that what was decided on messages is committed."""
        waiting, running = self._waiting, self._running
        kept = {*waiting.running, *waiting.postponed, *waiting.parked}
        running.drop({message.global_position for message in messages} - kept)
        running.keep(waiting.running, waiting.postponed, waiting.parked)
        self._context.in_flight.runs(running.letters)
        self.begin()

    def roll_back(self) -> None:
        """Forget the calls that saw what was not committed."""
        self._running.roll_back()

    def _ordering_keys(self, batch_effects: Effects, slot: Slot) -> Collection[Hashable]:
        """Return what a message's strategy recognizes it by, whatever its entity."""
        strategy = self._declared[slot.item.message.type].once
        ordering_key = (
            None
            if strategy is None
            else batch_effects.checks[strategy].ordering_key(slot.item.incoming)
        )
        if ordering_key is not None:
            slot.ordering_keys = frozenset([(strategy, ordering_key)])
        return slot.ordering_keys

    def _refuse_crossing(self, slots: Sequence[Slot], batch_effects: Effects) -> None:
        """Make sure that nothing was written to the stream of another entity of the batch."""
        for slot in slots:
            effects, message = slot.effects, slot.item.message
            if effects is None:
                continue
            streams = {row.stream_name for row in effects.writes} - {slot.item.entity_stream}
            if not streams.isdisjoint(batch_effects.entities):
                self._crossing.add(message.type)
                raise SerializationError(
                    f"The handler of {message} wrote to the stream of another entity of its "
                    f"batch, which is handled again, one message at a time"
                )

    def _collect(self, slots: Sequence[Slot], batch_effects: Effects, blocking: Blocking) -> None:
        """Collect the effects in the order of the messages, up to where the batch ends."""
        left_out = None
        if blocking.policy.tried is None:
            left_out = first_left_out(slots)
            self._running.is_cut = None if left_out is None else left_out.must_wait
        for slot in slots:
            if slot is left_out:
                batch_effects.ends_before = slot.item.message
                return
            item, message, effects = slot.item, slot.item.message, slot.effects
            if item.redelivered:
                continue
            may_block = blocking.heads or slot.error or slot.waits or slot.limit
            entity = self._entity_of(message, item) if may_block else None
            if blocking.parks(message, entity):
                continue
            if slot.error is not None:
                blocking.fails(message, entity, slot.error)
            elif slot.limit is not None:
                blocking.waits(message, entity, slot.limit)
            elif slot.waits:
                blocking.runs(message, entity)
                if slot.call is not None:
                    self._waiting.running.append(message.global_position)
                elif slot.must_wait is not None:
                    self._waiting.postponed[message.global_position] = slot.must_wait
            elif item.key_stream is not None:
                batch_effects.add_reservation(message, item.key_stream, item.former_stream)
            elif effects is not None and effects is not batch_effects:
                batch_effects.add_effects(effects)
