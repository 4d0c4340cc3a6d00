"""The store's part of rates: which calls are taken, and the times of what waits for others."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import connect

# Seconds between two calls: so long that the time that a test takes does not matter.
HOUR = 3600.0
NEAR = 60.0
NAMES = ("payment", "payment:command", "Capture")


def take(connection, calls=1, *, burst=1, horizon=0.0, is_new=False, seconds=HOUR, names=NAMES):
    """Take calls; return how many, and when the first and the next may be made."""
    query = "SELECT * FROM reservation.take_calls(%s, %s, %s, %s, %s, %s, %s, %s)"
    values = [*names, seconds, burst, calls, horizon, is_new]
    return connection.execute(query, values).fetchone()


def later(connection, seconds):
    """Let so much time pass."""
    connection.execute(
        "WITH gone AS (DELETE FROM reservation.rates RETURNING *) "
        "INSERT INTO reservation.rates SELECT consumer, category, rate, "
        "made_up_at - make_interval(secs => %s) FROM gone",
        [seconds],
    )
    connection.execute(
        "UPDATE reservation.dead_letters SET next_attempt_at = next_attempt_at - "
        "make_interval(secs => %s)",
        [seconds],
    )


def wait(connection, positions, *, rate="Capture", wait=0.0, have_waited=False):
    """Record letters that wait for a rate; return in how many hours each is due."""
    columns = ([given] * len(positions) for given in (rate, wait, HOUR, have_waited))
    times = connection.execute(
        "SELECT global_position, at FROM reservation.rate_times(%s, %s, %s, %s, %s, %s, %s)",
        [*NAMES[:2], positions, *columns],
    ).fetchall()
    for position, at in times:
        connection.execute(
            "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
            "message_id, stream_name, type, state, reason, process, next_attempt_at, rate) "
            "VALUES (%s, %s, %s, gen_random_uuid(), 'payment:command-1', 'Capture', 'waiting', "
            "'limited', 'a:1', %s, %s)",
            [*NAMES[:2], position, at, rate],
        )
    return due(connection, positions)


def due(connection, positions):
    """Return in how many hours letters are due, rounded."""
    rows = connection.execute(
        "SELECT round(extract(epoch FROM next_attempt_at - clock_timestamp()) / 3600)::integer "
        "FROM reservation.dead_letters WHERE global_position = ANY (%s) ORDER BY global_position",
        [positions],
    )
    return [hours for (hours,) in rows]


def near(found, expected):
    """Return whether seconds are what was expected, but for the time that the test has taken."""
    return expected - NEAR < found <= expected


def test_calls_are_an_interval_apart(connection):
    """The first is made now, the next one only after the interval, however often one asks."""
    assert take(connection) == (1, 0, HOUR)
    for _ in range(3):
        taken, _, next_in = take(connection, 5)
        assert taken == 0
        assert near(next_in, HOUR)
    later(connection, HOUR)
    assert take(connection, 5)[0] == 1


def test_no_more_than_the_burst_is_made_up_for(connection):
    """After a long time without calls the burst is free, and no more."""
    assert take(connection, 10, burst=3)[0] == 3
    later(connection, HOUR)
    assert take(connection, 10, burst=3)[0] == 1
    later(connection, 100 * HOUR)
    taken, first_in, next_in = take(connection, 10, burst=3)
    assert (taken, first_in, next_in) == (3, -2 * HOUR, HOUR)


def test_a_part_of_the_burst_is_free_after_a_part_of_the_time(connection):
    """Two calls after two intervals, of which one is made."""
    assert take(connection, 3, burst=3)[0] == 3
    later(connection, 2 * HOUR)
    assert take(connection, 1, burst=3)[0] == 1
    assert take(connection, 9, burst=3)[0] == 1


def test_calls_within_the_horizon_are_taken_ahead_each_at_its_time(connection):
    """The next who asks gets those that come after them."""
    assert take(connection, 10, horizon=2.5 * HOUR) == (3, 0, 3 * HOUR)
    taken, first_in, _ = take(connection, 10, horizon=4.5 * HOUR)
    assert taken == 2
    assert near(first_in, 3 * HOUR)
    assert take(connection, 10, horizon=4.5 * HOUR)[0] == 0


def test_as_many_are_taken_as_are_asked_for(connection):
    """Nothing is lost for who asks for fewer."""
    assert take(connection, 2, horizon=100 * HOUR) == (2, 0, 2 * HOUR)
    assert take(connection, 0, horizon=100 * HOUR)[0] == 0
    assert near(take(connection, 1, horizon=100 * HOUR)[1], 2 * HOUR)


def test_rates_do_not_count_each_others_calls(connection):
    """Those of other handlers, values, categories and components."""
    others = [("shop", *NAMES[1:]), ("payment", "payment", "Capture"), (*NAMES[:2], "Capture 1f")]
    for names in (NAMES, *others):
        assert take(connection, names=names)[0] == 1
        assert take(connection, names=names)[0] == 0


def test_several_at_a_time_share_the_calls(connection, database_url):
    """However their statements overlap, each call is taken once."""

    def ask(_):
        with connect(database_url, autocommit=True) as own:
            return sum(take(own, 3, horizon=150.5 * HOUR)[0] for _ in range(10))

    with ThreadPoolExecutor(8) as pool:
        taken = sum(pool.map(ask, range(8)))
    assert taken == 151
    (row,) = connection.execute("SELECT count(*) FROM reservation.rates").fetchall()
    assert row == (1,)


def test_new_messages_take_no_call_while_others_wait(connection):
    """They come after the last one; those that have waited take what is free."""
    assert wait(connection, [1, 2], wait=HOUR) == [1, 2]
    taken, _, next_in = take(connection, is_new=True)
    assert taken == 0
    assert near(next_in, 3 * HOUR)
    assert take(connection, is_new=True, names=(*NAMES[:2], "Capture 1f"))[0] == 1
    assert take(connection)[0] == 1
    connection.execute("DELETE FROM reservation.dead_letters")
    later(connection, HOUR)
    assert take(connection, is_new=True)[0] == 1


def test_what_waits_follows_what_waits_already(connection):
    """Each at a time of its own, in the order of the log; those that are due do not count."""
    assert wait(connection, [5, 3, 4], wait=HOUR) == [1, 2, 3]
    assert wait(connection, [7], wait=HOUR) == [4]
    assert wait(connection, [8], rate="Capture 1f", wait=2 * HOUR) == [2]
    later(connection, 4 * HOUR)
    assert wait(connection, [9], wait=HOUR) == [1]


def test_of_those_that_have_waited_one_is_next_and_the_others_are_last(connection):
    """Who was only looked at at the wrong time does not lose its place, and no crowd forms."""
    assert wait(connection, [1, 2, 3, 4], wait=HOUR) == [1, 2, 3, 4]
    assert wait(connection, [5, 6, 7], wait=2 * HOUR, have_waited=True) == [2, 5, 6]
    assert wait(connection, [8, 9], wait=9 * HOUR, have_waited=True) == [9, 10]
    connection.execute("DELETE FROM reservation.dead_letters")
    assert wait(connection, [5, 6, 7], wait=HOUR, have_waited=True) == [1, 2, 3]
    assert wait(connection, [8], wait=HOUR) == [4]


def test_where_letters_were_discarded_no_queue_is_left(connection):
    """What comes next is planned behind those that are there."""
    assert wait(connection, list(range(1, 11)), wait=HOUR)[-1] == 10
    connection.execute("DELETE FROM reservation.dead_letters WHERE global_position > 2")
    assert wait(connection, [20], wait=HOUR) == [3]


def test_two_that_record_at_a_time_do_not_give_one_time_twice(connection, database_url):
    """The second waits until the letters of the first are there."""
    with ThreadPoolExecutor(1) as pool, connect(database_url) as first:
        wait(first, [1, 2], wait=HOUR)

        def second():
            with connect(database_url, autocommit=True) as other, other.transaction():
                return wait(other, [3, 4], wait=HOUR)

        waiting = pool.submit(second)
        blocked = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        while connection.execute(blocked).fetchone() != (1,):
            assert not waiting.done()
        first.commit()
        assert waiting.result() == [3, 4]


@pytest.mark.parametrize("rates", [[None, None], []])
def test_other_letters_have_no_such_times(connection, rates):
    """And wait for no lock."""
    connection.execute("BEGIN")
    found = connection.execute(
        "SELECT * FROM reservation.rate_times(%s, %s, %s, %s, %s, NULL, NULL)",
        [*NAMES[:2], [1, 2][: len(rates)], rates, [1.0] * len(rates)],
    ).fetchall()
    assert found == []
    locks = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    ).fetchone()
    connection.execute("ROLLBACK")
    assert locks == (0,)


def test_calls_that_are_made_up_for_are_forgotten(connection):
    """So the table has as many rows as there are values that were used lately."""
    for n in range(20):
        take(connection, names=(*NAMES[:2], f"Capture {n}"))
    later(connection, 2 * HOUR)
    take(connection)
    connection.execute("SELECT reservation.forget_rates('payment', 'payment:command')")
    assert connection.execute("SELECT rate FROM reservation.rates").fetchall() == [("Capture",)]
    assert take(connection)[0] == 0
