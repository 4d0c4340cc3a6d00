"""Processes that write scheduled messages, killed again and again."""

import pytest

from tests.processes.test_scheduled import kill_at_random
from tests.support.chance import seeds


@pytest.mark.parametrize("seed", seeds(10))
def test_what_is_scheduled_is_written_once_although_its_process_is_killed(
    store, connection, database_url, seed
):
    """Many seeds, with a few deaths each."""
    kill_at_random(store, connection, database_url, seed=seed, count=20, kills=3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds(1))
def test_what_is_scheduled_is_written_once_although_its_process_is_killed_often(
    store, connection, database_url, seed
):
    """More messages and more deaths."""
    kill_at_random(store, connection, database_url, seed=seed, count=300, kills=20)
