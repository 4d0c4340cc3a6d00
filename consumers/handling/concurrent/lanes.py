"""The lanes of a batch: messages that must be handled one after the other."""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from consumers.effects.effects import Effects
from consumers.handling.decoding import Decoded
from consumers.runtime.running_calls import AsyncCall, CallResult
from reservation.context import Context
from reservation.errors import MessageError


@dataclass(slots=True, eq=False)
class Slot:
    """One message of a batch, and what has become of it.

    Attributes:
        ordinal: its place in the batch.
        item: the message, decoded.
        effects: its effects; None while they are not known.
        error: what it failed with, if it is set aside.
        called: of one whose handler is not async, set once it will not be called any more.
        ordering_keys: what it shares with messages that must be handled one after the other.
        call: its async call, if that goes on.
        must_wait: whether it still waits for what it was not called for; None if it was called, or
            is parked.
        is_refused: whether that is its turn, so that the batch may end before it. Else it is the
            call for a message that it may repeat.
    """

    ordinal: int
    item: Decoded
    effects: Effects | None = None
    error: MessageError | None = None
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
        """Let it wait for what another one waits for, which it may repeat."""
        if behind.call is not None:
            self.must_wait = behind.call.blocks
        else:
            self.must_wait, self.is_refused = behind.must_wait, behind.is_refused


@dataclass(slots=True, eq=False)
class Lane:
    """Messages that are handled one after the other, and how far that has come.

    Attributes:
        slots: the messages.
        keys: what they share: their entities, and their ordering keys.
        rest: those that are still to come.
        ended: the entities of which a message failed or waits, so that the later ones are parked.
        before: the last message that waits.
        calling: the message whose async handler is called at the moment, with its context.
        call: that call, if the batch has ended without it.
        outcome: what has come of it then.
    """

    slots: list[Slot] = field(default_factory=list)
    keys: list[Hashable] = field(default_factory=list)
    rest: Iterator[Slot] = field(init=False)
    ended: set[str] = field(default_factory=set)
    before: Slot | None = None
    calling: tuple[Slot, Context] | None = None
    call: AsyncCall | None = None
    outcome: CallResult | None = None

    def goes_by(self, slot: Slot) -> None:
        """Note that nothing more becomes of a message in this batch."""
        if slot.waits:
            self.before = slot
        if slot.effects is None and not slot.item.redelivered:
            self.ended.add(str(slot.item.entity_stream))
        if slot.called is not None:
            slot.called.set()


def first_left_out(slots: Sequence[Slot]) -> Slot | None:
    """Return the first message whose turn did not come, and after which none was called."""
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
    found: dict[Hashable, Lane] = {}
    for slot in slots:
        keys: list[Hashable] = [slot.item.entity_stream, *ordering_keys(slot)]
        lane = found.get(keys[0]) or Lane()
        for key in keys:
            other = found.get(key, lane)
            if other is not lane:
                lane.slots += other.slots
                lane.keys += other.keys
                found.update(dict.fromkeys(other.keys, lane))
            elif key not in found:
                lane.keys.append(key)
                found[key] = lane
        lane.slots.append(slot)
    each = list({id(lane): lane for lane in found.values()}.values())
    for lane in each:
        lane.slots.sort(key=lambda slot: slot.ordinal)
    return sorted(each, key=lambda lane: lane.slots[0].ordinal)
