"""The lanes of a batch: messages that must be handled one after the other."""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from consumers.effects.effects import Effects
from consumers.failures.failure import Failure
from consumers.handling.decoding import Decoded
from consumers.runtime.running_calls import AsyncCall, CallResult
from reservation.context import Context
from reservation.errors import MessageError


@dataclass(slots=True, eq=False)
class Slot:
    """One message of a batch, and its outcome.

    Attributes:
        ordinal: its place in the batch.
        item: the message, decoded.
        effects: its effects; None while they are not known.
        error: what it failed with, if it is set aside.
        limit: what it waits for, if a limit holds it up.
        called: if its handler is not async, set once it was called, or will not be.
        ordering_keys: what it shares with messages that must be handled one after the other.
        call: its async call, if that goes on.
        must_wait: returns whether what it waits for is still to come; None if it was called, or is
            parked.
        is_refused: whether it waits for a place, so that the batch may end before it, rather than
            for the call for a message that it may repeat.
    """

    ordinal: int
    item: Decoded
    effects: Effects | None = None
    error: MessageError | None = None
    limit: Failure | None = None
    called: asyncio.Event | None = None
    ordering_keys: frozenset[Hashable] = frozenset()
    call: AsyncCall | None = None
    must_wait: Callable[[], bool] | None = None
    is_refused: bool = False

    @property
    def waits(self) -> bool:
        """Whether it is to be handled when calls have ended."""
        return self.call is not None or self.must_wait is not None

    def wait_behind(self, behind: "Slot") -> None:
        """Let it wait for what another message waits for, which it may repeat."""
        if behind.call is not None:
            self.must_wait = behind.call.blocks
        else:
            self.must_wait, self.is_refused = behind.must_wait, behind.is_refused


@dataclass(slots=True, eq=False)
class Lane:
    """Messages that are handled one after the other, and how far they are.

    Attributes:
        slots: the messages.
        keys: what they share: their entities, and their ordering keys.
        rest: those that are still to come.
        blocked: the entities of which a message failed or waits, so that later ones are parked.
        last_waiting: the last message that waits.
        calling: the message whose async handler is called at the moment, with its context.
        call: that call, if the batch has ended without it.
        outcome: the result of that call.
    """

    slots: list[Slot] = field(default_factory=list)
    keys: list[Hashable] = field(default_factory=list)
    rest: Iterator[Slot] = field(init=False)
    blocked: set[str] = field(default_factory=set)
    last_waiting: Slot | None = None
    calling: tuple[Slot, Context] | None = None
    call: AsyncCall | None = None
    outcome: CallResult | None = None

    def finish(self, slot: Slot) -> None:
        """Note that a message is not handled any further in this batch."""
        if slot.waits:
            self.last_waiting = slot
        if slot.effects is None and not slot.item.redelivered:
            self.blocked.add(str(slot.item.entity_stream))
        if slot.called is not None:
            slot.called.set()


def first_left_out(slots: Sequence[Slot]) -> Slot | None:
    """Return the first message that was refused, and after which none was called."""
    left_out = None
    for slot in reversed(slots):
        if slot.effects is not None or slot.error is not None or slot.call is not None:
            break
        if slot.is_refused:
            left_out = slot
    return left_out


def lanes(
    slots: Sequence[Slot], ordering_keys: Callable[[Slot], Collection[Hashable]]
) -> list[Lane]:
    """Divide messages into lanes, each in the order of the batch, as are the lanes.

    Messages of one entity are in one lane, and so are those of one ordering key.
    """
    by_key: dict[Hashable, Lane] = {}
    for slot in slots:
        keys: list[Hashable] = [slot.item.entity_stream, *ordering_keys(slot)]
        lane = by_key.get(keys[0]) or Lane()
        for key in keys:
            other = by_key.get(key, lane)
            if other is not lane:
                lane.slots += other.slots
                lane.keys += other.keys
                by_key.update(dict.fromkeys(other.keys, lane))
            elif key not in by_key:
                lane.keys.append(key)
                by_key[key] = lane
        lane.slots.append(slot)
    distinct = list({id(lane): lane for lane in by_key.values()}.values())
    for lane in distinct:
        lane.slots.sort(key=lambda slot: slot.ordinal)
    return sorted(distinct, key=lambda lane: lane.slots[0].ordinal)
