"""The data that a message was handled with in the place of its own."""

from datetime import datetime

import msgspec


class GivenData(msgspec.Struct, frozen=True):
    """The data that the message of a letter is handled with, and who gave it, when and why."""

    category: str
    global_position: int
    data: str
    by: str
    at: datetime
    reason: str
