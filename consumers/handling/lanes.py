"""The lanes of a batch: messages that must be handled one after the other."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from consumers.decisions.decisions import Decisions
from consumers.handling.decoding import Decoded
from reservation.errors import MessageError


@dataclass(slots=True, eq=False)
class Slot:
    """One message of a batch, and what has become of it.

    Attributes:
        ordinal: its place in the batch.
        item: the message, decoded.
        effects: what it brings about; None while that is not known.
        error: what it failed with, if it is set aside.
        attempts: how often it was tried now.
        called: of one whose handler is not async, set once it will not be called any more.
    """

    ordinal: int
    item: Decoded
    effects: Decisions | None = None
    error: MessageError | None = None
    attempts: int = 1
    called: asyncio.Event | None = None


@dataclass(slots=True, eq=False)
class _Lane:
    slots: list[Slot] = field(default_factory=list)
    keys: list[Hashable] = field(default_factory=list)


def lanes(slots: Sequence[Slot], line: Callable[[Slot], Hashable | None]) -> list[list[Slot]]:
    """Divide messages into lanes, each in the order of the batch, as are the lanes.

    Messages of one entity are in one lane, and so are those of one line.
    """
    found: dict[Hashable, _Lane] = {}
    for slot in slots:
        keys: list[Hashable] = [slot.item.entity_stream]
        if (beside := line(slot)) is not None:
            keys.append(beside)
        lane = found.get(keys[0]) or _Lane()
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
    each = {id(lane): lane.slots for lane in found.values()}.values()
    in_order = [sorted(lane, key=lambda slot: slot.ordinal) for lane in each]
    return sorted(in_order, key=lambda lane: lane[0].ordinal)
