"""How large a store is, which decides Spark's settings."""

from enum import Enum, auto


class Size(Enum):
    """How large a store is."""

    SMALL = auto()
    """Dividing the work takes longer than doing it."""

    MEDIUM = auto()
    """The work is divided, and done before optimized code would pay off."""

    LARGE = auto()
    """The work takes so long that optimized code pays off."""

    @classmethod
    def of(cls, pages: int) -> "Size":
        """Return the size of a log of so many pages, of 8 KB each."""
        return cls.SMALL if pages < _SMALL else cls.MEDIUM if pages < _LARGE else cls.LARGE


# 64 MB, some 200,000 messages; and 4 GB.
_SMALL, _LARGE = 8_192, 524_288
