"""Why messages are not handled: the reasons of their letters, pauses, or no consumer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from consumers.pauses.pause import StoredPause
from reservation.messages.message import printable

# What an open letter waits for, and how that is said. `retry` stands for all kinds of faults.
KINDS = {
    "dead": "dead",
    "retry": "retry",
    "running": "running",
    "limited": "limited",
    "breaker_open": "breaker open",
    "paused": "paused",
    "parked": "parked",
}


@dataclass(frozen=True, slots=True)
class OpenLetters:
    """The open letters of a consumer, counted.

    Attributes:
        counts: how many wait for what, by `KINDS`; those of which there are none are left out.
    """

    counts: Mapping[str, int]

    @property
    def open(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    @property
    def dead(self) -> int:
        """How many are dead: they wait for a person."""
        return self.counts.get("dead", 0)

    @property
    def parked(self) -> int:
        """How many are parked behind others of their entities."""
        return self.counts.get("parked", 0)

    @property
    def waiting(self) -> int:
        """How many wait for a time, whatever the reason."""
        return self.open - self.dead - self.parked


def total(letters: Sequence[OpenLetters]) -> OpenLetters:
    """Add up the letters of several partitions."""
    counts = {kind: sum(one.counts.get(kind, 0) for one in letters) for kind in KINDS}
    return OpenLetters({kind: count for kind, count in counts.items() if count})


def pauses_of(pauses: Sequence[StoredPause], consumer: str, category: str) -> list[StoredPause]:
    """Return the pauses that concern a consumer of a category, those of all of it first."""
    own = [
        one
        for one in pauses
        if one.scope.component == consumer and one.scope.category in (None, category)
    ]
    return sorted(own, key=lambda one: not one.scope.is_whole)


def why(
    letters: OpenLetters,
    pauses: Sequence[StoredPause],
    since: Callable[[datetime], str],
    *,
    unread: bool,
    without_holder: bool,
) -> list[str]:
    """Return why messages of a consumer are not handled, in a few words each; nothing if all are.

    A time is said as `since` returns it. A consumer that has nothing to do needs no holder.
    """
    counts = letters.counts
    said = [f"{counts[kind]:,} {text}" for kind, text in KINDS.items() if kind in counts]
    for one in pauses:
        what = printable(" in ".join(filter(None, (one.scope.type, one.scope.entity))))
        who, reason = printable(one.paused_by), printable(one.reason)
        paused = f'paused by {who} {since(one.paused_at)}: "{reason}"'
        said.append(f"{what} {paused}" if what else paused)
    if without_holder and (unread or counts):
        said.append("no consumer")
    return said
