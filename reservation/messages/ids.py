"""Message ids that sort by the time they were made, so that an index over them grows at its end."""

import os
import time
import uuid

# The bits of version and variant, and where the others are: the time's, 12 random ones between
# these two, and those after them. Of these the first is 0, so that counting on ends there.
_MARKS = 7 << 76 | 2 << 62
_TIME, _BETWEEN, _COUNTED = 80, 64, 61


_new = object.__new__
_UNKNOWN = uuid.SafeUUID.unknown
# The slots of a UUID, which refuses to be set otherwise.
_set_int, _set_is_safe = (vars(uuid.UUID)[name].__set__ for name in ("int", "is_safe"))


def uuid_of(number: int) -> uuid.UUID:
    """Return ``uuid.UUID(int=number)`` without its checks, which take longer than all else."""
    made = _new(uuid.UUID)
    _set_int(made, number)
    _set_is_safe(made, _UNKNOWN)
    return made


def uuid7() -> uuid.UUID:
    """Return a UUID of version 7: milliseconds since 1970, then random bits.

    (Source: RFC 9562.)
    """
    (made,) = uuid7s(1)
    return made


def uuid7s(count: int) -> list[uuid.UUID]:
    """Return UUIDs of version 7, all of this millisecond, which count on from a random one.

    (Source: RFC 9562, 6.2, method 2.)
    """
    random = int.from_bytes(os.urandom(10))
    milliseconds = time.time_ns() // 1_000_000
    between, counted = random >> _COUNTED & 0xFFF, random & (1 << _COUNTED) - 1
    first = milliseconds << _TIME | _MARKS | between << _BETWEEN | counted
    return [uuid_of(number) for number in range(first, first + count)]
