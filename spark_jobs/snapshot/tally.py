"""How many messages a part of a category has, and the sum of their global positions.

Both change when a message becomes visible behind what was read already
(`spark_jobs.reconciliation.late`).
"""

import msgspec

MODULUS = 2**53


class Tally(msgspec.Struct, frozen=True):
    """What a part of a category comes to.

    Attributes:
        count: how many messages there are.
        total: the sum of their global positions, modulo `MODULUS`.
    """

    count: int = 0
    total: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        """Return what this part and another come to."""
        return Tally(self.count + other.count, (self.total + other.total) % MODULUS)
