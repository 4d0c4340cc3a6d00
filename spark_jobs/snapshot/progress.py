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
        corrections: the messages that were corrected.
        given: the data that their letters were given, by their global positions.
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
    corrections: Sequence[Corrected] = ()
    given: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_partitions(
        cls,
        positions: Sequence[int],
        former_positions: Sequence[int] = (),
        *,
        letters: Sequence[int] = (),
        conflicts: Sequence[int] = (),
        discarded: Sequence[int] = (),
        first_position: int | None = None,
        deleted: Mapping[int, str] | None = None,
        corrections: Mapping[Corrected, str] | None = None,
    ) -> "Consumed":
        """Return how far a consumer is whose partitions have separate positions."""
        lowest = min(positions)
        in_force = tuple(former_positions) if max(former_positions, default=0) > lowest else ()
        return cls(
            lowest,
            letters=letters,
            partitions=tuple(positions),
            former_positions=in_force,
            conflicts=conflicts,
            discarded=discarded,
            first_position=first_position,
            deleted=deleted or {},
            corrections=list(corrections or ()),
            given={one.global_position: data for one, data in (corrections or {}).items()},
        )

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
        return [one for consumed in self.consumed.values() for one in consumed.corrections]

    @property
    def given(self) -> dict[int, str]:
        """The data that letters of theirs were given, by global position."""
        return {
            at: one for consumed in self.consumed.values() for at, one in consumed.given.items()
        }

    def uneven(self, category: str) -> tuple[int, int] | None:
        """Return the range of global positions in which the partition decides what was read."""
        one = self.consumed.get(category)
        if one is None or one.position is None or one.highest == one.position:
            return None
        return one.position + 1, one.highest
