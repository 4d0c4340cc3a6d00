"""Where the tests that play with chance begin, so that what failed can be run again.

The seeds are the same at every run, and each is part of its test's name. `RESERVATION_TEST_SEED`
makes others of them: a test that takes several takes those from there on.
"""

import os

FIRST = int(os.environ.get("RESERVATION_TEST_SEED", "0"))


def seeds(count: int) -> list[int]:
    """Return seeds to parametrize a test with."""
    return [*range(FIRST, FIRST + count)]
