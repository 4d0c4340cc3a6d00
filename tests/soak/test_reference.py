"""The stored messages equal those of an interpreter that takes one message at a time.

Components and histories are drawn: handlers that share values between entity, events, further
messages and commands, that change what they are given, raise or return nothing, under every
strategy; batches of every size, snapshots, partitions, redeliveries, and consumers that die, are
cut off or lack a right at any of their statements.
"""

from hypothesis import given, settings

from tests.reference.drawing import drawn, history
from tests.reference.world import differences


@settings(max_examples=200)
@given(played=drawn(lambda chance: history(chance, kills=0)))
def test_what_is_stored_is_what_the_interpreter_stores(database_url, played):
    """Whatever is shared, changed or raised, and in any batch size, the results are equal."""
    assert not differences(database_url, played)


@settings(max_examples=200)
@given(played=drawn(history))
def test_faults_change_nothing_of_what_is_stored(database_url, played):
    """The results are equal when a consumer dies, is cut off or lacks a right at any step."""
    assert not differences(database_url, played)


@settings(max_examples=100)
@given(played=drawn(lambda chance: history(chance, apart=True)))
def test_partitions_change_nothing_of_what_is_stored(database_url, played):
    """With partitions the results are equal, entity by entity."""
    assert not differences(database_url, played)
