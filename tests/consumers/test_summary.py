"""How lag is counted up to a limit, and the summary that metrics and the console show of it."""

import pytest

from consumers.group.inspection.status import read_status
from consumers.group.inspection.summary import read_summary
from tests.consumers.test_status import COMMANDS, group, left, messages
from tests.support.letters import letters
from tests.support.started import PATIENCE


def test_counting_stops_at_a_limit_and_says_so(connection):
    """Counting stops at a limit and says so, and other partitions are counted exactly."""
    messages(connection, 1, 1000)
    group(connection, [0, 990])
    behind, close = read_status(connection, most_counted=50).partitions
    assert 0 < behind.lag.messages <= 50
    assert behind.lag.at_least
    assert (close.lag.messages, close.lag.at_least) == (left(connection, 1, 2, 990), False)


def test_passes_are_few_however_far_apart_partitions_are(connection):
    """The number of queries is bounded; a lag beyond them is shown as unknown, not as 0."""
    messages(connection, 1, 1000)
    group(connection, [0, 200, 400, 600, 800])
    *_, last = read_status(connection, most_counted=10).partitions
    assert (last.lag.messages, last.lag.at_least, last.lag.seconds) == (0, True, None)


def test_a_summary_adds_up_the_partitions(connection):
    """A summary has the numbers of all partitions, and the age of the oldest of their messages."""
    messages(connection, 1, 100, age=90)
    messages(connection, 101, 200, age=30)
    group(connection, [150, 120, 200])
    letters(connection, [("dead", None), ("parked", None), ("parked", None), ("handled", None)])
    letters(connection, [("waiting", "5 s"), ("parked", None)], entity="b", stream=f"{COMMANDS}-8")
    letters(connection, [("waiting", "3 s"), ("waiting", "9 s")], entity=None)
    seen = read_status(connection)
    summary = read_summary(connection)
    (one,) = summary.consumers
    assert (one.consumer, one.category, one.partitions) == ("account", COMMANDS, 3)
    assert one.lag.messages == sum(part.lag.messages for part in seen.partitions) > 0
    assert not one.lag.at_least
    assert one.lag.seconds == pytest.approx(30, abs=PATIENCE)
    assert one.lag.seconds >= 30
    assert one.letters.counts == {"dead": 1, "parked": 3, "retry": 3}
    assert one.parked_entities == 2
    assert one.next_attempt_at == min(
        part.next_attempt_at for part in seen.partitions if part.next_attempt_at
    )
    assert (one.without_holder, one.foreign, one.head) == (3, False, 200)
    assert one.updated_at == max(part.stored.updated_at for part in seen.partitions)
    assert summary.store_id == seen.store_id


def test_a_summary_of_named_consumers_has_those_that_were_never_run(connection):
    """A consumer that was never run is behind by all messages, and nobody holds its partition."""
    messages(connection, 1, 5, age=90)
    group(connection, [5], consumer="other")
    (one,) = read_summary(connection, [("account", COMMANDS)]).consumers
    assert (one.lag.messages, one.without_holder, one.updated_at) == (5, 1, None)
    assert one.lag.seconds >= 90
    assert [seen.consumer for seen in read_summary(connection).consumers] == ["other"]
    assert read_summary(connection, []).consumers == []


def test_a_summary_says_where_it_did_not_count_on(connection):
    """A summary counts up to a limit; a consumer with nothing left has an age of 0."""
    messages(connection, 1, 1000)
    group(connection, [0])
    group(connection, [1000], consumer="other")
    behind, idle = read_summary(connection, most_counted=50).consumers
    assert (behind.lag.messages, behind.lag.at_least) == (50, True)
    assert (idle.lag.messages, idle.lag.at_least, idle.lag.seconds) == (0, False, 0)


def test_a_summary_counts_scheduled_messages_up_to_the_limit(connection):
    """What is overdue comes first, so that a limit does not hide it."""
    connection.execute(
        "INSERT INTO reservation.scheduled (id, due_at, stream_name, type, attempts, attempt_at) "
        "SELECT gen_random_uuid(), now() - interval '1 min' * n, 'a:command-1', 'Deposit', "
        "       CASE WHEN n = 3 THEN 1 ELSE 0 END, CASE WHEN n = 3 THEN now() END "
        "FROM generate_series(-5, 3) AS n"
    )
    status, summary = read_status(connection), read_summary(connection)
    assert summary.schedule.overdue == status.schedule.overdue == 4
    assert summary.schedule.messages == status.schedule.messages == 9
    assert (status.schedule.refused, status.schedule.next_at is None) == (1, False)
    limited = read_summary(connection, most_counted=2).schedule
    assert (limited.messages, limited.overdue, limited.refused) == (3, 3, 1)
    assert (summary.time - limited.overdue_since).total_seconds() < 180 + PATIENCE
