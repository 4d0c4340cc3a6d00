"""The message that a consumer's position stands at was deleted, and the store is the same one."""

import json

import pytest

from tests.apps.bank import drain
from tests.spark.builders import Reconciled
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import EXAMPLES

STANDS_AT = """
    SELECT p.position FROM reservation.positions p
    WHERE p.consumer = 'account' AND p.category = %s"""
DELETE = "DELETE FROM message_store.messages WHERE global_position = %s"


@pytest.fixture
def stood_at(connection, store):
    """Give a function that returns where the consumer of a category stands, having read it all."""
    store.write([open_(), deposit("d1"), deposit("d2"), deposit("d1")], COMMANDS)
    drain(connection)

    def position(category):
        ((found,),) = connection.execute(STANDS_AT, [category]).fetchall()
        return found

    return position


@pytest.mark.parametrize(
    ("category", "beside"),
    [
        # A reissue: nothing else is missing because of it.
        ("account:command", []),
        ("accountTransaction", ["missing", "without-cause"]),
    ],
)
def test_the_deleted_message_that_a_consumer_stands_at_is_missing(
    reconcile, connection, stood_at, category, beside, tmp_path
):
    """The rest is judged as ever, with a state and without, before and after the deletion."""
    state = ["--state", tmp_path / "state"]
    assert reconcile(*state).status == 0
    position = stood_at(category)
    ((message_id,),) = connection.execute(
        "SELECT id::text FROM message_store.messages WHERE global_position = %s", [position]
    )
    connection.execute(DELETE, [position])
    found = reconcile()
    assert (found.status, found.error) == (1, "")
    (row,) = [one for one in found.report["samples"] if one["globalPosition"] == position]
    assert (row["finding"], row["messageId"], row["reservationCategory"]) == (
        "missing",
        message_id,
        category,
    )
    unknown = ("streamName", "position", "type", "time", "keyStream")
    assert {row[name] for name in unknown} == {None}
    assert sorted([*beside, "missing"]) == sorted(found.found)
    assert found.report["deleted"] == 1
    (threshold,) = [one for one in found.report["thresholds"] if one["name"] == "missing"]
    assert threshold["count"] == found.found.count("missing")
    anew = ["--state", tmp_path / "anew"]
    assert [reconcile(*anew), reconcile(*anew)] == [found, found]
    before = reconcile(*state)  # which has read the message
    assert ("missing", position) in before.findings
    assert before.report["deleted"] == 1


def test_every_output_says_what_was_deleted(command, connection, stood_at, tmp_path):
    """The terminal, the page and JUnit say it in words; it can be accepted like any other."""
    connection.execute(DELETE, [stood_at("account:command")])
    page, junit = tmp_path / "report.html", tmp_path / "junit.xml"
    app = ("bank:account", "--app-dir", str(EXAMPLES))
    done = command("reconcile", *app, "--html", str(page), "--junit", str(junit))
    said = "deleted; a consumer's position stands at it"
    assert done.returncode == 1
    assert "The message that a consumer's position stands at was deleted" in done.stdout
    assert said.split(";")[0] in done.stdout
    assert said in page.read_text().replace("&#39;", "'")
    assert said in junit.read_text()
    (id_,) = [word for word in done.stdout.split() if word.startswith("missing-")]
    assert command("findings", "accept", id_, "--reason", "a clean-up").returncode == 0
    after = Reconciled(command("reconcile", *app, "--json"))
    assert (after.status, after.report["samples"]) == (0, [])
    assert [one["type"] for one in after.report["accepted"]] == [None]


@pytest.mark.parametrize("replaced", ["another message is there", "nothing else is left"])
def test_a_replaced_store_is_none_with_a_deleted_message(reconcile, connection, stood_at, replaced):
    """Without another message that proves the store to be the same, the run ends."""
    position = stood_at("account:command")
    if replaced == "another message is there":
        connection.execute(
            "UPDATE message_store.messages SET id = gen_random_uuid() WHERE global_position = %s",
            [position],
        )
    else:
        connection.execute("UPDATE message_store.messages SET id = gen_random_uuid()")
        connection.execute(DELETE, [position])
    found = reconcile()
    assert found.status == 2
    assert "was cleared, restored or replaced" in found.error
    assert json.dumps(found.report) == "{}"
