"""The check after chaos finds what waits for nothing."""

from tests.consumers.test_queues import Orders, park, strand
from tests.support.liveness import stuck


def test_what_waits_without_a_reason_is_found(connection, store, database_url):
    """The check that runs after every run of chaos names what is stuck, and nothing else."""
    orders = Orders(connection)
    with orders.running(database_url):
        park(store, orders)
    assert stuck(connection) == []
    orders.send(store, "0-2")
    (found,) = stuck(connection)
    assert "a message that was not read of order" in found
    strand(connection)
    connection.execute(
        "INSERT INTO reservation.scheduled (id, due_at, stream_name, type)"
        " VALUES (gen_random_uuid(), now() - interval '1s', 'late-1', 'Late'),"
        " (gen_random_uuid(), now() + interval '1h', 'later-1', 'Later')"
    )
    assert [one.split(",")[1].split(" of ")[0].strip() for one in stuck(connection)] == [
        "a letter that is parked",
        "a message that was not read",
        "a scheduled message",
    ]
    connection.execute(
        "UPDATE reservation.dead_letters SET state = 'waiting', next_attempt_at = now()"
        " WHERE global_position = %s",
        [orders.position("1-1")],
    )
    assert "a letter whose next attempt is due" in stuck(connection)[0]
    connection.execute("UPDATE reservation.dead_letters SET state = 'dead', next_attempt_at = NULL")
    assert len(stuck(connection)) == 2
