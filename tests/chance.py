"""Where the tests that play with chance begin, so that what failed can be run again.

The seeds are the same at every run, and each is part of its test's name. `RESERVATION_TEST_SEED`
makes others of them: a test that takes several takes those from there on.
"""

import os
from typing import Any

import pytest

FIRST = int(os.environ.get("RESERVATION_TEST_SEED", "0"))


def seeds(count: int, *, exhaustive: int = 0) -> list[Any]:
    """Return seeds to parametrize a test with.

    Args:
        count: how many are taken at every run.
        exhaustive: how many more are taken by ``-m exhaustive``.
    """
    marked = range(FIRST + count, FIRST + count + exhaustive)
    return [
        *range(FIRST, FIRST + count),
        *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in marked),
    ]
