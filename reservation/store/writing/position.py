"""What a write returns: where the message is."""

from collections.abc import Sequence
from typing import Any, Self


class WrittenPosition(int):
    """The position of a written message in its stream, from 0.

    It is the number that Message DB returns for a write, and knows the other one too.

    Attributes:
        global_position: the position of the message in the store.
    """

    global_position: int

    def __new__(cls, position: int, global_position: int) -> Self:
        """Make it of both numbers."""
        written = super().__new__(cls, position)
        written.global_position = global_position
        return written

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        return type(self), (int(self), self.global_position)


# Any: the rows of a query.
def read_position(rows: Sequence[tuple[Any, ...]]) -> WrittenPosition:
    """Return what the server says of one message."""
    return WrittenPosition(*rows[0])


def read_positions(rows: Sequence[tuple[Any, ...]]) -> list[WrittenPosition | None]:
    """Return the same of several, None for one that is refused."""
    return [
        None if position is None else WrittenPosition(position, global_position)
        for position, global_position in zip(*rows[0], strict=True)
    ]
