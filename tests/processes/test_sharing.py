"""Starting several workers of a category."""

from tests.apps.bank import drain
from tests.support.started import EXAMPLES, Started, run_cli


def test_workers_share_only_what_may_be_shared(connection, database_url):
    """`start` refuses to share what one must handle, and warns of workers without a partition."""
    app = ("tests.consumers.test_order:by_key", "--app-dir", str(EXAMPLES.parent))
    env = {"RESERVATION_DATABASE_URL": database_url, "PYTHONPATH": str(EXAMPLES)}
    done = run_cli("start", *app, "--workers", "2", env=env)
    assert done.returncode == 2
    assert "accountTransaction cannot have " in done.stderr
    drain(connection)  # which makes a partition of each category
    with Started(database_url, "--workers", "2", "--only", "reserved") as started:
        warned = started.wait_for("workers_without_partition", category="accountTransaction")
        assert (warned["level"], warned["workers"], warned["partitions"]) == ("warning", 2, 1)
        assert "`reservation partitions bank:account 2`" in warned["hint"]
        started.wait_for("standing_by")
        started.stop()
        assert started.log.count("workers_without_partition") == 1
