"""When the reader of the metrics of a store reads, and what it knows without having read."""

from consumers.supervisor import store_reader
from consumers.supervisor.store_reader import StoreReader


def test_nothing_is_known_before_the_first_read():
    """Before the first read, and without it, the store is not up and there are no numbers."""
    reader = StoreReader("postgresql:///nowhere", [("account", "account:command")])
    assert (reader.latest().up, reader.latest().summary) == (False, None)


def test_a_read_that_takes_long_is_followed_by_a_longer_pause():
    """The host reads for a small part of the time, however long a read takes."""
    reader = StoreReader("postgresql:///nowhere", [("account", "account:command")])
    assert reader._succeeded(object(), 0.001) == store_reader.INTERVAL
    assert reader._succeeded(object(), 3) == 3 * store_reader.SHARE
    assert reader.latest().up
