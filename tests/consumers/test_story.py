"""The story of a command: found by a key, a stream or an id, with what became of it."""

import json
import uuid
from datetime import datetime

import psycopg
import pytest
from psycopg.types.json import Jsonb

from reservation import Metadata, Retry, Write
from reservation.strategies import Processed
from tests.apps.answering import BY_FUNCTION, BY_KEY, INTO, SENT, Start, Take, till
from tests.apps.bank import drain
from tests.apps.orders import Place, capture, new_orders
from tests.apps.unpaid import Place as PlaceOrder
from tests.apps.unpaid import reserved
from tests.consumers.builders import Till, dead_letters, decide, letters
from tests.support.commands import invoke_cli

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = Metadata(properties={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
CONFLICT = "In conflict with another command of its key"

HANDLED = [
    "command Take",
    "  reservation Take",
    "    event Taken",
    "    further message Asked",
]


def take(number=1, amount=5, **values):
    return Take(f"t{number}", "1", amount, **values)


@pytest.fixture
def component():
    return till(**INTO)


@pytest.fixture
def tell(database_url):
    """Give a function that tells a story, as the command line prints it."""

    def tell(text, url=database_url):
        done = invoke_cli("story", "--data", "--json", "--database-url", url, "--", str(text))
        story = json.loads(done.stdout)
        assert done.returncode == (0 if story["entries"] else 1), done.stderr
        return story

    return tell


def kinds(story):
    return [entry["kind"] for entry in story["entries"]]


def outline(story):
    """Return the story as a person would sketch it: kinds with their types, indented."""
    return [
        f"{'  ' * entry['depth']}{entry['kind']} {entry.get('type', '')}".rstrip()
        for entry in story["entries"]
    ]


def outcomes(story):
    """Return what became of the commands of a story, in order."""
    return [entry["outcome"] for entry in story["entries"] if entry.get("outcome")]


def only(story, kind):
    (entry,) = [entry for entry in story["entries"] if entry["kind"] == kind]
    return entry


def last_id(store, stream):
    return store.last_message(stream).id


@pytest.mark.parametrize(
    "options", [INTO, BY_KEY, BY_FUNCTION], ids=["into", "by key", "by function"]
)
def test_a_command_that_was_handled(store, connection, tell, options):
    """The command, its copy, its event and what its handler wrote, from each of their names."""
    store.write(take(), SENT, metadata=PARENT)
    drain(connection, till(**options))
    event, asked = last_id(store, "till-1"), last_id(store, "audit-1")
    for text in ("t1", SENT, last_id(store, SENT), event, asked, "1"):
        story = tell(text)
        assert sorted(outline(story)) == sorted(HANDLED)
        assert outline(story)[:2] == HANDLED[:2]
        assert outcomes(story) == ["Handled"]
        assert {entry["traceId"] for entry in story["entries"]} == {TRACE}
        assert any(entry["isAsked"] for entry in story["entries"])


def test_what_follows_is_found_however_far_it_is(store, connection, tell, component):
    """The copy is found by its name, its event by its id, and the rest around them."""
    store.write(take(), SENT)
    connection.execute(
        "INSERT INTO message_store.messages (id, stream_name, type, position, data, metadata)"
        " SELECT gen_random_uuid(), 'other-1', 'Other', n, '{}', '{}'"
        " FROM generate_series(0, 6000) AS n"
    )
    drain(connection, component)
    assert sorted(outline(tell(SENT))) == sorted(HANDLED)


def test_reissues_and_conflicts(store, connection, tell, component):
    """A reissue may differ in the fields that its key ignores; a conflict has a dead letter."""
    for sent in (take(), take(), take(sent_at=9), take(amount=7), take(2)):
        store.write(sent, SENT)
    drain(connection, component)
    story = tell("t1")
    assert kinds(story).count("reissue") == 3
    duplicate = f"A duplicate of the command at {story['entries'][0]['globalPosition']}"
    assert outcomes(story) == ["Handled", duplicate, duplicate, CONFLICT]
    letter = only(story, "dead letter")
    assert (letter["letter"]["reason"], letter["depth"]) == ("conflict", 1)
    assert all("t2" not in str(entry.get("data")) for entry in story["entries"])


def test_a_reissue_is_part_of_the_story_of_the_first_command(store, connection, tell, component):
    """Who asks for the id of a reissue or of a conflict is told the story of the command."""
    ids = [uuid.uuid4() for _ in range(4)]
    commands = (take(), take(), take(amount=7), take(sent_at=3))
    for id_, sent in zip(ids, commands, strict=True):
        store.write(sent, SENT, id=id_)
    drain(connection, component)
    stories = [tell(id_) for id_ in ids]
    assert [kinds(story) for story in stories] == [kinds(stories[0])] * 4
    asked = [[e["id"] for e in story["entries"] if e.get("isAsked")] for story in stories]
    assert asked == [[str(id_)] for id_ in ids]


def test_a_key_within_another_entity_is_another_one(store, connection, tell, component):
    """The same text may be the key of several commands, and all of them are told."""
    store.write(take(), SENT)
    store.write(Take("t1", "2", 5), "till:command-2")
    drain(connection, component)
    assert kinds(tell("t1")).count("reservation") == 2
    assert outcomes(tell("t1")) == ["Handled", "Handled"]
    assert kinds(tell("2+t1")).count("reservation") == 1


def test_the_first_of_an_entity_and_its_reissue(store, connection, tell, component):
    """A command that initiates has its entity's id for its key."""
    for owner in ("Ann", "Ann", "Bob"):
        store.write(Start("1", owner), SENT)
    drain(connection, component)
    story = tell("till-1")
    assert [line for line in outline(story) if "dead letter" not in line] == [
        "command Start",
        "reissue Start",
        "reissue Start",
        "  event Started",
        "  further message Asked",
    ]
    assert only(story, "dead letter")["depth"] == 1
    duplicate = f"A duplicate of the command at {story['entries'][0]['globalPosition']}"
    assert outcomes(story) == ["Handled", duplicate, CONFLICT]
    assert kinds(tell(last_id(store, SENT))) == kinds(story)


def test_a_rejection_has_its_reason(store, connection, tell, component):
    """A rejected command says why."""
    store.write(take(amount=1_000), SENT)
    drain(connection, component)
    story = tell("t1")
    assert only(story, "rejection")["reason"] == "more than 100"
    assert outcomes(story) == ["Rejected"]


def test_a_dead_letter_with_what_was_decided(store, connection, tell, component):
    """The letter of the copy, and who retried and discarded it."""
    store.write(take(amount=-1), SENT)
    drain(connection, component)
    (letter,) = letters(connection)
    at = str(letter["global_position"])
    assert outcomes(tell(SENT)) == ["A dead letter: handler"]
    decide(connection, "retry", at, "--reason", "the till is back")
    assert outcomes(tell(SENT)) == ["Is about to be tried again"]
    drain(connection, component)
    decide(connection, "discard", at, "--reason", "no such till", "--yes")
    story = tell(SENT)
    assert outcomes(story) == ["A dead letter, which was discarded"]
    told = only(story, "dead letter")
    assert (told["letter"]["state"], told["letter"]["type"]) == ("discarded", "Take")
    decided = [(one["decision"], one["reason"]) for one in told["decisions"]]
    assert decided == [("discard", "no such till"), ("retry", "the till is back")]


def test_what_waits_for_a_pause_says_so(store, connection, tell, component):
    """Be it a message that was set aside, or one that was not read."""
    drain(connection, component)
    add = "INSERT INTO reservation.pauses (component, entity, reason) VALUES (%s, %s, 'why')"
    connection.execute(add, ["till", "till-1"])
    store.write(take(), SENT)
    drain(connection, component)
    assert outcomes(tell(SENT)) == ["Waits: paused"]
    connection.execute(add, ["till", None])
    store.write(take(2), f"{SENT}x")
    assert outcomes(tell(f"{SENT}x")) == ["Not handled yet, because its consumer is paused"]


def test_a_command_that_was_handled_with_other_data_is_corrected(
    store, connection, tell, component
):
    """The letter says who gave it the data, and why."""
    store.write(take(amount=-1), SENT)
    drain(connection, component)
    (letter,) = letters(connection)
    named = ["retry", str(letter["global_position"]), "--data", "-", "--reason", "a wrong sign"]
    data = {"takeId": "t1", "tillId": "1", "amount": 4, "sentAt": 0}
    dead_letters(connection, *named, data=json.dumps(data))
    assert outcomes(tell(SENT)) == ["Is about to be tried again, corrected"]
    drain(connection, component)
    story = tell(SENT)
    assert outcomes(story) == ["Handled, corrected"]
    decisions = only(story, "dead letter")["decisions"]
    assert [(one["decision"], one["reason"]) for one in decisions] == [("correct", "a wrong sign")]


def test_a_command_that_waits_for_its_next_attempt(connection, tell):
    """The letter says when it is tried again; a later command of the entity is parked behind it."""
    waiting = Till(connection, retry=Retry(attempts=5, first="1h", most="1h"))
    waiting.failing.add("1a")
    waiting.send("1a", "1b")
    waiting.drain()
    story = tell("till:command-1")
    first, parked = [entry["letter"] for entry in story["entries"] if "letter" in entry]
    assert datetime.fromisoformat(first["nextAttemptAt"])
    assert outcomes(story) == [
        "Waits for its next attempt, after 1 failed",
        f"Parked behind the message at {first['globalPosition']}",
    ]
    assert parked["behind"] == first["globalPosition"]


def test_a_command_that_was_not_read(store, connection, tell, component):
    """Before and after there is a consumer; a key is known once there is a reservation."""
    store.write(take(), SENT)
    story = tell(SENT)
    assert (outline(story), outcomes(story)) == (["command Take"], ["No consumer has read it"])
    assert tell("t1")["entries"] == []
    drain(connection, component)
    store.write(take(2), SENT)
    assert outcomes(tell(last_id(store, SENT))) == ["Not handled yet"]


def test_a_command_that_no_event_followed_from(store, connection, tell):
    """A strategy that needs no event leaves only the position of the consumer."""
    store.write(take(amount=0), SENT)
    drain(connection, till(once=Processed(key="take_id")))
    story = tell("t1")
    assert story["entries"][0]["streamName"] == SENT
    assert outcomes(story) == ["Read by its consumer; no event that follows was found"]


@pytest.mark.parametrize("once", [Processed(key="take_id"), Processed()])
def test_a_command_without_a_reservation(store, connection, tell, once):
    """The key of a processed message leads to it, and its event is its own."""
    store.write_batch([Write(take(n, sent_at=n), SENT) for n in range(30)])
    drain(connection, till(once=once))
    text = "t1" if once.key else next(iter(store.read_stream(SENT, position=1))).id
    story = tell(text)
    assert story["entries"][0]["position"] == 1
    assert outcomes(story) == ["Handled"]
    assert "reissue" not in kinds(story)


def test_what_is_scheduled_is_part_of_the_story(store, connection, tell):
    """A message that waits for its time is told, and so is its story if its id is asked for."""
    store.write(PlaceOrder("7"), "order:command-7")
    store.write(PlaceOrder("7"), "order:command-7")
    drain(connection, reserved())
    story = tell("7+7")
    assert "reissue" in kinds(story)
    entry = only(story, "scheduled message")
    assert (entry["scheduled"]["type"], entry["depth"]) == ("Expire", 2)
    assert kinds(tell(entry["scheduled"]["id"])) == kinds(story)


def test_a_sender_s_scheduled_message(store, tell):
    """It follows from nothing."""
    id_ = uuid.uuid4()
    store.write(PlaceOrder("7"), "order:command-7", id=id_, after="1h")
    assert kinds(tell(id_)) == ["scheduled message"]


def test_a_story_goes_on_in_other_components(store, connection, tell):
    """What subscribers make of an event is part of it, and what they passed without one."""
    store.write(Place("o1"), "order:command-o1")
    store.write_batch([capture("p1"), capture("p2", amount=0), capture("p3", amount=1)])
    drain(connection, new_orders())
    assert outline(tell("payment-p1")) == ["message Captured", "  event Paid"]
    story = tell("payment-p2")
    assert outline(story) == ["message Captured", "  pass"]
    assert only(story, "pass")["reason"] == "its handler decided on nothing"
    # What caused a command comes before it, whichever of them is asked for.
    for text in ("payment-p3", "shipping:command-o1"):
        assert sorted(outline(tell(text))) == [
            "  command Ship",
            "  pass",
            "message Captured",
        ]
        assert outcomes(tell(text)) == ["No consumer has read it"]


def test_of_a_long_stream_the_last_messages_are_told(store, tell):
    """A name of many messages leads to the last ten of them, and a note says so."""
    store.write([take(n) for n in range(120)], SENT)
    story = tell(SENT)
    assert [entry["position"] for entry in story["entries"]] == list(range(110, 120))
    assert story["notes"][0] == "There are more messages of this name; these are 10 of them."


def test_a_stream_whose_name_cannot_be_printed_is_found(store, tell):
    """A no-break space is no reason to say that nothing can have this name."""
    store.write(take(), "till:command-a\u00a0b")
    assert kinds(tell("till:command-a\u00a0b")) == ["command"]


def test_a_command_that_is_no_longer_in_the_store(store, connection, tell, component):
    """Its copy and its events are told, and that they follow from what is gone."""
    store.write(take(), SENT)
    drain(connection, component)
    gone = store.last_message(SENT)
    connection.execute("DELETE FROM message_store.messages WHERE id = %s", [gone.id])
    assert tell(gone.id)["entries"] == []
    story = tell("t1")
    assert sorted(outline(story)) == [
        "  event Taken",
        "  further message Asked",
        "reservation Take",
    ]
    noted = f"at global position {gone.global_position}, which is no longer in"
    assert noted in story["notes"][0]


def test_the_dead_letter_of_a_message_that_is_no_longer_in_the_store(
    store, connection, tell, component
):
    """A letter is found by its position alone."""
    store.write(take(amount=-1), SENT)
    drain(connection, component)
    (letter,) = letters(connection)
    connection.execute("DELETE FROM message_store.messages WHERE id = %s", [letter["message_id"]])
    assert kinds(tell(letter["global_position"])) == ["dead letter"]


NOTHING = [
    *("", "   ", "unknown", "no-such", "x" * 5_000, "\x00", "\ud800", "%", "-", "+", "4711"),
    *("9" * 40, "\u0661", "-1", "till:commands", "\u202e", "a" * 2_600, "'; DROP"),
    "00000000-0000-4000-8000-000000000000",
]


def test_a_text_that_names_nothing_is_answered_kindly(store, connection, tell, component):
    """Whatever is typed is answered, and says what there is not."""
    store.write(take(), SENT)
    drain(connection, component)
    for text in NOTHING:
        story = tell(text)
        assert (story["entries"], len(story["notes"]) > 0) == ([], True)


def test_messages_of_other_clients_are_read_as_they_are(connection, tell):
    """Causes that lie after their effects, point at themselves or nowhere, and odd data."""
    ids = []
    for position, cause in enumerate([1, 999, 2**70, -1, "x", None, {"a": 1}]):
        metadata = {
            "causationMessageGlobalPosition": cause,
            "causationMessageStreamName": "odd-1",
            "correlationStreamName": 7,
            "properties": {"traceparent": ["no"]},
        }
        ids.append(str(uuid.uuid4()))
        connection.execute(
            "SELECT message_store.write_message(%s, 'odd-1', 'Odd', %s, %s)",
            [ids[-1], Jsonb([position]), Jsonb(metadata)],
        )
    assert [entry["position"] for entry in tell("odd-1")["entries"]] == list(range(7))
    assert all(tell(id_)["entries"] for id_ in ids)


def test_a_statement_that_takes_too_long_is_ended(connection, store, database_url):
    """A shorter limit than the own one is respected."""
    store.write(take(), SENT)
    connection.execute("ALTER TABLE message_store.messages RENAME TO hidden")
    connection.execute(
        "CREATE VIEW message_store.messages AS SELECT h.* FROM message_store.hidden h, pg_sleep(2)"
    )
    url = psycopg.conninfo.make_conninfo(database_url, options="-c statement_timeout=300ms")
    done = invoke_cli("story", SENT, "--database-url", url)
    assert done.returncode == 2
    assert "cancel" in done.stderr


def test_nothing_is_written(store, connection, tell, component, database_url):
    """A story is told in a transaction that can only read."""
    store.write(take(), SENT)
    drain(connection, component)
    url = psycopg.conninfo.make_conninfo(
        database_url, options="-c default_transaction_read_only=on"
    )
    assert len(tell("t1", url)["entries"]) == 4


def test_the_command_shows_data_only_on_request(store, connection, component, database_url):
    """A line for each entry, with what became of it; or the same as JSON."""
    for sent in (take(), take(), take(amount=7)):
        store.write(sent, SENT, metadata=PARENT)
    drain(connection, component)
    story = ["story", "t1", "--database-url", database_url]
    done = invoke_cli(*story)
    assert done.returncode == 0, done.stderr
    assert "command Take till:command-1 (" in done.stdout
    for text in ("reservation* Take tillTaking-1+t1 (", "Handled\n", "dead, conflict", TRACE):
        assert text in done.stdout
    assert "amount" not in done.stdout
    assert '"amount": 7' in invoke_cli(*story, "--data").stdout
    printed = json.loads(invoke_cli(*story, "--json").stdout)
    assert printed["entries"][0]["outcome"] == "Handled"
    assert not any("data" in entry for entry in printed["entries"])


def test_the_command_says_what_there_is_not(database_url):
    """A name of nothing is one line, and the exit status 1."""
    done = invoke_cli("story", "nothing", "--database-url", database_url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
