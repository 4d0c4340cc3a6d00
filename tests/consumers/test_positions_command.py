"""Seeing and moving positions by hand, and taking over those of Eventide."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from bank import account
from tests.apps.bank import broken, drain, event_types, lengthen_leases
from tests.support.commands import Terminal, invoke_cli
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS as STREAM
from tests.support.controls import deposit, open_
from tests.support.started import PATIENCE

COMMANDS = "account:command"
RESERVED = "accountTransaction"


@pytest.fixture
def reservation(database_url):
    """Give the command line on the test's database; it returns JSON if that is printed."""

    def run(*arguments, status=0, **options):
        env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "200"}
        done = invoke_cli(*arguments, env=env, **options)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return json.loads(done.stdout) if "--json" in arguments and status == 0 else done

    return run


@pytest.fixture
def at_rest(store, connection):
    """Have an account with four deposits and no consumer at work; give the positions.

    The commands are at 1 to 5, the opening at 6, the reserved copies at 7 to 10, and
    the deposits at 11 to 14.
    """
    store.write(open_(), STREAM)
    store.write([deposit(f"d{n}", "1") for n in range(4)], STREAM)
    drain(connection)
    assert stored(connection) == {COMMANDS: [5], RESERVED: [10]}


def stored(connection):
    """Return the stored positions by category, partition by partition."""
    rows = connection.execute(
        "SELECT category, array_agg(position ORDER BY partition) FROM reservation.positions "
        "GROUP BY category"
    ).fetchall()
    return dict(rows)


@pytest.mark.usefixtures("at_rest")
def test_positions_are_listed(reservation, connection):
    """Positions are listed with all that is stored, as JSON and as a table."""
    connection.execute("UPDATE reservation.leases SET holder = 999")
    listed = reservation("positions", "list", "--json")["positions"]
    assert [(row["category"], row["position"]) for row in listed] == [(COMMANDS, 5), (RESERVED, 10)]
    assert listed[0]["holder"] == {"process": None, "gone": True}
    assert (listed[0]["partition"], listed[0]["partitions"], listed[0]["epoch"]) == (0, 1, 1)
    table = reservation("positions", "list", "bank:account").stdout
    assert "0 of 1" in table
    assert "its process, gone" in table


def test_a_component_that_was_never_run_is_at_the_start(reservation):
    """A component that was never run is listed at the start."""
    assert "No consumer was ever run" in reservation("positions", "list").stdout
    (first, _) = reservation("positions", "list", "bank:account", "--json")["positions"]
    assert (first["position"], first["epoch"], first["updatedAt"]) == (0, 0, None)


@pytest.mark.usefixtures("at_rest")
def test_moving_back_redelivers_and_prints_how_many(reservation, connection, store):
    """Moving back reads messages again, prints how many, and repeats no effect."""
    (change,) = reservation("positions", "set", "bank:account", COMMANDS, "2", "--yes", "--json")[
        "changes"
    ]
    assert change == {
        "consumer": "account",
        "category": COMMANDS,
        "before": [5],
        "after": [2],
        "formerPositions": None,
        "passedOver": 0,
        "redelivered": 3,
        "atLeast": False,
        "recorded": 0,
        "inLog": 3,
        "applied": True,
    }
    assert stored(connection)[COMMANDS] == [2]
    before = event_types(store)
    assert drain(connection).counts == {"duplicate": 3}
    assert event_types(store) == before
    assert broken(connection) == {}


@pytest.mark.usefixtures("at_rest")
def test_moving_forward_skips_messages_and_prints_how_many(reservation, connection, store):
    """Moving forward skips messages and prints how many."""
    store.write([deposit(f"e{n}", "1") for n in range(3)], STREAM)
    done = reservation("positions", "set", "bank:account", COMMANDS, "17", "--yes")
    assert done.stdout.splitlines() == [
        "account in account:command: from 5 to 17",
        "  3 messages passed over",
    ]
    assert drain(connection).messages == 0


def test_a_part_of_a_group_can_be_moved(reservation, connection, store):
    """One partition of a group can be moved, and only its messages are counted."""
    store.write([deposit(f"d{n}", "1") for n in range(3)], STREAM)
    reservation("partitions", "bank:account", "2", "--category", COMMANDS)
    (where,) = connection.execute("SELECT reservation.partition_of(%s, 2)", [STREAM]).fetchone()
    arguments = ["positions", "set", "bank:account", COMMANDS, "3", "--yes", "--json"]
    (other,) = reservation(*arguments, "--partition", str(1 - where))["changes"]
    assert other["passedOver"] == 0
    (change,) = reservation(*arguments, "--partition", str(where))["changes"]
    assert (change["passedOver"], change["after"]) == (3, [3, 3])
    done = reservation(*arguments, "--partition", "2", status=2)
    assert "those of account in account:command are 0 to 1" in done.stderr


@pytest.mark.usefixtures("at_rest")
def test_a_reset_has_everything_read_again(reservation, connection):
    """A reset reads everything again, in one category or in all of the component."""
    reservation("positions", "reset", "bank:account", RESERVED, "--yes")
    assert stored(connection) == {COMMANDS: [5], RESERVED: [0]}
    done = reservation("positions", "reset", "bank:account", "--yes")
    assert "from 5 to 0\n  5 messages will be read again\n" in done.stdout
    assert "  5 of them took effect, as the log shows, and will be duplicates\n" in done.stdout
    assert "accountTransaction: stays at 0" in done.stdout
    assert stored(connection) == {COMMANDS: [0], RESERVED: [0]}
    drain(connection)
    assert broken(connection) == {}


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("arguments", [(), ("--keep",)])
def test_a_reset_without_forget_does_not_count_processed_messages(
    connection, database_url, arguments
):
    """A reset without `--forget` does not count processed messages, of which there may be many."""
    with connection.transaction():
        connection.execute("LOCK TABLE reservation.processed_messages")
        done = invoke_cli(
            "positions",
            "reset",
            "bank:account",
            "--yes",
            *arguments,
            env={"RESERVATION_DATABASE_URL": database_url, "PGOPTIONS": "-c lock_timeout=1s"},
        )
    assert done.returncode == 0, done.stderr
    assert stored(connection) == {COMMANDS: [0], RESERVED: [0]}


@pytest.mark.usefixtures("at_rest")
def test_without_a_terminal_there_is_no_asking(reservation, connection):
    """Without a terminal nothing is moved, and the line says what would have been."""
    done = reservation("positions", "reset", "bank:account", status=2)
    assert "from 5 to 0" in done.stderr
    assert "give --yes to confirm" in done.stderr
    assert stored(connection) == {COMMANDS: [5], RESERVED: [10]}


@pytest.mark.usefixtures("at_rest")
def test_on_a_terminal_it_asks_with_the_number(connection, store, reservation):
    """On a terminal the question names the number of messages, and the answer decides."""
    store.write([deposit("e1", "1"), deposit("e2", "1")], STREAM)
    for answer, status, position in (("n", 1, 5), ("y", 0, 16)):
        move = ("positions", "set", "bank:account", COMMANDS, "16")
        done = reservation(*move, status=status, input=Terminal(answer))
        assert "Set it, and pass 2 messages over? [y/N]" in done.stderr
        assert stored(connection)[COMMANDS] == [position]


INVALID = {
    f"set bank:account {COMMANDS} 999": "999 is beyond the last message, 14, so messages",
    "set bank:account account 5": "does not read 'account'; it reads account:comm",
    "reset bank:account other": "does not read 'other'",
    "import bank:account --category other": "does not read 'other'",
    f"set bank:account {COMMANDS} -1": "No such option",
}


@pytest.mark.usefixtures("at_rest")
def test_invalid_moves_are_refused(reservation, connection):
    """Invalid arguments are refused in one line, and nothing is moved."""
    for arguments, problem in INVALID.items():
        assert problem in reservation("positions", *arguments.split(), status=2).stderr
        assert stored(connection) == {COMMANDS: [5], RESERVED: [10]}, arguments


def test_a_consumer_that_runs_is_named_and_left_alone(connection, reservation, database_url):
    """A running consumer is named by host and process, and its position is not moved."""
    moves = [
        ["positions", "set", "bank:account", COMMANDS, "0", "--yes"],
        ["positions", "reset", "bank:account", "--yes"],
        ["partitions", "bank:account", "4"],
    ]
    lengthen_leases(connection)
    held = "SELECT count(holder) FROM reservation.positions"
    with hosted(account, database_url) as running:
        until(lambda: connection.execute(held).fetchone() == (2,), running)
        for arguments in moves:
            done = reservation(*arguments, status=2)
            assert f":{os.getpid()}; stop it first" in done.stderr, arguments
    for arguments in moves:
        reservation(*arguments)


RUN = """
WITH locked AS (SELECT FROM reservation.leases FOR NO KEY UPDATE)
UPDATE reservation.moves SET position = position + (SELECT least(count(*), 1) FROM locked)
"""


@pytest.mark.usefixtures("at_rest")
def test_nothing_is_moved_if_a_consumer_ran_since_the_question(connection, reservation):
    """What was asked about is not what would happen."""
    answer = Terminal("y", lambda: connection.execute(RUN))
    done = reservation("positions", "set", "bank:account", COMMANDS, "0", status=2, input=answer)
    assert "was run in the meantime; nothing was changed" in done.stderr
    assert stored(connection)[COMMANDS] == [6]


@pytest.mark.usefixtures("at_rest")
def test_the_command_waits_for_a_commit_in_progress(connection, reservation, database_url):
    """It may move the position."""
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'"
    )
    move = ("positions", "set", "bank:account", COMMANDS, "0", "--yes")
    with psycopg.connect(database_url) as paused, ThreadPoolExecutor(1) as pool:
        paused.execute(RUN)
        done = pool.submit(reservation, *move, status=2)
        until(lambda: done.done() or connection.execute(waits).fetchone() == (1,))
        paused.commit()
        assert "was run in the meantime" in done.result(PATIENCE).stderr
    assert stored(connection)[COMMANDS] == [6]


@pytest.mark.usefixtures("at_rest")
def test_a_reset_forgets_what_was_carried(reservation, connection):
    """A reset forgets what was carried over between partitions, so that no message is skipped."""
    reservation("partitions", "bank:account", "2", "--category", COMMANDS)
    connection.execute(
        "UPDATE reservation.moves SET position = 1 WHERE category = %s AND partition = "
        "1 - reservation.partition_of(%s, 2)",
        [COMMANDS, STREAM],
    )
    changed = reservation("partitions", "bank:account", "3", "--category", COMMANDS, "--json")
    assert sorted(changed["changes"][0]["formerPositions"]) == [1, 5]
    done = reservation(
        "positions", "set", "bank:account", COMMANDS, "0", "--partition", "1", "--yes", status=2
    )
    assert "past 5, and then move all of its partitions" in done.stderr
    (change,) = reservation("positions", "reset", "bank:account", COMMANDS, "--yes", "--json")[
        "changes"
    ]
    assert change["redelivered"] == 5
    assert drain(connection).messages == 5


# Eventide's positions


def theirs(connection, stream_name, *positions, data='{"position": %s}'):
    """Store positions as Eventide does."""
    for position in positions:
        connection.execute(
            "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Updated', %s)",
            [stream_name, data.replace("%s", str(position))],
        )


def test_the_next_message_is_the_one_after_the_last_that_eventide_handled(
    reservation, connection, store
):
    """The consumer continues behind Eventide's last position and skips nothing."""
    store.write([deposit(f"d{n}", "1") for n in range(4)], STREAM)
    theirs(connection, "account:command+position", 1, 3)
    dry = reservation("positions", "import", "bank:account", "--dry-run", "--json")
    (change,) = dry["changes"]
    assert (change["category"], change["before"], change["after"]) == (COMMANDS, [0], [3])
    assert (change["passedOver"], change["applied"]) == (3, False)
    assert stored(connection) == {}
    done = reservation("positions", "import", "bank:account")
    assert "account:command+position: 3" in done.stderr
    assert stored(connection) == {COMMANDS: [3]}
    assert drain(connection).counts == {"reserved": 1, "handled": 1}


def test_of_a_group_of_eventide_the_lowest_position_is_taken(reservation, connection, store):
    """Of a group of Eventide's consumers the lowest position counts."""
    store.write([deposit(f"d{n}", "1") for n in range(4)], STREAM)
    theirs(connection, "account:command+position-a", 4)
    theirs(connection, "account:command+position-b", 2)
    arguments = ["positions", "import", "bank:account", "--json", "--identifier", "a"]
    (change,) = reservation(*arguments, "--identifier", "b")["changes"]
    assert change["after"] == [2]
    connection.execute("DELETE FROM reservation.groups")
    connection.execute("DELETE FROM reservation.leases")
    (change,) = reservation(*arguments, "--identifier", "c")["changes"]
    assert change["after"] == [0]  # of c nothing is known


@pytest.mark.usefixtures("at_rest")
def test_an_import_keeps_the_position_of_a_consumer_that_has_run(reservation, connection):
    """Only `--yes` replaces the position of a consumer that has run."""
    theirs(connection, "account:command+position", 4)
    done = reservation("positions", "import", "bank:account", status=2)
    assert "is at 5 already, and account:command+position holds 4; give --yes" in done.stderr
    assert stored(connection)[COMMANDS] == [5]
    reservation("positions", "import", "bank:account", "--yes")
    assert stored(connection) == {COMMANDS: [4], RESERVED: [10]}
    assert "stays at 4" in reservation("positions", "import", "bank:account").stdout


@pytest.mark.parametrize("data", ["{}", '{"position": "x"}', '{"position": -1}', "[1]"])
def test_an_invalid_position_of_eventide_is_refused(reservation, connection, data):
    """An invalid position of Eventide is refused with its stream and without its data."""
    theirs(connection, "account:command+position", 1, data=data)
    done = reservation("positions", "import", "bank:account", status=2)
    assert "account:command+position" in done.stderr
    assert "holds no position" in done.stderr


def test_where_eventide_stored_nothing_the_streams_are_named(reservation):
    """If Eventide stored no position, the streams that were searched are named."""
    done = reservation("positions", "import", "bank:account", "--identifier", "x", status=2)
    assert "account:command+position-x, accountTransaction:position-x" in done.stderr


def test_the_partitions_of_a_component_are_changed_at_once(reservation, connection, store):
    """The number of partitions is changed in all categories or one; no message is read twice."""
    store.write([open_(), deposit()], STREAM)
    drain(connection)
    before = stored(connection)
    done = reservation("partitions", "bank:account", "3")
    assert "in account:command: from 2 to 2 in 3 partitions" in done.stdout
    assert stored(connection) == {name: position * 3 for name, position in before.items()}
    reservation("partitions", "bank:account", "1", "--category", RESERVED)
    assert len(stored(connection)[RESERVED]) == 1
    assert "stays at 2 in 3" in reservation("partitions", "bank:account", "3").stdout
    assert drain(connection).messages == 0
