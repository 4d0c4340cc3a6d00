"""The example of the source: a shot handled twice has one outcome, whatever lies between."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.testing.crashing.inside.cutting import Cut
from reservation import MessageStore
from reservation.errors import PositionLostError, ReservationError
from reservation.idempotence.state_based.states import States
from reservation.messages.message import followed_id
from reservation.postgres.connection import connect
from reservation.testing import check_deterministic
from shooting_range import leader_board, shooting_range
from shooting_range.component import ATTEMPTS, POSITIONS, ShootingRange
from shooting_range.messages import FireAt, MoveTarget
from tests.bank import batch, batches, drain
from tests.processes import EXAMPLES, PATIENCE, Started

GAME = "shootingRange:command-1"
COMMANDS = "shootingRange:command"
ROOT = Path(__file__).parent.parent


def play(connection):
    """Let both components handle all messages, and return the counts."""
    results = batches(connection, shooting_range) + batches(connection, leader_board)
    return sum((result.counts for result in results), Counter())


def redeliver(connection, position=0):
    """Let the consumers read again from a position."""
    connection.execute("UPDATE reservation.positions SET position = %s", [position])


def outcomes(store, game="1"):
    """Return the types of a game's outcomes, in the order in which they were published."""
    return [message.type for message in store.read_stream(f"shootingRange-{game}")]


def board(connection, game="1"):
    """Return the hits and misses on a game's leader board."""
    text = States(connection).newest(f"leaderBoard:state-{game}")
    found = json.loads(text or '{"hits": 0, "misses": 0}')
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


def unpublished(connection):
    """Return the number of versions that are not marked as published."""
    rows = connection.execute("SELECT count(*) FROM reservation.states WHERE NOT published")
    return rows.fetchone()[0]


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
    """A shot repeated after the target moved has the same outcome."""
    store.write([MoveTarget("1", 1), FireAt("1", 1)], GAME)
    play(connection)
    store.write(MoveTarget("1", 2), GAME)
    play(connection)
    before = log(connection)
    redeliver(connection, 1)
    assert play(connection)["redelivered"] > 0
    assert outcomes(store) == ["Hit"]
    assert board(connection) == (1, 0)
    assert log(connection) == before


def test_a_repeated_hit_is_counted_once(connection, store):
    """A repeated hit is counted once on the leader board."""
    store.write([MoveTarget("1", 1), FireAt("1", 1)], GAME)
    play(connection)
    redeliver(connection)
    drain(connection, leader_board)
    assert board(connection) == (1, 0)


def test_a_shot_that_was_never_handled_meets_the_newest_state(connection, store):
    """A late shot that was never handled is decided on the newest state."""
    store.write([FireAt("1", 5), MoveTarget("1", 5), FireAt("1", 5)], GAME)
    later = batch(connection, COMMANDS, shooting_range)
    redeliver(connection, 1)
    later = batch(connection, COMMANDS, shooting_range)
    assert later.run(100).counts == {"handled": 2}
    redeliver(connection)
    assert batch(connection, COMMANDS, shooting_range).run(100).counts == {
        "handled": 1,
        "redelivered": 2,
    }
    assert outcomes(store) == ["Hit", "Hit"]  # before the target moved it would have missed
    assert unpublished(connection) == 0


@pytest.mark.faults
def test_a_process_killed_at_any_point_loses_no_shot(database_url, connection, store):
    """A process killed before any exchange with the server loses no shot."""
    crashing = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.crashing", database_url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = []
    with crashing:
        for n in range(1, 100):
            game = str(n)
            shots = [MoveTarget(game, 3), *[FireAt(game, 3)] * ATTEMPTS, FireAt(game, 4)]
            store.write(shots, f"shootingRange:command-{game}")
            crashing.stdin.write(f"{n}\n")
            crashing.stdin.flush()
            ended = int(crashing.stdout.readline())
            versions = connection.execute(
                "SELECT count(*) FROM reservation.states WHERE stream_name = %s",
                [f"shootingRange:state-{game}"],
            ).fetchone()[0]
            published = outcomes(store, game)
            found.append((ended, versions, len(published)))
            play(connection)
            assert outcomes(store, game)[:ATTEMPTS] == ["Hit"] * ATTEMPTS, n
            assert len(outcomes(store, game)) == sum(board(connection, game)) == ATTEMPTS + 1, n
            assert outcomes(store, game)[: len(published)] == published, n
            assert unpublished(connection) == 0, n
            if ended == 0:
                break
        crashing.stdin.close()
    assert (-9, 0, 0) in found  # nothing was committed
    assert (-9, 4, 0) in found  # between the two commits
    assert found[-1] == (0, 4, 3)
    assert {ended for ended, _, _ in found[:-1]} == {-9}
    # What is committed is never less than before.
    assert found == sorted(found, key=lambda result: result[1:])


@pytest.mark.faults
def test_two_processes_that_are_killed_again_and_again_lose_no_shot(
    database_url, store, connection
):
    """Two consumers that are killed again and again lose no shot."""
    games = [str(n) for n in range(5)]
    for _ in range(4):
        for game in games:
            shots = [MoveTarget(game, 9), FireAt(game, 9), *[FireAt(game, n) for n in range(20)]]
            store.write(shots, f"shootingRange:command-{game}")
        app = "shooting_range:shooting_range"
        with Started(database_url, "--batch-size", "7", app=app) as started:
            started.wait_for("batch_committed")
            started.process.kill()
            started.process.wait(PATIENCE)
    play(connection)
    for game in games:
        assert len(outcomes(store, game)) == sum(board(connection, game)) == 4 * 21
        assert board(connection, game)[0] == outcomes(store, game).count("Hit")
    assert unpublished(connection) == 0


class Crash(BaseException):
    """Stands for the end of a process."""


def crash():
    raise Crash


GAMES = ["a", "b"]
COMMAND = st.one_of(
    st.builds(FireAt, st.sampled_from(GAMES), st.integers(0, 2)),
    st.builds(MoveTarget, st.sampled_from(GAMES), st.integers(0, 2)),
)
STEP = st.one_of(
    st.lists(COMMAND, min_size=1, max_size=4),  # are sent
    st.tuples(st.integers(1, 4), st.integers(0, 12)),  # up to so many handled, cut at an exchange
    st.integers(0, 30).map(str),  # the position is set to anything that was read
)


@given(st.lists(STEP, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_whatever_happens_every_shot_has_one_outcome(database_url, connection, steps, chance):
    """Every shot has one outcome under any sequence of sends, crashes and redeliveries."""
    store = MessageStore(connection)
    for table in ("message_store.messages", "reservation.states", "reservation.positions"):
        connection.execute(f"TRUNCATE {table} RESTART IDENTITY")
    for step in steps:
        if isinstance(step, list):
            for command in step:
                store.write(command, f"shootingRange:command-{command.game_id}")
        elif isinstance(step, str):
            connection.execute(
                "UPDATE reservation.positions SET position = least(position, %s)", [int(step)]
            )
        else:
            limit, at = step
            component = chance.choice([shooting_range, leader_board])
            run_and_cut(database_url, component, limit, at)
    play(connection)
    check(connection, store)


def run_and_cut(url, component, limit, at):
    """Run a batch of a component's commands on a connection that may be lost in it."""
    with connect(url, autocommit=True) as connection:
        claimed = batch(connection, component.command_category, component)
        Cut(connection, at, crash)
        try:
            claimed.run(limit)
        except (Crash, ReservationError):
            pass
        finally:
            connection.close()


def check(connection, store):
    """Compare the stored messages with the commands in the order of their first handling."""
    for game in GAMES:
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
            done = check_deterministic(
                shooting_range, message.decode(type_), state, message=message
            )
            state = done.state
            assert stored == {"targetPosition": state.target_position, "attempts": state.attempts}
            for event in done.events:
                id_ = followed_id(message.id, f"shootingRange-{game}", 0)
                expected[str(id_)] = type(event).__name__
        published = {m.id: m.type for m in store.read_stream(f"shootingRange-{game}")}
        assert published == expected
        counts = Counter(expected.values())
        assert board(connection, game) == (counts["Hit"], counts["Missed"])
    assert unpublished(connection) == 0


def test_one_of_two_consumers_of_the_same_messages_commits(connection, store, database_url):
    """A consumer that was taken over stores no state and moves no position."""
    store.write([MoveTarget("1", 7), FireAt("1", 7)], GAME)
    first = batch(connection, COMMANDS, shooting_range)
    with connect(database_url, autocommit=True) as other:
        assert batch(other, COMMANDS, shooting_range).run(100).counts == {"handled": 2}
    with pytest.raises(PositionLostError):
        first.run(100)
    assert play(connection) == {"handled": 1}  # the hit
    assert outcomes(store) == ["Hit"]
