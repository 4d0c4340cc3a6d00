"""The part of a category that one reader has, where several share it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

# The last global position that there can be.
_NO_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Partition:
    """What is to be read of a category.

    Attributes:
        after: the global position that everything was dealt with up to.
        until: the last global position to read; None where there is no such limit.
        partitions: those of the reader; None for all.
        size: how many partitions there are.
        carried: how far each partition was dealt with before there were so many; None if that is
            of no more meaning. (See `reservation.is_in_part`.)
    """

    after: int = 0
    until: int | None = None
    partitions: tuple[int, ...] | None = None
    size: int = 1
    carried: tuple[int, ...] | None = None

    def up_to(self, position: int) -> "Partition":
        """Return it with an end at a global position, unless it ends before."""
        return replace(self, until=position if self.until is None else min(self.until, position))

    def parameters(self, category: str, limit: int) -> Sequence[Any]:  # Any: of several types
        """Return what the functions that read a part take, for so many messages at most."""
        return [
            category,
            self.after + 1,
            _NO_END if self.until is None else self.until,
            limit,
            None if self.partitions is None else list(self.partitions),
            self.size,
            None if self.carried is None else list(self.carried),
        ]
