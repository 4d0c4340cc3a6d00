"""A sample of drawn components: what is stored is what an interpreter of single messages stores.

Many more, which hypothesis draws and shrinks, are played in `tests/soak/test_reference.py`.
"""

from dataclasses import replace

import pytest

from tests.reference.drawing import Seeded, history
from tests.reference.world import differences

# Few histories that have, together, nearly all that can be drawn: each strategy with positions that
# are set back, each fault, each step of a program, each size of a batch.
CALM = [3, 10, 16, 83, 95, 215, 398]
FAULTS = [48, 132, 215, 263, 293, 343]
PARTITIONS = [18, 39, 224]
AWAITED = [93, 112, 208, 233, 243, 260, 313, 371]


@pytest.mark.parametrize("seed", CALM)
def test_what_is_stored_is_what_the_interpreter_stores(database_url, seed):
    """Whatever is shared, changed or raised, and in any batch size, the results are equal."""
    assert not differences(database_url, history(Seeded(seed), kills=0))


@pytest.mark.parametrize("seed", FAULTS)
def test_faults_change_nothing_of_what_is_stored(database_url, seed):
    """The results are equal when a consumer dies, is cut off or lacks a right at any step."""
    assert not differences(database_url, history(Seeded(seed)))


@pytest.mark.parametrize("seed", PARTITIONS)
def test_partitions_change_nothing_of_what_is_stored(database_url, seed):
    """With partitions the results are equal, entity by entity."""
    assert not differences(database_url, history(Seeded(seed), apart=True))


@pytest.mark.parametrize("seed", AWAITED)
def test_calls_that_outlast_their_batch_change_nothing_of_what_is_stored(database_url, seed):
    """The results are equal where no batch waits for its async calls, entity by entity."""
    drawn = replace(history(Seeded(seed), apart=True), impatient=True)
    assert any(role.is_async for role in drawn.plan.roles)
    assert not differences(database_url, drawn)
