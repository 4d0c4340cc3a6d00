"""The number of messages in a part of a category, and the sum of their global positions.

Both change when a message becomes visible behind the messages that were read
(`spark_jobs.reconciliation.reading.late`).
"""

import msgspec

MODULUS = 2**53


class Tally(msgspec.Struct, frozen=True):
    """Number and sum for a part of a category.

    Attributes:
        count: how many messages there are.
        total: the sum of their global positions, modulo `MODULUS`.
    """

    count: int = 0
    total: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        """Return the tally of this part and another together."""
        return Tally(self.count + other.count, (self.total + other.total) % MODULUS)
