"""The story of a command: found by any text that names it, with all that became of it."""

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from psycopg.types.json import Jsonb

from cli.story import command
from consumers.correcting.correct import correct
from consumers.dead_letters import administration, history
from consumers.dead_letters.stored_letters import Selection
from consumers.story.content.entries import Kind, Meaning
from consumers.story.story import tell
from reservation import Metadata, Processed, Retry, Write, connect
from reservation.errors import StatementCanceledError
from tests.answering import BY_FUNCTION, BY_KEY, INTO, SENT, WITHIN, Start, Take, till
from tests.bank import drain
from tests.commands import invoke_cli
from tests.orders import Place, capture, new_orders
from tests.test_retry import Provider
from tests.unpaid import Place as PlaceOrder
from tests.unpaid import reserved

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = Metadata(properties={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"})
WAYS = pytest.mark.parametrize(
    "options", [INTO, BY_KEY, WITHIN, BY_FUNCTION], ids=["into", "by key", "within", "by function"]
)


def take(number=1, amount=5, **values):
    return Take(f"t{number}", "1", amount, **values)


@pytest.fixture
def component():
    return till(**INTO)


def kinds(story):
    return [entry.kind.value for entry in story.entries]


def outline(story):
    """Return the story as a person would sketch it: kinds with their types, indented."""
    return [
        f"{'  ' * entry.depth}{entry.kind.value}"
        + (f" {entry.message.type}" if entry.message else "")
        for entry in story.entries
    ]


HANDLED = [
    "command Take",
    "  reservation Take",
    "    event Taken",
    "    further message Asked",
]


@WAYS
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not declared"])
def test_a_command_that_was_handled(store, connection, options, declared):
    """The command, its copy, its event and what its handler wrote are told in order."""
    component = till(**options)
    sent = store.write(take(), SENT, metadata=PARENT)
    assert sent == 0
    drain(connection, component)
    story = tell(connection, "t1", components=[component] if declared else [])
    assert sorted(outline(story)) == sorted(HANDLED)
    assert outline(story)[:2] == HANDLED[:2]
    assert story.meaning is Meaning.KEY
    assert story.traces == (TRACE,)
    assert story.next_after is None


def test_reissues_are_told_apart_from_conflicts(store, connection, component):
    """A reissue may differ in volatile fields; a conflict is shown field by field."""
    for sent in (take(), take(), take(sent_at=9), take(amount=7), take(2), take()):
        store.write(sent, SENT)
    drain(connection, component)
    story = tell(connection, "t1", components=[component])
    assert kinds(story).count("reissue") == 3
    (conflict,) = [entry for entry in story.entries if entry.kind is Kind.CONFLICT]
    (copy,) = [entry for entry in story.entries if entry.kind is Kind.RESERVATION]
    assert conflict.compared_with == copy.global_position
    assert [(d.path, d.change, d.before.text, d.after.text) for d in conflict.differences] == [
        ("amount", "changed", "5", "7")
    ]
    (letter,) = [entry for entry in story.entries if entry.kind is Kind.LETTER]
    assert (letter.letter.reason, letter.global_position) == ("conflict", conflict.global_position)
    assert letter.depth == conflict.depth + 1
    volatile = [e.differences for e in story.entries if e.kind is Kind.REISSUE and e.differences]
    assert [[d.path for d in found] for found in volatile] == [["sentAt"]]
    assert all('"t2"' not in (entry.message.data or "") for entry in story.entries if entry.message)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "not declared"])
def test_a_reissue_is_part_of_the_story_of_the_first_command(
    store, connection, component, declared
):
    """Who asks for the id of a reissue or of a conflict is told the story of the command."""
    ids = [uuid.uuid4() for _ in range(3)]
    for id_, sent in zip(ids, (take(), take(), take(amount=7)), strict=True):
        store.write(sent, SENT, id=id_)
    drain(connection, component)
    told = [tell(connection, str(id_), components=[component] if declared else []) for id_ in ids]
    assert kinds(told[0]) == kinds(told[1]) == kinds(told[2])
    assert {"reissue", "conflict", "event"} <= set(kinds(told[0]))
    asked = [[e.message.id for e in story.entries if e.is_asked] for story in told]
    assert [len(set(one)) for one in asked] == [1, 1, 1]
    assert [one[0] for one in asked] == [str(id_) for id_ in ids]


def test_the_first_of_an_entity_and_its_reissue(store, connection, component):
    """A command that starts a stream has its entity's id for its key."""
    for owner in ("Ann", "Ann", "Bob"):
        store.write(Start("1", owner), SENT)
    drain(connection, component)
    story = tell(connection, "till-1", components=[component])
    assert outline(story) == [
        "command Start",
        "reissue Start",
        "conflict Start",
        "  event Started",
        "  further message Asked",
        "  dead letter Start",
    ]
    assert story.meaning is Meaning.STREAM


def test_a_rejection_has_its_reason(store, connection, component):
    store.write(take(amount=1_000), SENT)
    drain(connection, component)
    (rejection,) = [e for e in tell(connection, "t1").entries if e.kind is Kind.REJECTION]
    assert rejection.reason == "more than 100"


def test_a_letter_that_was_corrected(store, connection, component):
    """The letter, its correction with both contents, and the event that came of it."""
    store.write(take(amount=-1), SENT)
    drain(connection, component)
    (letter,) = administration.find(connection, Selection())
    request = history.Request("the till is back", "Ann")
    administration.retry(connection, Selection(), [letter.global_position], request)
    drain(connection, component)
    assert "dead letter" in kinds(tell(connection, "t1"))
    data = json.dumps({"takeId": "t1", "tillId": "1", "amount": 4, "sentAt": 0}).encode()
    correct(connection, component, None, letter.global_position, data, "ticket 12")
    drain(connection, component)
    story = tell(connection, "t1")
    (corrected,) = [entry for entry in story.entries if entry.kind is Kind.CORRECTION]
    assert (corrected.reason, bool(corrected.by)) == ("ticket 12", True)
    assert [(d.path, d.before.text, d.after.text) for d in corrected.differences] == [
        ("amount", "-1", "4")
    ]
    (told,) = [entry for entry in story.entries if entry.kind is Kind.LETTER]
    assert told.letter.state == "handled"
    decided = [(one.decision, one.reason, one.on_behalf_of) for one in told.decisions]
    assert decided == [("correct", "ticket 12", None), ("retry", "the till is back", "Ann")]
    assert "event" in kinds(story)


def test_a_correction_of_nothing_but_digits_is_shown(store, connection, component):
    """Numbers of the same value say the same in a reissue, and not in a correction."""
    store.write(take(amount=-1), SENT)
    drain(connection, component)
    (letter,) = administration.find(connection, Selection())
    connection.execute(
        """UPDATE message_store.messages SET data = data || '{"rate": 1.10}'
           WHERE global_position = %s""",
        [letter.global_position],
    )
    data = b'{"takeId": "t1", "tillId": "1", "amount": -1, "sentAt": 0, "rate": 1.1}'
    correct(connection, component, None, letter.global_position, data, "ticket 12")
    (corrected,) = [e for e in tell(connection, "t1").entries if e.kind is Kind.CORRECTION]
    shown = {d.path: (d.before.text, d.after.text) for d in corrected.differences}
    assert shown == {"rate": ("1.10", "1.1")}


def test_a_command_that_was_never_reserved_is_found_by_its_key(store, connection, component):
    """One that waits, or has no usable key, is found among the newest messages."""
    store.write(take(), SENT)
    story = tell(connection, "t1", components=[component])
    assert (story.meaning, outline(story)) == (Meaning.KEY, ["command Take"])
    drain(connection, component)
    assert len(tell(connection, "t1").entries) == 4


def test_a_command_without_a_reservation_is_found_by_what_a_strategy_remembers(store, connection):
    """The key of a processed message leads to it however long ago it was."""
    store.write_batch([Write(take(n, sent_at=n), SENT) for n in range(30)])
    drain(connection, till(once=Processed(key="take_id")))
    story = tell(connection, "t1")
    assert (story.meaning, story.entries[0].message.position) == (Meaning.KEY, 1)
    assert story.outcome.text == "Handled"


def test_what_a_text_may_mean_is_offered(store, connection, component, database_url):
    """A text is not taken for one thing where it names several."""
    store.write(Start("1", "Ann"), SENT)
    store.write(replace(take(), take_id="1"), SENT)
    store.write(replace(take(), take_id="1", till_id="2"), "till:command-2")
    drain(connection, component)
    by_name = tell(connection, "1")
    offered = {(one.text, one.meaning) for one in by_name.alternatives}
    assert by_name.meaning is Meaning.STREAM
    assert {("1", Meaning.KEY), ("1", Meaning.POSITION)} <= offered
    by_key = tell(connection, "1", meaning=Meaning.KEY)
    assert (by_key.meaning, by_key.entries) == (None, ())
    (first, second) = [one for one in by_key.alternatives if one.meaning is Meaning.MESSAGE]
    assert ("tillTaking-1+1" in first.described, "tillTaking-2+1" in second.described) == (
        True,
    ) * 2
    assert kinds(tell(connection, second.text))[0] == "command"
    said = invoke_cli("story", "1", "--as", "key", "--database-url", database_url).stdout
    assert said.startswith("Several commands have this key; ask for one of them:\n")
    assert f"{second.described}: reservation story --as message {second.text}\n" in said
    assert tell(connection, "1", meaning=Meaning.POSITION).entries[0].message.type == "Start"


NOTHING = [
    *("", "   ", "unknown", "no-such", "x" * 5_000, "\x00", "\ud800", "%", "-", "+", "4711"),
    *("9" * 40, "\u0661", "-1", "till:commands", "<script>", "\u202e", "a" * 2_600, "'; DROP"),
    "00000000-0000-4000-8000-000000000000",
]


def test_a_text_that_names_nothing_is_answered_kindly(store, connection, component):
    """Whatever is typed is answered, and says what there is not."""
    store.write(take(), SENT)
    for text in NOTHING:
        for meaning in (None, *Meaning):
            story = tell(connection, text, meaning=meaning, components=[component])
            assert not story.entries
            assert story.notes


def test_a_category_offers_its_newest_streams(store, connection):
    store.write(take(), SENT)
    assert [one.text for one in tell(connection, "till:command").alternatives] == [SENT]


def test_a_command_that_waits_for_its_next_attempt(store, connection, database_url):
    """The letter says when it is tried again."""
    provider = Provider(connection, Retry(attempts=5, first="1h", most="1h", on=ConnectionError))
    provider.down.add("1a")
    provider.send(store, "1a")
    provider.drain(database_url)
    story = tell(connection, "1a")
    (entry,) = [entry for entry in story.entries if entry.kind is Kind.LETTER]
    assert entry.letter.next_attempt_at > datetime.now(UTC)
    assert entry.letter.attempts == 1


def test_what_is_scheduled_is_part_of_the_story(store, connection):
    """A message that waits for its time is told, and so is its story if its id is asked for."""
    store.write(PlaceOrder("7"), "order:command-7")
    store.write(PlaceOrder("7"), "order:command-7")
    drain(connection, reserved())
    story = tell(connection, "7+7")
    assert "reissue" in kinds(story)
    (entry,) = [entry for entry in story.entries if entry.kind is Kind.SCHEDULED]
    assert (entry.scheduled.type, entry.depth) == ("Expire", 2)
    assert kinds(tell(connection, str(entry.scheduled.id))) == kinds(story)


def test_a_story_goes_on_in_other_components(store, connection):
    """What subscribers make of an event is part of it, and what they passed without one."""
    store.write(Place("o1"), "order:command-o1")
    store.write_batch([capture("p1"), capture("p2", amount=0), capture("p3", amount=1)])
    drain(connection, new_orders())
    assert outline(tell(connection, "payment-p1")) == ["message Captured", "  event Paid"]
    assert outline(tell(connection, "payment-p2")) == ["message Captured", "  pass Captured"]
    assert sorted(outline(tell(connection, "payment-p3"))) == [
        "  further message Ship",
        "  pass Captured",
        "message Captured",
    ]


def test_what_caused_a_command_comes_before_it(store, connection):
    """A command that another component sent begins with what it follows from."""
    store.write_batch([capture("p3", amount=1)])
    drain(connection, new_orders())
    (ship,) = store.read_stream("shipping:command-o1")
    assert outline(tell(connection, ship.id))[:2] == ["message Captured", "  further message Ship"]


def test_a_long_stream_is_read_page_by_page(store, connection):
    """Each page goes on where the former one ended, and no message is missed."""
    store.write([take(n) for n in range(120)], SENT)
    seen, after = [], None
    while True:
        page = tell(connection, SENT, after=after)
        seen += [entry.message.position for entry in page.entries]
        after = page.next_after
        if after is None:
            break
    assert seen == list(range(120))


def test_the_messages_of_a_correlation(store, connection, component):
    """All that belongs to a conversation is told, whatever its streams are."""
    metadata = Metadata(correlation_stream_name="saga-9")
    store.write(take(), SENT, metadata=metadata)
    store.write(take(2), SENT)
    drain(connection, component)
    story = tell(connection, "saga-9")
    assert (story.meaning, kinds(story)) == (
        Meaning.CORRELATION,
        ["command", "reservation", "event", "further message"],
    )
    assert tell(connection, "saga-8").notes == ("No message belongs to this correlation.",)


def test_the_key_of_an_http_request(store, connection, component):
    """The request of which a command was made is told with its status, without its answer."""
    key = uuid.uuid4()
    connection.execute(
        "INSERT INTO reservation.http_requests (role, id, fingerprint, created_at, answered_at, "
        "status, headers, body) VALUES (current_user, %s, '', now() - interval '1 minute', now(), "
        "201, '{}', 'secret')",
        [key],
    )
    store.write(replace(take(), take_id=str(key)), SENT)
    drain(connection, component)
    story = tell(connection, str(key))
    assert (story.meaning, kinds(story)[0]) == (Meaning.REQUEST, "HTTP request")
    assert story.entries[0].request.status == 201
    assert "event" in kinds(story)
    assert "secret" not in repr(story)


def test_messages_of_other_clients_are_read_as_they_are(store, connection):
    """Causes that lie after their effects, point at themselves or nowhere, and odd data."""
    for position, cause in enumerate([1, 999, 2**70, -1, "x", None, {"a": 1}]):
        metadata = {
            "causationMessageGlobalPosition": cause,
            "causationMessageStreamName": "odd-1",
            "correlationStreamName": 7,
            "properties": {"traceparent": ["no"]},
        }
        connection.execute(
            "SELECT message_store.write_message(%s, 'odd-1', 'Odd', %s, %s)",
            [str(uuid.uuid4()), Jsonb([position]), Jsonb(metadata)],
        )
    story = tell(connection, "odd-1")
    assert [entry.message.position for entry in story.entries] == list(range(7))
    for entry in story.entries:
        assert tell(connection, entry.message.id).entries


def test_a_statement_that_takes_too_long_is_ended(connection, store):
    """A shorter limit than the own one is kept."""
    store.write(take(), SENT)
    connection.execute("ALTER TABLE message_store.messages RENAME TO hidden")
    connection.execute(
        "CREATE VIEW message_store.messages AS SELECT h.* FROM message_store.hidden h, pg_sleep(1)"
    )
    connection.execute("SET statement_timeout = '20ms'")
    with pytest.raises(StatementCanceledError):
        tell(connection, "t1")


def test_an_auditor_may_read_it(store, connection, component, database_url):
    """No right to write is needed, and nothing is written."""
    store.write(take(), SENT)
    drain(connection, component)
    with connect(database_url, autocommit=True) as auditor:
        auditor.execute("SET default_transaction_read_only = on")
        assert len(tell(auditor, "t1").entries) == 4


def test_the_command_tells_it_without_data(store, connection, component, database_url):
    """Values of messages are printed only if they are asked for."""
    for sent in (take(), take(), take(amount=7)):
        store.write(sent, SENT, metadata=PARENT)
    drain(connection, component)
    story = ["story", "t1", "--database-url", database_url]
    done = invoke_cli(*story)
    assert done.returncode == 0, done.stderr
    assert "Taken for the key of the reservation tillTaking-1+t1.\nHandled.\n" in done.stdout
    assert "amount changed" in done.stdout
    assert TRACE in done.stdout
    assert "amount changed: 5 -> 7" not in done.stdout
    assert "amount changed: 5 -> 7" in invoke_cli(*story, "--data").stdout
    printed = json.loads(invoke_cli(*story, "--json").stdout)
    assert printed["meaning"] == "key"
    assert [entry["kind"] for entry in printed["entries"]] == kinds(tell(connection, "t1"))
    assert not any("data" in entry for entry in printed["entries"])
    (conflict,) = [entry for entry in printed["entries"] if entry["kind"] == "conflict"]
    assert conflict["differences"] == [{"path": "amount", "change": "changed", "mayDiffer": False}]
    with_data = json.loads(invoke_cli(*story, "--data", "--json").stdout)
    assert with_data["entries"][0]["data"]["takeId"] == "t1"


def test_the_command_says_what_there_is_not(connection, database_url):
    """A name of nothing, and an app that is not there, are one line each."""
    done = invoke_cli("story", "nothing", "--database-url", database_url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    done = invoke_cli("story", "x", "--app", "no:where", "--database-url", database_url)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_the_choices_of_the_command_are_all_meanings():
    """The help is shown without importing what reads a story."""
    assert {meaning.value for meaning in Meaning} == set(command._MEANINGS)
