"""Starting several workers of a category."""

from tests.apps.bank import drain
from tests.support.started import Started


def test_workers_without_a_partition_stand_by_with_one_warning(connection, database_url):
    """The warning says how to have a partition for each of them."""
    drain(connection)  # which makes a partition of each category
    with Started(database_url, "--workers", "2", "--only", "reserved") as started:
        warned = started.wait_for("workers_without_partition", category="accountTransaction")
        assert (warned["level"], warned["workers"], warned["partitions"]) == ("warning", 2, 1)
        assert "`reservation partitions bank:account 2`" in warned["hint"]
        started.wait_for("standing_by")
        started.stop()
        assert started.log.count("workers_without_partition") == 1
