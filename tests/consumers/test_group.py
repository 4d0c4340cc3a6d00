"""Processes that share a category: the partition of a stream, and what is logged of them."""

import hashlib
from itertools import chain

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bank import account
from tests.apps.bank import drain, lengthen_leases
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, logged
from tests.support.controls import COMMANDS, deposit, open_

CATEGORY = "account:command"
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("-+:"), max_size=30)
leading_ids = ids.filter(lambda text: "+" not in text)
sizes = st.integers(1, 1024)


@pytest.fixture
def log():
    """Give what consumers of this process log."""
    with logged() as found:
        yield found


def partitions(database_url, number):
    """Let a component's categories have so many partitions."""
    done = invoke_cli("partitions", "bank:account", str(number), "--database-url", database_url)
    assert done.returncode == 0, done.stderr


# The partition of a stream


def partition_of(connection, name, size):
    return connection.execute("SELECT reservation.partition_of(%s, %s)", [name, size]).fetchone()[0]


@settings(max_examples=25)
@given(category=ids, leading=leading_ids, rest=ids, size=sizes)
@example(category="a", leading="", rest="", size=2)
@example(category="", leading="", rest="", size=3)
def test_a_stream_is_in_the_partition_that_message_db_would_read_it_in(
    connection, category, leading, rest, size
):
    """It is the hash of the cardinal id, whatever the category and the other ids."""
    name = f"{category.replace('-', '_')}-{leading}"
    digest = hashlib.md5(leading.encode(), usedforsecurity=False).digest()[:8]
    by_hand = abs(int.from_bytes(digest, signed=True)) % size
    theirs = connection.execute(
        "SELECT MOD(@message_store.hash_64(message_store.cardinal_id(%s)), %s)", [name, size]
    ).fetchone()[0]
    assert partition_of(connection, name, size) == theirs == by_hand
    assert partition_of(connection, f"b:command-{leading}+{rest}", size) == by_hand


@settings(max_examples=10)
@given(category=ids, size=sizes)
@example(category="", size=1)
def test_a_stream_without_an_id_is_in_the_first_partition(connection, category, size):
    """Message DB gives it to none."""
    assert partition_of(connection, category.replace("-", "_"), size) == 0


# What is logged


def test_each_log_event_of_a_member_has_its_partitions(connection, store, database_url, log):
    """Those of taking and leaving have the change too."""
    partitions(database_url, 4)
    for n in range(20):
        store.write(open_(str(n)), f"account:command-{n}")
    of = {"category": CATEGORY}
    with hosted(account, database_url):
        log.wait_for("consumer_started", **of, partitions=[0, 1, 2, 3])
        log.wait_for("batch_committed", **of, partitions=[0, 1, 2, 3], position=20)
        with hosted(account, database_url):
            log.wait_for("partitions_left", **of, left=[2, 3], partitions=[0, 1])
            log.wait_for("consumer_started", **of, partitions=[2, 3])
        assert log.named("consumer_stopped", **of, partitions=[2, 3])
        log.wait_for("partitions_taken", **of, partitions=[0, 1, 2, 3])
        taken = [one["taken"] for one in log.named("partitions_taken", **of)]
        assert sorted(chain.from_iterable(taken)) == [2, 3]  # in one step or two
    assert not any("part" in one for one in log.events)
    connection.execute("UPDATE reservation.moves SET position = 0 WHERE partition = 2")
    drain(connection)
    assert log.named("batch_committed", **of, partitions=[0, 1, 2, 3], part=(2,))
    for one in log.events:
        assert {"consumer", "category", "partitions"} <= one.keys()
        assert set(one.get("taken", [])) <= set(one["partitions"])


def test_a_member_that_stands_by_logs_that_it_has_no_partitions(connection, database_url, log):
    """Of three members, one has none of two partitions."""
    lengthen_leases(connection)
    partitions(database_url, 2)
    with hosted(account, database_url), hosted(account, database_url):
        for _ in range(2):
            log.wait_for("consumer_started", category=CATEGORY)
        with hosted(account, database_url):
            log.wait_for("standing_by", category=CATEGORY, partitions=[])


def test_the_events_of_a_category_that_is_not_shared_name_no_partitions(connection, store, log):
    """There is but one."""
    store.write(open_(), COMMANDS)
    drain(connection)
    assert log.named("batch_committed")
    assert not any("partitions" in one for one in log.events)


def test_a_group_knows_from_where_on_its_members_have_read(connection, store, database_url):
    """It is the lowest position at which a member joined, whatever moved it since."""
    store.write([deposit(f"d{n}") for n in range(60)], COMMANDS)

    def first_position(*positions):
        for partition, position in enumerate(positions):
            connection.execute(
                "UPDATE reservation.moves SET position = %s, message_id = NULL "
                "WHERE category = %s AND partition = %s",
                [position, CATEGORY, partition],
            )
        drain(connection)
        return connection.execute(
            "SELECT first_position FROM reservation.groups WHERE category = %s", [CATEGORY]
        ).fetchone()[0]

    partitions(database_url, 2)
    assert first_position(40, 50) == 40
    assert first_position(60, 60) == 40
    assert first_position(7, 60) == 7
    connection.execute("TRUNCATE reservation.groups, reservation.leases, reservation.moves")
    assert first_position() == 0


def test_a_consumer_that_ends_gives_its_partitions_back(connection, store):
    """Else the next one would take it for dead, and count attempts."""
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    holders = connection.execute("SELECT DISTINCT holder FROM reservation.positions").fetchall()
    assert holders == [(None,)]
