"""The command line on dead letters: what it lists and shows, and which letters it changes."""

import io
import json
from datetime import timedelta

import pytest

from cli.main import main
from tests.apps.bank import address
from tests.consumers.builders import TILLS, case, dead_letters, decide, write_raw

OLD = timedelta(days=30)


def plant(connection, position, **columns):
    """Write a letter of the command Odd, whose names hold control characters."""
    values = {
        "consumer": "till",
        "category": TILLS,
        "global_position": position,
        "message_id": "0190163d-8694-739b-aea5-966c26f8ad91",
        "stream_name": f"{TILLS}-1\x1b[31m",
        "type": "Odd\x07",
        "entity": "till-1",
        "state": "dead",
        "reason": "unknown_type",
        "error": "Nothing handles Odd",
        "attempts": 1,
        "process": "host:1",
    } | columns
    if values["state"] == "waiting":
        values["next_attempt_at"] = "2999-01-01"
    names = ", ".join(values)
    marks = ", ".join(f"%({name})s" for name in values)
    connection.execute(f"INSERT INTO reservation.dead_letters ({names}) VALUES ({marks})", values)


def plant_parked(connection, position, **columns):
    plant(connection, position, state="parked", reason="parked", error=None, **columns)


def in_state(connection, state):
    rows = connection.execute(
        "SELECT global_position FROM reservation.dead_letters WHERE state = %s ORDER BY 1", [state]
    ).fetchall()
    return [position for (position,) in rows]


def positions(listed):
    return sorted(one["globalPosition"] for one in listed)


def test_the_list_is_for_people_and_for_machines(connection):
    """The list has open letters, all with an option, and escapes stored text for a terminal."""
    assert "no dead letters" in dead_letters(connection, "list")
    plant(connection, 1)
    plant_parked(connection, 2)
    plant(connection, 3, state="handled")
    shown = dead_letters(connection, "list")
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "Odd\\x07" in shown.replace("\n", "")
    listed = decide(connection, "list")["deadLetters"]
    assert [(row["globalPosition"], row["state"], row["behind"]) for row in listed] == [
        (1, "dead", None),
        (2, "parked", 1),
    ]
    assert positions(decide(connection, "list", "--all")["deadLetters"]) == [1, 2, 3]


@pytest.mark.parametrize("given", ["--consumer=other", "--category=other", "--entity=till-2"])
def test_the_list_is_narrowed(connection, given):
    """Only letters of a consumer, a category or an entity are listed."""
    plant(connection, 1)
    assert "no dead letters" in dead_letters(connection, "list", given)


def test_data_is_shown_only_when_it_is_asked_for(connection):
    """A message's metadata is always shown, its data only on request."""
    at = write_raw(connection, f"{TILLS}-1", "Odd", {"a": "secret\x1b"})
    connection.execute(
        'UPDATE message_store.messages SET metadata = \'{"properties": {"trace": "t1"}}\''
    )
    ((id_,),) = connection.execute("SELECT id FROM message_store.messages").fetchall()
    plant(connection, at, message_id=id_)
    for arguments in ([], ["--json"]):
        shown = dead_letters(connection, "show", str(at), *arguments)
        assert "secret" not in shown
        assert "t1" in shown
        shown = dead_letters(connection, "show", str(at), "--data", *arguments)
        assert "secret" in shown
        assert "\x1b" not in shown
    assert json.loads(shown)["message"]["data"] == {"a": "secret\x1b"}
    plant(connection, 99)
    assert "no longer in the store" in dead_letters(connection, "show", "99")


def test_a_position_with_letters_of_two_consumers_is_ambiguous(connection):
    """The error names both consumers, and an option chooses one."""
    plant(connection, 1)
    plant(connection, 1, consumer="other")
    error = dead_letters(connection, "retry", "1", status=2)
    assert all(name in error for name in ("till of till:command", "other of till:command"))
    decide(connection, "retry", "1", "--consumer", "other")
    states = connection.execute(
        "SELECT consumer, state FROM reservation.dead_letters ORDER BY consumer"
    ).fetchall()
    assert states == [("other", "waiting"), ("till", "dead")]


def test_what_cannot_be_done_is_refused(connection):
    """A refusal says what is wrong, and nothing is changed."""
    plant(connection, 1)
    plant_parked(connection, 2)
    for arguments, why in [
        (["retry", "2"], "parked behind global position 1"),
        (["retry", "7"], "no dead letter at global position 7"),
        (["retry"], "Give global positions"),
        (["retry", "1", "--all"], "Give global positions"),
        (["retry", "--entity", "till-9"], "has no dead letter"),
        (["discard", "1"], "--yes"),
        (["discard"], "Give global positions"),
        (["discard", "1", "--type", "Odd"], "not both"),
        (["discard", "--all", "--yes"], "Give --reason"),
        (["discard", "--all", "--reason", "old"], "global position 1"),
    ]:
        assert why in dead_letters(connection, *arguments, status=2)
        states = (in_state(connection, "dead"), in_state(connection, "parked"))
        assert states == ([1], [2]), arguments


def test_a_retry_prints_what_happens_next(connection):
    """A retry begins the attempts anew, and says what the consumers will do."""
    plant(connection, 1, attempts=3)
    plant_parked(connection, 2)
    printed = dead_letters(connection, "retry", "--entity", "till-1")
    assert "1 dead letter, and 1 parked behind" in printed
    assert "within a second or two" in printed
    assert "Nothing was changed" in dead_letters(connection, "retry", "1")
    rows = connection.execute("SELECT state, attempts FROM reservation.dead_letters").fetchall()
    assert sorted(rows) == [("parked", 1), ("waiting", 0)]


def test_a_letter_that_is_parked_behind_nothing_is_no_persons(connection):
    """The consumer handles it by itself."""
    plant(connection, 1, state="handled")
    plant_parked(connection, 2)
    assert "Nothing was changed" in dead_letters(connection, "retry", "--all")
    assert "is handled without a retry" in dead_letters(connection, "retry", "2", status=2)
    assert "no dead letters" in dead_letters(connection, "list")


def test_the_list_shows_what_needs_a_person(connection):
    """Dead letters and what is parked behind them; other states on request."""
    plant(connection, 1)
    plant_parked(connection, 2)
    plant(connection, 3, entity="till-2", state="waiting")
    plant_parked(connection, 4, entity="till-2")
    plant(connection, 5, entity="till-3", state="handled")
    assert positions(decide(connection, "list")["deadLetters"]) == [1, 2]
    for states, expected in [(["waiting"], [3]), (["parked", "handled"], [2, 4, 5])]:
        given = [word for state in states for word in ("--state", state)]
        assert positions(decide(connection, "list", *given)["deadLetters"]) == expected
    assert "no message in the state discarded" in dead_letters(
        connection, "list", "--state", "discarded"
    )


def test_a_discard_lets_what_is_parked_be_handled(connection):
    """The letter behind is the first of its entity; a second discard is refused."""
    plant(connection, 1)
    plant_parked(connection, 2)
    changed = decide(connection, "discard", "1", "--yes")
    assert (changed["changed"][0]["state"], changed["parked"]) == ("discarded", 1)
    assert (in_state(connection, "discarded"), in_state(connection, "parked")) == ([1], [2])
    assert "discarded already" in dead_letters(connection, "discard", "1", "--yes", status=2)


class Terminal(io.StringIO):
    """A terminal on which somebody answers, after something else has happened."""

    def __init__(self, answer, meanwhile=lambda: None):
        super().__init__(answer)
        self._meanwhile = meanwhile

    def isatty(self):
        return True

    def readline(self, *arguments):
        self._meanwhile()
        return super().readline(*arguments)


@pytest.mark.parametrize(("answer", "discarded"), [("n\n", []), ("y\n", [1])])
def test_on_a_terminal_a_discard_asks(connection, monkeypatch, answer, discarded):
    """It discards what is confirmed, and no letter that was written since it asked."""
    plant(connection, 1)
    terminal = Terminal(answer, lambda: plant(connection, 2, entity="till-2"))
    monkeypatch.setattr("sys.stdin", terminal)
    named = ["discard", "--all", "--reason", "tests", "--database-url", address(connection)]
    with pytest.raises(SystemExit):
        main(["dead-letters", *named])
    assert in_state(connection, "discarded") == discarded


def test_what_was_done_is_kept_with_its_reason(connection):
    """`show` prints who retried and discarded, when and why, the last one first in JSON."""
    plant(connection, 1)
    decide(connection, "retry", "1", "--reason", "the provider\x1b[31m is back")
    decide(connection, "discard", "1", "--yes")
    shown = decide(connection, "show", "1")["decisions"]
    assert [(one["decision"], one["formerState"], one["reason"]) for one in shown] == [
        ("discard", "waiting", None),
        ("retry", "dead", "the provider\x1b[31m is back"),
    ]
    user = connection.info.user
    assert {(one["decidedBy"], one["onBehalfOf"]) for one in shown} == {(user, None)}
    text = dead_letters(connection, "show", "1")
    assert f"retry, by {user} at " in text
    assert "\x1b" not in text
    dead_letters(connection, "discard", "1", "--yes", status=2)
    assert len(decide(connection, "show", "1")["decisions"]) == 2


def plant_many(connection):
    """Store dead letters of two types and two faults, two of them old, and a conflict."""
    plant(connection, 1, type="Charge", digest="aa", reason="handler")
    plant_parked(connection, 2, type="Charge")
    plant(connection, 3, entity="till-2", type="Charge", digest="bb", reason="handler")
    plant(connection, 4, entity="till-3", type="Ping", digest="aa", reason="handler")
    plant(connection, 5, entity=None, type="Charge", reason="conflict")
    plant(connection, 6, entity="till-4", type="Ping", digest="cc", category="till")
    plant(connection, 7, entity="till-5", type="Ping", state="handled")
    connection.execute(
        "UPDATE reservation.dead_letters SET created_at = now() - %s"
        " WHERE global_position IN (3, 4)",
        [OLD],
    )


CHOICES = [
    (["--type", "Charge"], [1, 3], [1, 3, 5]),
    (["--digest", "aa"], [1, 4], [1, 4]),
    (["--older-than", "7d"], [3, 4], [3, 4]),
    (["--category", "till"], [6], [6]),
    (["--consumer", "till"], [1, 3, 4, 6], [1, 3, 4, 5, 6]),
    (["--entity", "till-1"], [1], [1]),
    (["--type", "Ping", "--older-than", "7d", "--category", TILLS], [4], [4]),
    (["--all"], [1, 3, 4, 6], [1, 3, 4, 5, 6]),
    (["--type", "Other"], [], []),
]


def test_letters_are_decided_on_by_what_they_have_in_common(connection):
    """All options must match; a retry leaves conflicts out, and neither takes what is parked."""
    tables = "reservation.dead_letters", "reservation.letter_decisions"
    for given, retried, discarded in CHOICES:
        for table in tables:
            connection.execute(f"DELETE FROM {table}".encode())
        plant_many(connection)
        with case(given):
            check_choice(connection, given, retried, discarded)


def check_choice(connection, given, retried, discarded):
    """Retry and discard what some options choose, each first without doing it."""
    for action, chosen in [("retry", retried), ("discard", discarded)]:
        dry = decide(connection, action, *given, "--dry-run")
        assert (dry["chosen"], positions(dry["deadLetters"])) == (len(chosen), chosen)
    assert in_state(connection, "waiting") == in_state(connection, "discarded") == []
    assert positions(decide(connection, "retry", *given)["changed"]) == retried
    assert in_state(connection, "waiting") == retried
    connection.execute(
        "UPDATE reservation.dead_letters SET state = 'dead', next_attempt_at = NULL"
        " WHERE state = 'waiting'"
    )
    changed = decide(connection, "discard", *given, "--reason", "tests", "--yes")["changed"]
    assert positions(changed) == in_state(connection, "discarded") == discarded
    kept = connection.execute(
        "SELECT global_position FROM reservation.letter_decisions"
        " WHERE decision = 'discard' AND reason = 'tests' ORDER BY 1"
    ).fetchall()
    assert [position for (position,) in kept] == discarded


def test_many_letters_are_changed_in_several_transactions(connection):
    """So that consumers, which cannot write letters meanwhile, wait for 10,000 of them at most."""
    plant(connection, 1)
    connection.execute(
        "INSERT INTO reservation.dead_letters SELECT (jsonb_populate_record(l, jsonb_build_object("
        "'global_position', n, 'entity', 'till-' || n))).*"
        " FROM reservation.dead_letters l, generate_series(2, 10001) AS n"
    )
    printed = dead_letters(connection, "retry", "--all", "--reason", "tests")
    assert "10001 dead letters" in printed.replace(",", "")
    query = (
        "SELECT count(DISTINCT xmin::text) FROM reservation.dead_letters WHERE state = 'waiting'"
    )
    assert connection.execute(query).fetchone() == (2,)
