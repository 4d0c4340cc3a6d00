"""A consumer that handles a correction and is killed at each of its exchanges with the server."""

from tests.consumers.test_corrected_letters import dies_everywhere


def test_wherever_a_consumer_dies_a_correction_takes_effect_once(connection, store, monkeypatch):
    """Each time another one goes on; `tests/consumers` has a sample."""
    dies_everywhere(connection, store, monkeypatch, step=1)
