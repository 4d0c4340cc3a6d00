"""Message ids that sort by the time they were made, so that an index over them grows at its end."""

import os
import time
import uuid

# Of the 16 bytes: which are the time's and which are random, and the bits of version and variant.
_RANDOM = bytes.fromhex("0000 0000 0000 0fff 3fff ffff ffff ffff")
_MARKS = bytes.fromhex("0000 0000 0000 7000 8000 0000 0000 0000")


_new = object.__new__
_UNKNOWN = uuid.SafeUUID.unknown
# The slots of a UUID, which refuses to be set otherwise.
_set_int, _set_is_safe = (vars(uuid.UUID)[name].__set__ for name in ("int", "is_safe"))


def uuid_of(number: int) -> uuid.UUID:
    """Return ``uuid.UUID(int=number)`` without its checks, which take longer than all else.

    Args:
        number: from 0, of at most 128 bits.
    """
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
    """Return UUIDs of version 7, all of this millisecond and in no order among themselves.

    Args:
        count: how many.
    """
    size = 16 * count
    random = int.from_bytes(os.urandom(size)) & int.from_bytes(_RANDOM * count)
    head = (time.time_ns() // 1_000_000).to_bytes(6) + bytes(10)
    made = (random | int.from_bytes(head * count) | int.from_bytes(_MARKS * count)).to_bytes(size)
    return [uuid_of(int.from_bytes(made[n : n + 16])) for n in range(0, size, 16)]
