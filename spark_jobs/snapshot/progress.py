"""Consumers' progress, which distinguishes lost messages from unread ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from spark_jobs.snapshot.meaning import Corrected


@dataclass(frozen=True, slots=True)
class Consumed:
    """The progress of a category's consumer.

    Attributes:
        position: the global position up to which it has handled everything; None if unknown.
        before: without a position, messages stored before this time count as read, in UTC.
        letters: the global positions of the messages that it passed without handling them.
        partitions: the position of each partition, in order; empty if there is only one.
        former_positions: the positions of former partitions, while they still decide what was read.
        conflicts: the global positions of the messages that it recorded as conflicts.
        discarded: those of the letters that were discarded.
        first_position: the position at which it first began; it records conflicts above it. None
            if that is unknown, or it records none.
        deleted: the ids of the deleted messages that it stands at, by their global positions.
        given: the data that letters were given of the messages that were corrected.
    """

    position: int | None
    before: datetime | None = None
    letters: Sequence[int] = ()
    partitions: Sequence[int] = ()
    former_positions: Sequence[int] = ()
    conflicts: Sequence[int] = ()
    discarded: Sequence[int] = ()
    first_position: int | None = None
    deleted: Mapping[int, str] = field(default_factory=dict)
    given: Mapping[Corrected, str] = field(default_factory=dict, repr=False)

    @property
    def highest(self) -> int:
        """The global position above which nothing was read, where positions are known."""
        return max((self.position or 0, *self.partitions, *self.former_positions))


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the consumers of several categories, by the category's name."""

    consumed: Mapping[str, Consumed] = field(default_factory=dict)

    @property
    def deleted(self) -> list[tuple[str, int, str]]:
        """Category, global position and id of each deleted message that a consumer stands at."""
        return [
            (category, position, message_id)
            for category, one in self.consumed.items()
            for position, message_id in one.deleted.items()
        ]

    @property
    def corrections(self) -> list[Corrected]:
        """The messages that were corrected."""
        return [one for consumed in self.consumed.values() for one in consumed.given]

    @property
    def given(self) -> dict[int, str]:
        """The data that letters of theirs were given, by global position."""
        return {
            one.global_position: data
            for consumed in self.consumed.values()
            for one, data in consumed.given.items()
        }

    def uneven(self, category: str) -> tuple[int, int] | None:
        """Return the range of global positions in which the partition decides what was read."""
        one = self.consumed.get(category)
        if one is None or one.position is None or one.highest == one.position:
            return None
        return one.position + 1, one.highest
