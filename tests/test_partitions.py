"""Changing the number of partitions: no message is passed over, and none is read twice."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.group.administration import apply_changes, find_idle, plan_partitions
from reservation.errors import StoreError

_numbers = count(1)

# The messages that a reader of this partition still gets, up to a position.
READ = """
SELECT r.global_position
FROM reservation.groups g
JOIN reservation.positions p USING (consumer, category),
LATERAL reservation.read_part(
  g.category, p.position + 1, %(to)s, 1000, ARRAY[p.partition], g.partitions, g.carried) r
WHERE g.consumer = 'account' AND g.category = %(category)s AND p.partition = %(partition)s
"""

STREAMS = ["", "-", "-a", "-a+1", "-a+2", "-b", "-b+x+y", "-c", "-d", "-e", "-f", "-g-h", "-ü"]


class Group:
    """A group whose partitions are read by the rule, and what they were given."""

    def __init__(self, connection, streams):
        self.connection = connection
        self.category = f"counted{next(_numbers)}"
        self.given = Counter()
        self.messages = [
            connection.execute(
                "INSERT INTO message_store.messages (stream_name, position, type) "
                "VALUES (%s, %s, 'x') RETURNING global_position",
                [self.category + stream, n],
            ).fetchone()[0]
            for n, stream in enumerate(streams)
        ]

    @property
    def resting(self):
        return find_idle(self.connection, "account", self.category)

    def change(self, partitions):
        apply_changes(self.connection, [plan_partitions(self.resting, partitions)])

    def read(self, partition, to):
        """Take a partition to a position, unless it is further already."""
        of = {"category": self.category, "partition": partition, "to": to}
        self.given.update(row[0] for row in self.connection.execute(READ, of))
        self.connection.execute(
            "UPDATE reservation.positions SET position = greatest(position, %(to)s) "
            "WHERE consumer = 'account' AND category = %(category)s AND partition = %(partition)s",
            of,
        )

    def read_all(self, to):
        for partition in range(len(self.resting.positions)):
            self.read(partition, to)


@settings(max_examples=60)
@given(data=st.data())
def test_every_message_is_read_once_whatever_the_number_of_partitions(connection, data):
    """Every message is read once, however the number of partitions changes."""
    group = Group(connection, data.draw(st.lists(st.sampled_from(STREAMS), min_size=1)))
    anywhere = st.sampled_from([0, *group.messages])
    for partitions in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)):
        before = group.resting
        try:
            group.change(partitions)
        except StoreError:
            assert before.carried is not None
            assert min(before.positions) < max(before.carried)
            group.read_all(max(before.carried))
            group.change(partitions)
        for partition in range(partitions):
            group.read(partition, data.draw(anywhere))
    group.read_all(group.messages[-1])
    assert group.given == Counter(group.messages)


def test_partitions_that_are_at_one_position_leave_nothing_to_carry(connection):
    """Partitions at the same position can be changed again at once."""
    group = Group(connection, STREAMS)
    group.change(1)
    group.read(0, group.messages[4])
    for partitions in (7, 3, 1024, 1):
        group.change(partitions)
        assert group.resting.positions == (group.messages[4],) * partitions
        assert group.resting.carried is None


def test_after_a_change_a_former_holder_commits_nothing(connection):
    """After a change a former holder that was paused can commit nothing."""
    group = Group(connection, STREAMS)
    group.change(2)
    connection.execute("UPDATE reservation.positions SET epoch = 7, holder = 1 WHERE partition = 1")
    group.change(3)
    rows = connection.execute(
        "SELECT DISTINCT epoch, holder FROM reservation.positions WHERE category = %s",
        [group.category],
    ).fetchall()
    assert rows == [(8, None)]


def test_carried_messages_must_be_read_before_the_next_change(connection):
    """A second change must wait until what the first carried over has been read."""
    group = Group(connection, STREAMS)
    group.change(2)
    group.read(1, group.messages[-1])
    group.change(3)
    assert group.resting.carried == (0, group.messages[-1])
    with pytest.raises(StoreError, match=f"past {group.messages[-1]}, and then change the number"):
        group.change(4)
    group.read_all(group.messages[-1])
    group.change(4)
    assert group.resting.carried_in_force is None
    assert group.given == Counter(group.messages)
