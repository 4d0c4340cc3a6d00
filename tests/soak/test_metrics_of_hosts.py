"""Two hosts of the same consumers serve the same of the store."""

import contextlib
import time

import pytest

from tests.support.controls import deposit
from tests.support.letters import letters
from tests.support.watching import Watched, until

COMMANDS = "account:command"
READS = ("account", COMMANDS)
STREAM = f"{COMMANDS}-1"

OVERDUE = """
INSERT INTO reservation.scheduled (
  id, due_at, stream_name, type, attempts, attempt_at)
VALUES (gen_random_uuid(), now() - interval '1 h', 'a:command-1', 'A', 1, now() + interval '1 h')
"""
OF_THE_STORE = (
    "lag_messages",
    "dead_letters",
    "parked_messages",
    "parked_entities",
    "retries_waiting",
    "next_retry_timestamp_seconds",
    "partitions",
    "partitions_without_holder",
    "scheduled_overdue_messages",
)


def test_each_host_serves_the_same_of_the_store(connection, store, database_url):
    """Two hosts serve the same numbers, and one does so while its consumer hangs."""
    letters(connection, [("dead", None), ("parked", None), ("dead", "1 h")])
    letters(connection, [("dead", "2 h")], entity="account-8", stream=f"{COMMANDS}-8")
    connection.execute(OVERDUE)
    ((due,),) = connection.execute(
        "SELECT extract(epoch FROM min(next_attempt_at))::float8 FROM reservation.dead_letters"
    ).fetchall()
    options = ("--only", "commands", "--partitions", "2")
    with Watched(database_url, *options) as one, Watched(database_url, *options) as other:
        for host in (one, other):
            host.ready()
            until(lambda host=host: settled(host))
        assert (
            of_the_store(one)
            == of_the_store(other)
            == {
                "lag_messages": 0,
                "dead_letters": 1,
                "parked_messages": 1,
                "parked_entities": 2,
                "retries_waiting": 2,
                "next_retry_timestamp_seconds": pytest.approx(due),
                "partitions": 2,
                "partitions_without_holder": 0,
                "scheduled_overdue_messages": 1,
            }
        )
        assert one.figure("reservation_lag_seconds", *READS) == 0
        assert (
            abs(one.figure("reservation_store_read_timestamp_seconds", *READS) - time.time()) < 60
        )
        assert other.stop() == 0
        with suspended(one):
            store.write(deposit("late"), STREAM)
            until(lambda: one.figure("reservation_lag_seconds", *READS) > 0)
            assert one.figure("reservation_lag_messages", *READS) == 1


@contextlib.contextmanager
def suspended(host):
    """Suspend the processes of a host's consumers."""
    workers = host.workers
    for worker in workers:
        worker.suspend()
    try:
        yield
    finally:
        for worker in workers:
            worker.resume()


def settled(host):
    """Tell whether a host has read the store since the consumers share the category."""
    names = of_the_store(host)
    return names["partitions"] == 2 and names["partitions_without_holder"] == 0


def of_the_store(host):
    """Return the gauges that have to be the same at each host."""
    figures = host.figures()
    return {name: figures.get((f"reservation_{name}", *READS)) for name in OF_THE_STORE}
