"""What a batch begins with: the statement that reads it, and what that returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from reservation.postgres.exchange import Beginning
from reservation.store.partition import Partition

T = TypeVar("T")


# Any: rows are what the query's columns are.
@dataclass(frozen=True, slots=True)
class Opening(Generic[T]):
    """The beginning of a transaction that reads a batch.

    Attributes:
        part: what it reads.
        size: how many messages it reads at most.
        beginning: what is sent.
        read: makes of the rows what was read.
    """

    part: Partition
    size: int
    beginning: Beginning
    read: Callable[[Sequence[tuple[Any, ...]]], T]
