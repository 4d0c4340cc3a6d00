"""The part of a category that one reader has, where several readers share it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reservation.messages.message import MAX_POSITION


@dataclass(frozen=True, slots=True)
class CategoryPart:
    """The part of a category to read.

    Attributes:
        after: the global position up to which all messages have been handled.
        until: the last global position to read; None for no limit.
        partitions: the partitions of the reader; None for all.
        size: how many partitions there are.
        former_positions: the position that each partition had reached before their number was
            changed; None if that no longer matters. (See ``reservation.is_in_part``.)
    """

    after: int = 0
    until: int | None = None
    partitions: tuple[int, ...] | None = None
    size: int = 1
    former_positions: tuple[int, ...] | None = None

    def up_to(self, position: int) -> "CategoryPart":
        """Return the part with an end at a global position, unless it ends before."""
        return replace(self, until=position if self.until is None else min(self.until, position))

    def parameters(self, category: str, limit: int) -> Sequence[Any]:  # Any: of several types
        """Return the parameters of the functions that read at most ``limit`` messages of a part."""
        return [
            category,
            self.after + 1,
            MAX_POSITION if self.until is None else self.until,
            limit,
            None if self.partitions is None else list(self.partitions),
            self.size,
            None if self.former_positions is None else list(self.former_positions),
        ]
