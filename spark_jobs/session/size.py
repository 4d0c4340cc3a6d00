"""How large a store is, by which it is decided how Spark goes about it."""

from enum import Enum, auto


class Size(Enum):
    """How large a store is."""

    SMALL = auto()
    """It takes longer to divide work than to do it."""

    MEDIUM = auto()
    """Work is divided, and done before Java could have compiled it well."""

    LARGE = auto()
    """Work takes so long that it pays to compile it well."""

    @classmethod
    def of(cls, pages: int) -> "Size":
        """Return the size of a log of so many pages, of 8 KB each."""
        return cls.SMALL if pages < _SMALL else cls.MEDIUM if pages < _LARGE else cls.LARGE


# 64 MB, some 200,000 messages; and 4 GB.
_SMALL, _LARGE = 8_192, 524_288
