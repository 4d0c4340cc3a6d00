"""The example of the source: a shot handled twice has one outcome, whatever lies between."""

import contextlib
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reservation import MessageStore
from reservation.errors import StoreError
from reservation.testing import check_deterministic
from shooting_range import leader_board, shooting_range
from shooting_range.component import ATTEMPTS, POSITIONS, ShootingRange
from shooting_range.messages import FireAt, MoveTarget
from tests.apps.bank import drain
from tests.apps.idempotence import empty
from tests.consumers.builders import Killer, read_again
from tests.support.stored_positions import store_position

GAME = "shootingRange:command-1"


def play(connection):
    """Let both components handle all messages, and return the counts."""
    return drain(connection, shooting_range).counts + drain(connection, leader_board).counts


def outcomes(store, game="1"):
    """Return the types of a game's outcomes, in the order in which they were published."""
    return [message.type for message in store.read_stream(f"shootingRange-{game}")]


def board(connection, game="1"):
    """Return the hits and misses on a game's leader board, whose versions may be changes."""
    found = {"hits": 0, "misses": 0}
    for (state,) in connection.execute(
        "SELECT state FROM reservation.states WHERE stream_name = %s ORDER BY position",
        [f"leaderBoard:state-{game}"],
    ):
        found |= state.get("changed", state)
    return found["hits"], found["misses"]


def log(connection):
    """Return all that is stored: the messages and the versions."""
    return [
        connection.execute(query).fetchall()
        for query in (
            "SELECT * FROM message_store.messages ORDER BY global_position",
            "TABLE reservation.states ORDER BY stream_name, position",
        )
    ]


def test_a_shot_is_a_hit_or_a_miss(connection, store):
    """A shot is a hit or a miss, and the leader board counts it."""
    store.write([MoveTarget("1", 7), FireAt("1", 7), MoveTarget("1", 8), FireAt("1", 7)], GAME)
    play(connection)
    assert outcomes(store) == ["Hit", "Missed"]
    assert board(connection) == (1, 1)


def test_the_target_moves_by_chance_after_some_shots():
    """The target moves at random, and in the same way at every handling of a message."""
    done = check_deterministic(shooting_range, FireAt("1", 7), ShootingRange(7, ATTEMPTS - 1))
    assert [type(event).__name__ for event in done.events] == ["Hit"]
    assert done.state.attempts == 0
    expected = random.Random(int(done.context.given.seed, 16)).randrange(POSITIONS)
    assert done.state.target_position == expected


def test_a_repeated_shot_has_the_same_outcome_after_the_target_moved(connection, store):
    """A shot repeated after the target moved has the same outcome, and is counted once."""
    store.write([MoveTarget("1", 1), FireAt("1", 1)], GAME)
    play(connection)
    store.write(MoveTarget("1", 2), GAME)
    play(connection)
    before = log(connection)
    read_again(connection)
    assert play(connection) == {"redelivered": 4}
    assert outcomes(store) == ["Hit"]
    assert board(connection) == (1, 0)
    assert log(connection) == before


def test_a_shot_that_was_never_handled_meets_the_newest_state(connection, store):
    """A late shot that was never handled is decided on the newest state."""
    store.write([FireAt("1", 5), MoveTarget("1", 5), FireAt("1", 5)], GAME)
    drain(connection, leader_board)
    store_position(connection, "shootingRange", "shootingRange:command", 1)
    assert drain(connection, shooting_range).counts == {"handled": 2}
    read_again(connection)
    assert drain(connection, shooting_range).counts == {"handled": 1, "redelivered": 2}
    assert outcomes(store) == ["Hit", "Hit"]  # before the target moved it would have missed


GAMES = ["a", "b"]
COMMAND = st.one_of(
    st.builds(FireAt, st.sampled_from(GAMES), st.integers(0, 2)),
    st.builds(MoveTarget, st.sampled_from(GAMES), st.integers(0, 2)),
)
STEP = st.one_of(
    st.lists(COMMAND, min_size=1, max_size=4),  # are sent
    st.tuples(  # handled in batches of a size, by a component that is killed at a statement
        st.sampled_from([shooting_range, leader_board]), st.integers(1, 4), st.integers(0, 12)
    ),
    st.integers(0, 30),  # positions are set to anything that was read
)


@pytest.fixture
def killer(connection):
    """Give what kills consumers at a statement."""
    return Killer(connection)


@given(steps=st.lists(STEP, max_size=7))
@settings(max_examples=12)
def test_whatever_happens_every_shot_has_one_outcome(connection, killer, steps):
    """Every shot has one outcome under any sequence of sends, kills and redeliveries."""
    killer.set(0)
    empty(connection)
    store = MessageStore(connection)
    for step in steps:
        if isinstance(step, list):
            for command in step:
                store.write(command, f"shootingRange:command-{command.game_id}")
        elif isinstance(step, int):
            read_again(connection, step)
        else:
            component, batch_size, at = step
            killer.set(at)
            with contextlib.suppress(StoreError):
                drain(connection, component, batch_size=batch_size)
            killer.set(0)
    play(connection)
    for game in GAMES:
        check(connection, store, game)


def check(connection, store, game):
    """Compare the stored messages with the commands in the order of their first handling."""
    commands = {m.id: m for m in store.read_stream(f"shootingRange:command-{game}")}
    versions = connection.execute(
        "SELECT message_id::text, state FROM reservation.states WHERE stream_name = %s "
        "ORDER BY position",
        [f"shootingRange:state-{game}"],
    ).fetchall()
    assert sorted(id_ for id_, _ in versions) == sorted(commands)  # every one, once
    state, expected = ShootingRange(), {}
    for id_, stored in versions:
        message = commands[id_]
        type_ = {"FireAt": FireAt, "MoveTarget": MoveTarget}[message.type]
        done = check_deterministic(shooting_range, message.decode(type_), state, message=message)
        state = done.state
        assert stored == {"targetPosition": state.target_position, "attempts": state.attempts}
        for event in done.events:
            expected[message.global_position] = type(event).__name__
    published = {
        m.metadata.causation_message_global_position: m.type
        for m in store.read_stream(f"shootingRange-{game}")
    }
    assert published == expected
    assert len(outcomes(store, game)) == len(expected)
    counts = Counter(expected.values())
    assert board(connection, game) == (counts["Hit"], counts["Missed"])
