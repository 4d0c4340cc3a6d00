"""The store compared with its model for longer than the fast tests do."""

from tests.store.test_store_model import behaves_as_its_model


def test_the_store_behaves_as_its_model_in_many_runs(store):
    """Random writes and reads, valid and invalid, give the same as a list in memory."""
    behaves_as_its_model(store, 1000)
