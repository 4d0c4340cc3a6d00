"""What people have settled: corrected commands, and findings that were accepted."""

import json

import pyarrow.parquet as pq
import pytest
from psycopg.types.json import Jsonb

from reservation import Write
from tests.apps.bank import RESERVED, drain
from tests.spark.builders import insert
from tests.support.controls import COMMANDS, TIME, deposit, open_
from tests.support.stored_positions import store_position

BAD = {"depositId": "d1", "accountId": "123", "amount": "a lot", "time": TIME.isoformat()}
GOOD = BAD | {"amount": 20}


@pytest.fixture
def send(connection):
    """Give a function that writes deposits as a foreign client does, and has them handled."""

    def write(*deposits):
        for data in deposits:
            connection.execute(
                "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, 'Deposit', %s)",
                [COMMANDS, Jsonb(data)],
            )
        drain(connection)

    return write


def test_a_corrected_command_is_neither_a_conflict_nor_a_second_message(
    connection, store, send, command, reconcile, tmp_path
):
    """Nor is what the sender sent instead of it, although the consumer took that for a conflict."""
    state = ("--state", tmp_path / "state")
    store.write(open_(), COMMANDS)
    send(BAD)
    send(GOOD)
    assert reconcile(*state).found == ["conflict"]

    letters = json.loads(command("dead-letters", "list", "--json").stdout)["deadLetters"]
    at, other = sorted(one["globalPosition"] for one in letters)
    for words in (
        ["retry", str(at), "--data", "-", "--reason", "a slip"],
        ["discard", str(other), "--yes"],
    ):
        done = command("dead-letters", *words, input=json.dumps(GOOD))
        assert done.returncode == 0, done.stderr
    send(BAD, GOOD)
    counted = {"commands": 4, "keys": 1, "duplicates": 3, "reserved": 1, "corrected": 1}
    for found in (reconcile(*state), reconcile()):
        assert (found.status, found.commands) == (0, counted)
        assert found.report["effects"][0]["handled"] == 1
    send(BAD | {"amount": 30})
    assert reconcile(*state).found == ["conflict"]


def test_an_accepted_finding_is_shown_apart_and_a_new_one_counts(
    connection, store, command, reconcile, tmp_path
):
    """The exit status is that of what nobody has accepted, until it is reopened."""
    store.write([open_(), deposit(), deposit(amount="99")], COMMANDS)
    drain(connection)
    (sample,) = reconcile().report["samples"]
    ((message, at, id_),) = connection.execute(
        "SELECT id::text, global_position, "
        "'conflict-' || global_position || '-' || left(encode(sha256("
        "convert_to('account' || E'\\n' || id, 'UTF8')), 'hex'), 8) "
        "FROM message_store.messages WHERE data->>'amount' = '99'"
    ).fetchall()
    assert (sample["messageId"], sample["globalPosition"], sample["id"]) == (message, at, id_)
    assert (sample["streamName"], sample["position"]) == (COMMANDS, 2)
    assert (sample["keyStream"], sample["type"]) == (f"{RESERVED}-123+d1", "Deposit")
    categories = (sample["commandCategory"], sample["reservationCategory"])
    assert categories == ("account:command", RESERVED)
    done = command("findings", "accept", id_, "--reason", " looked at ")
    assert (done.returncode, done.stdout) == (0, f"Accepted: {id_}.\n")

    html = tmp_path / "report.html"
    green = command("reconcile", "bank:account", "--html", str(html))
    assert (green.returncode, green.stderr) == (0, "")
    assert id_ in green.stdout
    assert "looked at" in green.stdout
    assert "All findings were accepted." in html.read_text()

    store.write(deposit(amount="98"), COMMANDS)
    drain(connection)
    found = reconcile("--findings", tmp_path / "findings", "--state", tmp_path / "state")
    assert (found.status, found.found) == (1, ["conflict"])
    assert [one["count"] for one in found.report["thresholds"]] == [1]
    (accepted,) = found.report["accepted"]
    ((user,),) = connection.execute("SELECT session_user::text").fetchall()
    assert accepted == sample | {
        "reason": "looked at",
        "acceptedBy": user,
        "acceptedAt": accepted["acceptedAt"],
    }
    rows = {row["id"]: row for row in pq.read_table(tmp_path / "findings").to_pylist()}
    new = found.report["samples"][0]["id"]
    assert {one: row["is_accepted"] for one, row in rows.items()} == {id_: True, new: False}

    assert command("findings", "reopen", id_).returncode == 0
    found = reconcile()
    assert (found.report["accepted"], found.found) == ([], ["conflict"] * 2)


def test_a_stream_with_several_messages_too_many_counts_until_all_of_them_are_accepted(
    connection, store, command, reconcile
):
    """It is one finding in the counts, and a row for each message."""
    store.write([open_(), deposit()], COMMANDS)
    drain(connection)
    copy = Write(deposit(), f"{RESERVED}-123+d1")
    store.write_batch([copy, copy])
    found = reconcile()
    assert (found.found, found.commands["multiple"]) == (["multiple"] * 2, 1)
    first, second = (one["id"] for one in found.report["samples"])
    for id_, status in ((first, 1), (second, 0)):
        assert command("findings", "accept", id_, "--reason", "looked at").returncode == 0
        assert reconcile().status == status


def test_a_discarded_letter_hides_no_reservation_that_was_lost(connection, reconcile):
    """The key is missing where a later command of it was read; without one it is dead."""
    data = {"depositId": "d1", "accountId": "123", "amount": 1}
    first, second = (insert(connection, COMMANDS, "Deposit", data) for _ in range(2))
    store_position(connection, "account", "account:command", first)
    connection.execute(
        "INSERT INTO reservation.dead_letters (consumer, category, global_position, message_id, "
        "stream_name, type, state, reason, process) SELECT 'account', 'account:command', "
        "global_position, id, stream_name, type, 'discarded', 'handler', 'p' "
        "FROM message_store.messages WHERE global_position = %s",
        [first],
    )
    counted = {"commands": 2, "keys": 1, "duplicates": 1}
    unread = reconcile()
    assert (unread.findings, unread.commands) == ([], counted | {"dead": 1})
    store_position(connection, "account", "account:command", second)
    found = reconcile()
    assert (found.findings, found.commands) == ([("missing", second)], counted | {"missing": 1})
