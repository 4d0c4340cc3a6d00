"""The stored messages equal those of an interpreter that takes one message at a time.

Components and histories are drawn: handlers that share values between entity, events, further
messages and commands, that change what they are given, raise or return nothing, under every
strategy; batches of every size, snapshots, partitions, redeliveries, and consumers that die, are
cut off or lack a right at any of their statements.
"""

from hypothesis import given, settings
from structlog.testing import capture_logs

from tests.reference.drawing import drawn, history
from tests.reference.world import World, broken


def differences(address, played):
    """Play a history and return the differences of the store from the interpreter's result."""
    with capture_logs():
        world = World(address)
        try:
            world.play(played)
            return [*broken(world.control), *world.differences(played)]
        finally:
            world.close()


@settings(max_examples=50)
@given(played=drawn(lambda chance: history(chance, kills=0)))
def test_what_is_stored_is_what_the_interpreter_stores(database_url, played):
    """Whatever is shared, changed or raised, and in any batch size, the results are equal."""
    assert not differences(database_url, played)


@settings(max_examples=50)
@given(played=drawn(history))
def test_faults_change_nothing_of_what_is_stored(database_url, played):
    """The results are equal when a consumer dies, is cut off or lacks a right at any step."""
    assert not differences(database_url, played)


@settings(max_examples=25)
@given(played=drawn(lambda chance: history(chance, apart=True)))
def test_partitions_change_nothing_of_what_is_stored(database_url, played):
    """With partitions the results are equal, entity by entity."""
    assert not differences(database_url, played)
