"""Removing what the store keeps of a component that is not run any more."""

import json
from dataclasses import dataclass
from datetime import timedelta

import pytest
from psycopg import conninfo

from bank import account
from reservation import Component
from reservation.strategies import Processed, Revisions
from tests.apps.bank import drain
from tests.support.commands import invoke_cli
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS, deposit, open_

# Whatever has a consumer or a component's name in it, counted.
ROWS = """
SELECT table_name FROM information_schema.columns
WHERE table_schema = 'reservation' AND column_name = 'consumer'
"""


@dataclass
class Tick:
    """A message that is handled once."""

    clock_id: str
    number: int


class Ticked(Tick):
    """An event."""


class Seen(Tick):
    """An event of another component, from which nothing follows."""


class Told(Tick):
    """An event of another component that carries a revision."""


@dataclass
class Clock:
    """What a clock shows."""

    number: int = 0


def clock():
    """Return a component with each kind of record."""
    made = Component("clock", entity=Clock, id="clock_id", snapshot_every=1)
    made.handle(Tick, once=Processed(keep=timedelta(days=3)))(
        lambda command, clock, context: Ticked(command.clock_id, command.number)
    )

    @made.project(Ticked)
    def ticked(clock, event):
        clock.number = event.number

    made.handle(Seen, category="sky", id="clock_id")(lambda *_: None)
    made.handle(Told, category="sky", id="clock_id", once=Revisions("number", source=None))(
        lambda *_: None
    )
    return made


@pytest.fixture
def retired(store, connection):
    """Let two components have run, of which nobody runs any more."""
    store.write([Tick("1", n) for n in range(3)], "clock:command-1")
    store.write([Seen("1", 1), Told("1", 1)], "sky-1")
    drain(connection, clock())
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    return connection


def left(connection, consumer):
    """Return the tables that still have rows of a consumer."""
    tables = [name for (name,) in connection.execute(ROWS)]
    assert {"leases", "moves", "groups", "members", "dead_letters", "passes"} <= {*tables}
    return {
        name
        for name in tables
        if connection.execute(
            f"SELECT FROM reservation.{name} WHERE consumer = %s LIMIT 1", [consumer]
        ).fetchall()
    }


def days(connection):
    """Return the partitions of processed messages."""
    query = "SELECT count(*) FROM pg_class WHERE relname LIKE 'processed\\_%\\_until\\_%'"
    return connection.execute(query).fetchone()[0]


@pytest.fixture
def retire(database_url):
    """Give a function that runs the command, and returns its status and output."""

    def run(*arguments, command="retire", url=database_url):
        return invoke_cli(command, *arguments, env={"RESERVATION_DATABASE_URL": url})

    return run


def test_all_rows_of_a_component_go_and_no_others(retired, store, retire):
    """A dry run says what would go; --apply removes it, of this component alone."""
    connection = retired
    mine, others = left(connection, "clock"), left(connection, "account")
    assert {"groups", "positions", "passes", "revisions", "processed_handlers"} <= mine
    assert days(connection) > 0
    messages = connection.execute("SELECT count(*) FROM message_store.messages").fetchone()
    said = json.loads(retire("clock", "--json").stdout)
    assert (said["component"], said["categories"]) == ("clock", ["clock:command", "sky"])
    assert said["applied"] is False
    removed = said["removed"]
    assert (removed["positions"], removed["processed messages"], removed["snapshots"]) == (2, 3, 1)
    assert left(connection, "clock") == mine
    done = retire("clock", "--apply")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "clock has read clock:command, sky"
    assert "  passes: 2" in done.stdout.splitlines()
    assert left(connection, "clock") == set()
    assert left(connection, "account") == others
    assert days(connection) == 0
    rows = connection.execute("SELECT FROM reservation.snapshots WHERE stream_name LIKE 'clock%'")
    assert rows.fetchall() == []
    status = json.loads(retire("--json", command="status").stdout)
    assert {one["consumer"] for one in status["partitions"]} == {"account"}
    assert connection.execute("SELECT count(*) FROM message_store.messages").fetchone() == messages
    again = retire("clock")
    assert again.returncode == 2
    assert "keeps nothing of a component 'clock'; it keeps rows of account" in again.stderr
    drain(connection, clock())  # it may be started again
    assert [event.type for event in store.read_stream("clock-1")] == ["Ticked"] * 3


def test_a_category_goes_without_what_belongs_to_the_component(retired, retire):
    """With a category named, snapshots and the other categories stay."""
    found = json.loads(retire("clock", "--category", "sky", "--apply", "--json").stdout)
    assert {name for name, count in found["removed"].items() if count} == {
        *("positions", "groups", "passes", "revisions")
    }
    assert left(retired, "clock") == {
        *("groups", "leases", "moves", "positions", "processed_handlers")
    }
    refused = retire("clock", "--category", "sky", "--apply")
    assert refused.returncode == 2
    assert "nothing of the component clock in 'sky'; it has read" in refused.stderr


def test_open_dead_letters_are_not_removed_unasked(retired, retire):
    """What was never handled is not forgotten without a word."""
    retired.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id, "
        "stream_name, type, state, reason, digest, attempts, process) VALUES ('clock', 'sky', 1, "
        "gen_random_uuid(), 'sky-1', 'Seen', 'dead', 'ValueError', 'd', 3, 'p')"
    )
    refused = retire("clock", "--apply")
    assert refused.returncode == 2
    assert "1 open dead letters, " in refused.stderr
    assert "--with-open-letters" in refused.stderr
    assert "dead_letters" in left(retired, "clock")
    found = json.loads(retire("clock", "--apply", "--with-open-letters", "--json").stdout)
    assert found["removed"]["dead letters"] == 1


def test_a_component_that_runs_is_refused(connection, database_url, retire):
    """A living member is named, and nothing is removed."""
    with hosted(account, database_url) as running:
        until(lambda: "members" in left(connection, "account"), running)
        refused = retire("account", "--apply")
        assert refused.returncode == 2
        assert "The component account is running in " in refused.stderr
        assert "; stop it first" in refused.stderr
    assert "positions" in left(connection, "account")


def test_only_the_owner_may_retire(retired, database_url, retire):
    """A consumer's rights are not enough."""
    assert retire("grants", "consumer", "retiring_consumer", command="store").returncode == 0
    try:
        options = "-c role=retiring_consumer"
        refused = retire(
            "clock", "--apply", url=conninfo.make_conninfo(database_url, options=options)
        )
        assert refused.returncode == 2
        assert "permission denied" in refused.stderr
    finally:
        retired.execute("DROP OWNED BY retiring_consumer")
        retired.execute("DROP ROLE retiring_consumer")
