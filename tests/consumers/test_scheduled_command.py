"""What the command line shows of scheduled messages, and what it cancels and prunes."""

import json
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from reservation import Cancellation
from tests.apps.unpaid import SENT, Expire, Pay, Place
from tests.store.builders import write_due
from tests.store.test_scheduling import PAST, refusing, rows
from tests.support.commands import invoke_cli

ORDER = f"{SENT}-1"


@pytest.fixture
def cli(database_url):
    """Give a function that runs a command to its end."""

    def run(*arguments):
        env = {"RESERVATION_DATABASE_URL": database_url, "COLUMNS": "300"}
        return invoke_cli(*arguments, env=env)

    return run


def test_the_command_lists_what_is_scheduled(connection, store, cli):
    """The list shows each message with its time, its state and why the log refuses it."""
    assert cli("scheduled", "list").stdout == "Nothing is scheduled.\n"
    later = store.write(Place("1"), ORDER, after="1h")
    due = store.write(Pay("2"), "payment:command-2", at=PAST)
    gone = store.write(Expire("3"), ORDER, after="2h")
    store.cancel(gone)
    refused = store.write(Place("4"), ORDER, at=PAST)
    with refusing(connection, "true"):
        connection.execute(
            "UPDATE reservation.scheduled SET due_at = 'tomorrow' WHERE id = %s", [due]
        )
        write_due(connection)
    connection.execute("UPDATE reservation.scheduled SET due_at = %s WHERE id = %s", [PAST, due])

    listed = json.loads(cli("scheduled", "list", "--json").stdout)["scheduled"]
    assert [(one["id"], one["state"]) for one in listed] == [
        (str(due), "overdue"),
        (str(refused), "refused"),
        (str(later), "scheduled"),
    ]
    assert (listed[1]["attempts"], listed[1]["error"]) == (1, "not this one")
    every = json.loads(cli("scheduled", "list", "--all", "--json").stdout)["scheduled"]
    assert every[-1]["state"] == "cancelled"
    assert every[-1]["cancelledAt"] is not None
    table = cli("scheduled", "list", "--category", "order:command").stdout
    assert str(later) in table
    assert "not this one" in table
    assert str(due) not in table
    assert "more than these 1;" in cli("scheduled", "list", "--limit", "1").stderr


def test_the_command_cancels_and_says_what_it_could_not(connection, store, cli):
    """What was written or is unknown is named, with the exit status 1."""
    first = store.write(Place("1"), ORDER, after="1h")
    written = store.write(Place("2"), ORDER, at=PAST)
    write_due(connection)
    done = cli("scheduled", "cancel", str(first))
    assert (done.returncode, done.stdout) == (0, f"{first}: cancelled\n")
    done = cli("scheduled", "cancel", str(written), str(uuid.UUID(int=7)), "--json")
    assert done.returncode == 1
    assert [one["outcome"] for one in json.loads(done.stdout)["changed"]] == ["written", "unknown"]
    assert f"Not cancelled: {written}, {uuid.UUID(int=7)}" in done.stderr


def test_the_status_shows_what_is_due_next_and_what_is_overdue(connection, store, cli):
    """A line says how much is scheduled, and another one what is overdue, and why."""
    assert "scheduled" not in cli("status").stdout.lower()
    store.write(Place("1"), ORDER, at=datetime(2100, 1, 2, tzinfo=UTC))
    shown = cli("status").stdout
    assert "Scheduled: 1 message of the store; the next is due at 2100-01-0" in shown
    assert "Overdue" not in shown
    ago = datetime.now(UTC) - timedelta(minutes=3)
    store.write(Place("2"), ORDER, at=ago)
    with refusing(connection, "true"):
        write_due(connection)
    shown = cli("status").stdout
    assert "Overdue: 1 of them, the oldest for 3 min" in shown
    assert "the log refuses 1" in shown
    assert json.loads(cli("status", "--json").stdout)["scheduled"] == {
        "messages": 2,
        "nextAt": "2100-01-02T00:00:00+00:00",
        "overdue": 1,
        "overdueSince": ago.isoformat(),
        "refused": 1,
        "dead": 0,
    }


def test_cancelled_messages_are_pruned_on_request(connection, store, cli):
    """Only what was cancelled long enough ago is removed, and only on request."""
    for _ in range(3):
        store.cancel(store.write(Place("1"), ORDER, after="1h"))
    kept = store.write(Place("2"), ORDER, after="1h")
    connection.execute(
        "UPDATE reservation.scheduled SET cancelled_at = now() - interval '91 days' "
        "WHERE cancelled_at IS NOT NULL AND number > 1"
    )
    assert "scheduled" not in cli("prune", "--apply").stdout
    older = ("prune", "--cancelled-older-than", "90d")
    assert "scheduled messages of the store: 2 messages would be removed" in cli(*older).stdout
    assert len(rows(connection)) == 4
    assert "2 messages removed" in cli(*older, "--apply", "--batch-size", "1").stdout
    assert len(rows(connection)) == 2
    assert store.cancel(kept) is Cancellation.CANCELLED
