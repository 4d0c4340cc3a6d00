"""Message ids that sort by the time they were made, so that an index over them grows at its end."""

import os
import time
import uuid


def uuid7() -> uuid.UUID:
    """Return a UUID of version 7: milliseconds since 1970, then random bits. (Source: RFC 9562.)"""
    value = int.from_bytes(os.urandom(16))
    milliseconds = time.time_ns() // 1_000_000
    value = (value & ((1 << 80) - 1)) | (milliseconds & ((1 << 48) - 1)) << 80
    value = (value & ~(0xF << 76)) | 0x7 << 76
    value = (value & ~(0x3 << 62)) | 0x2 << 62
    return uuid.UUID(int=value)
