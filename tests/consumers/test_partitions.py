"""Changing the number of partitions: no message is passed over, and none is read twice."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from reservation import Component
from tests.apps.bank import address, drain
from tests.support.commands import invoke_cli
from tests.support.stored_positions import store_position

CATEGORY = "account:command"
STREAMS = ["", "-", "-a", "-a+1", "-a+2", "-b", "-b+x+y", "-c", "-d", "-e", "-f", "-g-h", "-ü"]


@dataclass
class Note:
    n: int


class Group:
    """A group of the bank's command consumers, and which messages they were given."""

    def __init__(self, connection, streams, positions):
        """Have a message in each of these streams, and partitions that have read so far."""
        self._connection = connection
        connection.execute(
            "TRUNCATE message_store.messages, reservation.groups, reservation.leases, "
            "reservation.moves"
        )
        self.messages = [
            connection.execute(
                "INSERT INTO message_store.messages (stream_name, position, type, data) "
                "VALUES (%s, %s, 'Note', jsonb_build_object('n', %s::int)) "
                "RETURNING global_position",
                [CATEGORY + stream, n, n],
            ).fetchone()[0]
            for n, stream in enumerate(streams)
        ]
        connection.execute(
            "INSERT INTO reservation.groups (consumer, category, partitions) "
            "VALUES ('account', %s, %s)",
            [CATEGORY, len(positions)],
        )
        self.given = Counter()
        for partition, read in enumerate(positions):
            position = self.messages[read - 1] if read else 0
            store_position(connection, "account", CATEGORY, position, partition)
            rows = connection.execute(
                "SELECT global_position FROM message_store.messages WHERE global_position <= %s "
                "AND reservation.partition_of(stream_name, %s) = %s",
                [position, len(positions), partition],
            )
            self.given.update(row[0] for row in rows)

    def change(self, partitions):
        """Change their number; return the error, if any."""
        done = invoke_cli(
            *("partitions", "bank:account", str(partitions), "--category", CATEGORY),
            *("--database-url", address(self._connection)),
        )
        assert done.returncode == (2 if done.stderr else 0), done.stderr
        return done.stderr

    def read(self):
        """Read all that is left."""
        component = Component("account", id="n")

        @component.handle(Note, once=None)
        def note(command: Note, entity, context):
            self.given[context.message.global_position] += 1

        drain(self._connection, component)

    def rows(self):
        """Return the position, epoch and holder of each partition."""
        return self._connection.execute(
            "SELECT position, epoch, holder FROM reservation.positions ORDER BY partition"
        ).fetchall()


def change_partitions(connection, examples):
    """Change the number of partitions often, however far each was, and compare what was read."""

    @settings(max_examples=examples)
    @given(data=st.data())
    def check(data):
        streams = data.draw(st.lists(st.sampled_from(STREAMS), min_size=1))
        read = st.integers(0, len(streams))
        group = Group(connection, streams, data.draw(st.lists(read, min_size=1, max_size=9)))
        for partitions in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)):
            if group.change(partitions):  # what was carried over has to be read first
                group.read()
                assert not group.change(partitions)
        group.read()
        assert group.given == Counter(group.messages)

    check()


def test_every_message_is_read_once_whatever_the_number_of_partitions(connection):
    """With few examples; `tests/soak/test_drawn_consumers.py` takes more."""
    change_partitions(connection, 4)


def test_partitions_that_are_at_one_position_leave_nothing_to_carry(connection):
    """Their number can be changed again at once."""
    group = Group(connection, STREAMS, [5])
    for partitions in (7, 3, 1024, 1):
        assert not group.change(partitions)
        assert {row[0] for row in group.rows()} == {group.messages[4]}
        assert len(group.rows()) == partitions


def test_after_a_change_a_former_holder_commits_nothing(connection):
    """The epochs of all partitions are higher than any before."""
    group = Group(connection, STREAMS, [0, 0])
    connection.execute("UPDATE reservation.leases SET epoch = 7, holder = 1 WHERE partition = 1")
    group.change(3)
    assert {row[1:] for row in group.rows()} == {(8, None)}


def test_carried_messages_must_be_read_before_the_next_change(connection):
    """The error says up to which position."""
    group = Group(connection, STREAMS, [0, len(STREAMS)])
    assert not group.change(3)
    assert f"past {group.messages[-1]}, and then change the number" in group.change(4)
    group.read()
    assert not group.change(4)
    assert group.given == Counter(group.messages)
