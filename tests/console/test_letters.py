"""The page *dead letters*: looking for them, showing them, and what is done with them."""

import html
import json
import re
from uuid import uuid4

import pytest
from starlette.testclient import TestClient

from consumers.dead_letters import administration, search
from consumers.dead_letters.search import Filter
from consumers.dead_letters.stored_letters import Selection
from reservation.postgres.connection import connect
from tests.console.conftest import built, form_token, signed_in
from tests.console.filling import HOSTILE

LIST = "/dead-letters"


@pytest.fixture
def store(filled_url):
    """Give a connection to the store that `operator_client` acts on."""
    with connect(filled_url, autocommit=True) as connection:
        yield connection


def letters(connection, **wanted):
    """Return the letters that a filter picks out, the first of the log first."""
    return search.page(connection, Filter(**wanted), 1_000)[::-1]


def fields(text):
    """Return the fields of the last form of a page that is sent to be decided on."""
    form = re.findall(r'<form method="post" action="/dead-letters.*?</form>', text, re.DOTALL)[-1]
    found = {}
    for name, value in re.findall(r'<input type="hidden" name="([a-z_]+)" value="(.*?)">', form):
        found.setdefault(name, []).append(html.unescape(value))
    return found


def confirm(client, path, **parameters):
    """Return the fields of the form that asks for a reason."""
    answer = client.get(path, params=parameters)
    assert answer.status_code == 200, answer.text
    return fields(answer.text)


def marked_on(client, **parameters):
    """Return the letters that the list offers to choose, as its checkboxes hold them."""
    text = client.get(LIST, params=parameters).text
    return [html.unescape(v) for v in re.findall(r'name="letter" value="(.*?)"', text)]


def send(client, form, **changes):
    """Send a form, and return where it leads."""
    path = f"{LIST}/letter/correct" if "step" in form else f"{LIST}/decide"
    return client.post(path, data={**form, **changes}, follow_redirects=False)


def said(answer):
    """Return the text of the notice of a page."""
    return html.unescape(re.search(r'<p class="notice \w+"[^>]*>(.*?)</p>', answer.text)[1])


def test_the_list_shows_what_is_open(client):
    """Each letter with its state, its message and the fault, and the number of each state."""
    text = client.get(LIST).text
    assert text.count('type="checkbox"') == 0  # a console that only reads offers nothing
    assert "ProviderError" in text
    assert text.count(">parked</span>") == 2


def test_each_field_narrows_the_search(client, seen_url):
    """By consumer, category, type, reason, entity, stream, id, digest, text and state."""
    with connect(seen_url, autocommit=True) as connection:
        (dead, *_) = letters(connection, entity="payment-broken")
    for name, value in {
        "consumer": dead.consumer,
        "category": dead.category,
        "type": dead.type,
        "reason": dead.reason,
        "entity": dead.entity,
        "stream": dead.stream_name,
        "message_id": dead.message_id,
        "digest": dead.digest,
        "text": "pROVIDERerror",
        "state": "dead",
    }.items():
        text = client.get(LIST, params={name: value}).text
        assert f"position={dead.global_position}" in text, name
        if name != "state":
            other = str(uuid4()) if name == "message_id" else "nothing-like-it%_"
            assert "Nothing matches." in client.get(LIST, params={name: other}).text, name


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"message_id": "4711"}, "'4711' is not the id of a message"),
        ({"state": "open'--"}, "There is no state"),
        ({"text": "a\0b"}, "holds a character that no text of the store has"),
    ],
)
def test_a_search_that_means_nothing_is_named(client, parameters, problem):
    """One line says what is wrong; the fields keep what was typed."""
    answer = client.get(LIST, params=parameters)
    assert answer.status_code == 400
    assert problem in said(answer)


@pytest.mark.parametrize(
    "cursor", ["x", "W10", "WzEsMSwxXQ", "WyJ4IiwieCIsIngiXQ", "W251bGwsMSwyXQ"]
)
def test_a_cursor_that_is_none_is_the_first_page(client, cursor):
    """Whoever edits an address sees a page of letters, and no error."""
    assert client.get(LIST, params={"after": cursor}).status_code == 200


def test_a_letter_shows_its_data_only_when_asked(client, seen_url):
    """The data may be confidential; nothing of it is on the page before."""
    with connect(seen_url, autocommit=True) as connection:
        (dead, *_) = letters(connection, entity="payment-broken")
    named = {"consumer": dead.consumer, "category": dead.category, "position": dead.global_position}
    text = client.get(f"{LIST}/letter", params=named).text
    assert "o-broken-1/1" in text  # of the stream
    assert "&#34;cents&#34;" not in text
    assert (
        "&#34;cents&#34;: 100"
        in client.get(f"{LIST}/letter", params={**named, "data": "shown"}).text
    )
    assert "3 open letters" in text


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"consumer": "payment", "category": "paymentTransaction", "position": "1"},
        {"consumer": "x", "category": "y", "position": "9" * 19},
        {"consumer": "x", "category": "y", "position": "-1"},
    ],
)
def test_a_letter_that_is_not_there_is_named(client, named):
    """An old address, or an edited one, is no error of the console."""
    assert client.get(f"{LIST}/letter", params=named).status_code == 404


def test_a_retry_is_kept_with_its_reason(operator_client, store):
    """The letter is to be retried, and who asked, when and why stands with it."""
    (dead, *_) = letters(store, entity="payment-broken")
    (mark,) = (m for m in marked_on(operator_client) if json.loads(m)[0] == dead.global_position)
    form = confirm(operator_client, f"{LIST}/decide", action="retry", letter=mark)
    answer = send(operator_client, form, why="the provider is back")
    assert answer.status_code == 303
    shown = operator_client.get(answer.headers["location"])
    assert said(shown).startswith("1 dead letter will be retried.")
    assert "by anna" in shown.text
    assert "<blockquote>the provider is back</blockquote>" in shown.text
    (after, *_) = letters(store, entity="payment-broken")
    assert after.state == "retry"


def test_a_form_that_is_sent_twice_does_it_once(operator_client, store):
    """A double click, or a second try after a lost answer, has the result of the first."""
    form = confirm(operator_client, f"{LIST}/decide", action="discard", entity="payment-broken")
    first = send(operator_client, form, why="a test")
    again = send(operator_client, form, why="a test")
    assert first.headers["location"] == again.headers["location"]
    assert said(operator_client.get(again.headers["location"])) == "3 dead letters discarded."
    ((count,),) = store.execute("SELECT count(*) FROM reservation.letter_decisions").fetchall()
    assert count == 3
    assert {letter.state for letter in letters(store, entity="payment-broken")} == {"discarded"}


def test_a_line_that_grew_is_discarded_as_it_was_seen(operator_client, store):
    """A message that is parked after the page was shown is not discarded unseen."""
    form = confirm(operator_client, f"{LIST}/decide", action="discard", entity="payment-broken")
    store.execute(
        "INSERT INTO reservation.dead_letters SELECT (jsonb_populate_record(d, "
        "'{\"global_position\": 9999}')).* FROM reservation.dead_letters d "
        "WHERE state = 'parked' LIMIT 1"
    )
    assert send(operator_client, form, why="r").status_code == 303
    assert [one.state for one in letters(store, entity="payment-broken")] == [
        *["discarded"] * 3,
        "retry",
    ]


def test_a_line_that_lost_a_letter_is_left_as_it_is(operator_client, store):
    """Somebody else was quicker; the page says so, with what is there now."""
    form = confirm(operator_client, f"{LIST}/decide", action="discard", entity="payment-broken")
    dead, *_, last = letters(store, entity="payment-broken")
    administration.discard(store, Selection(), [last.global_position])
    answer = send(operator_client, form, why="a reason of mine")
    assert answer.status_code == 409
    assert "Letters have changed since they were shown" in said(answer)
    assert "a reason of mine" in answer.text
    assert letters(store, entity="payment-broken")[0] == dead
    assert send(operator_client, fields(answer.text), why="r").status_code == 303


def test_a_letter_that_changed_meanwhile_is_left_as_it_is(operator_client, store):
    """What is shown instead is the letter as it is now."""
    (dead, *_) = letters(store, entity="payment-broken")
    (mark,) = (m for m in marked_on(operator_client) if json.loads(m)[0] == dead.global_position)
    form = confirm(operator_client, f"{LIST}/decide", action="retry", letter=mark)
    administration.discard(store, Selection(), [dead.global_position])
    answer = send(operator_client, form, why="r")
    assert answer.status_code == 409
    assert "changed since" in said(answer)
    assert ">discarded</span>" in answer.text
    assert letters(store, entity="payment-broken")[0].state == "discarded"


def test_some_letters_are_chosen_from_the_list(operator_client, store):
    """All of them are changed, or none."""
    marks = marked_on(operator_client, entity="payment-broken")
    chosen = {"form_token": form_token(operator_client), "action": "discard", "letter": marks}
    form = fields(operator_client.post(f"{LIST}/choose", data=chosen).text)
    assert len(form["letter"]) == 3
    assert send(operator_client, form, why="r").status_code == 303
    assert {one.state for one in letters(store, entity="payment-broken")} == {"discarded"}


def test_what_cannot_be_retried_is_said(operator_client, store):
    """A parked letter waits for the first of its line, and a conflict is no matter of a retry."""
    before = letters(store)
    for wanted in ({"state": "parked"}, {"reason": "conflict"}):
        marks = marked_on(operator_client, **wanted)
        form = confirm(operator_client, f"{LIST}/decide", action="retry", letter=marks)
        answer = send(operator_client, form, why="r")
        assert answer.status_code == 409
        assert re.search("is parked behind|is a conflict", said(answer))
    assert letters(store) == before


@pytest.mark.parametrize("reason", ["", " \n", "x" * 2_001, "a\0b"])
def test_nothing_is_done_without_a_reason(operator_client, store, reason):
    """The form is shown again."""
    before = letters(store)
    form = confirm(operator_client, f"{LIST}/decide", action="discard", entity="payment-broken")
    answer = send(operator_client, form, why=reason)
    assert answer.status_code == 422
    assert "Give a reason" in said(answer)
    assert letters(store) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"form_token": "0" * 64},
        {"action": "drop"},
        {"request": "4711"},
        {"count": "-1"},
        {"last": "x"},
        {"state": "other"},
        {"letter": "[]"},
        {"letter": '[1, "a", "b", "dead", "yesterday"]'},
        {"letter": '[true, "a", "b", "dead", "2026-01-01T00:00:00+00:00"]'},
        {"letter": '[1, "\\ud800", "b", "dead", "2026-01-01T00:00:00+00:00"]'},
        {"letter": '[1, "a", "b", "dead", "2026-01-01T00:00:00+00:00"]'},
    ],
    ids=str,
)
def test_a_form_that_was_tampered_with_changes_nothing(operator_client, store, changes):
    """It is refused in one line, and never an error of the console."""
    before = letters(store)
    form = confirm(operator_client, f"{LIST}/decide", action="discard", entity="payment-broken")
    answer = send(operator_client, form, why="r", **changes)
    assert 400 <= answer.status_code < 500
    assert letters(store) == before


def test_a_console_that_only_reads_changes_nothing(client, seen_url):
    """A form that somebody makes by hand is refused."""
    form = {"form_token": form_token(client), "action": "discard", "request": str(uuid4())}
    form |= {"entity": "payment-broken", "count": "3", "last": "9999", "why": "r"}
    answer = client.post(f"{LIST}/decide", data=form, follow_redirects=False)
    assert answer.status_code == 403
    with connect(seen_url, autocommit=True) as connection:
        assert letters(connection, entity="payment-broken")[0].state == "dead"


def correction(client, letter, reason="a slip", **changes):
    """Send the data of a letter, with these changes, to see what a correction would change."""
    named = {
        "consumer": letter.consumer,
        "category": letter.category,
        "position": letter.global_position,
    }
    answer = client.get(f"{LIST}/letter/correct", params=named)
    text = re.search(r"<textarea id=\"data\".*?>\n(.*?)</textarea>", answer.text, re.DOTALL)[1]
    data = json.loads(html.unescape(text)) | changes
    return send(client, fields(answer.text), data=json.dumps(data), why=reason)


def test_a_correction_is_seen_before_it_is_made(operator_client, store):
    """The first form shows the fields that change, the second one corrects, once."""
    (dead, *_) = letters(store, entity="payment-broken")
    compared = correction(operator_client, dead, cents=250, note="x\u202e<b>")
    assert compared.status_code == 200
    assert "<code>cents</code>" in compared.text
    assert "<del><code>100</code></del>" in compared.text
    assert "<ins><code>250</code></ins>" in compared.text
    assert "\\u202e&lt;b&gt;" in compared.text
    assert "<code>customer</code>" not in compared.text
    assert letters(store, entity="payment-broken")[0] == dead
    form = fields(compared.text)
    first, again = send(operator_client, form), send(operator_client, form)
    assert first.status_code == 303
    assert first.headers["location"] == again.headers["location"]
    ((data,),) = store.execute(
        "SELECT data->'corrected' FROM message_store.messages WHERE type = 'Corrected'"
    ).fetchall()
    assert (data["cents"], data["note"]) == (250, "x\u202e<b>")
    assert said(operator_client.get(first.headers["location"])).startswith(
        "1 dead letter corrected"
    )


def test_a_correction_of_digits_and_of_a_long_value_is_seen(operator_client, store):
    """A number with another scale is a change; the end of a long value may be cut off."""
    (dead, *_) = letters(store, entity="payment-broken")
    store.execute(
        """UPDATE message_store.messages SET data = data || '{"rate": 1.10}'
           WHERE global_position = %s""",
        [dead.global_position],
    )
    text = correction(operator_client, dead, rate=1.1, note="x" * 5_000).text
    assert "<del><code>1.10</code></del>" in text
    assert "<ins><code>1.1</code></ins>" in text
    assert "x" * 1_999 + "</code>" in text
    assert "3,002 more characters" in text


def test_a_correction_to_another_intent_is_refused(operator_client, store):
    """Another key or entity, or a content that does not fit, is said with the edit as it was."""
    (dead, *_) = letters(store, entity="payment-broken")
    for changes, problem in (
        ({"paymentId": "another"}, "has another key"),
        ({"customer": "another"}, "another"),
        ({"cents": "many"}, "cannot be used"),
    ):
        answer = correction(operator_client, dead, **changes)
        assert answer.status_code == 409
        assert problem in said(answer)
        assert next(iter(changes.values())) in answer.text
    assert letters(store, entity="payment-broken")[0] == dead


def test_a_correction_of_a_letter_that_changed_is_not_made(operator_client, store):
    """Somebody else discarded it, or corrected it, meanwhile."""
    (dead, *_) = letters(store, entity="payment-broken")
    form = fields(correction(operator_client, dead, cents=250).text)
    administration.retry(store, Selection(), [dead.global_position])
    answer = send(operator_client, form)
    assert answer.status_code == 409
    assert "changed since they were shown" in said(answer)
    assert store.execute("SELECT FROM reservation.corrections").fetchall() == []


def test_a_correction_needs_the_declaration(filled_url, store):
    """Without the app path of the component, nobody could check the content."""
    with TestClient(built(filled_url, operator=True)) as client:
        signed_in(client)
        client.app._app.state.console.components.pop("payment")
        (dead, *_) = letters(store, entity="payment-broken")
        named = {
            "consumer": dead.consumer,
            "category": dead.category,
            "position": dead.global_position,
        }
        answer = client.get(f"{LIST}/letter/correct", params=named)
        assert "start the console with the app path of payment" in said(answer)
        form = {**named, "form_token": form_token(client), "request": str(uuid4())}
        form |= {"step": "apply", "data": "{}", "why": "r", "letter": "[]"}
        assert send(client, form).status_code == 403


def test_hostile_content_is_only_text(operator_client, store):
    """Whatever a letter holds is shown, is sent back as it was, and becomes no markup."""
    store.execute(
        "UPDATE reservation.dead_letters SET type = %(t)s, stream_name = %(t)s, entity = %(t)s, "
        "error = %(t)s, process = %(t)s, digest = %(t)s, consumer = %(t)s, category = %(t)s, "
        "error_text = %(t)s, error_traceback = %(t)s, error_type = %(t)s, error_place = %(t)s "
        "WHERE entity = 'payment-broken'",
        {"t": HOSTILE},
    )
    named = {"consumer": HOSTILE, "category": HOSTILE}
    (dead, *_) = letters(store, entity=HOSTILE)
    pages = [
        operator_client.get(LIST, params={"entity": HOSTILE, **named}),
        operator_client.get(
            f"{LIST}/letter", params={**named, "position": dead.global_position, "data": "shown"}
        ),
        operator_client.get(
            f"{LIST}/letter/correct", params={**named, "position": dead.global_position}
        ),
        operator_client.get(f"{LIST}/decide", params={"action": "discard", "entity": HOSTILE}),
    ]
    for answer in pages:
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "\\u202eevil\\u200b" in answer.text
        assert "{{ 7 * 7 }}" in answer.text
    done = send(operator_client, fields(pages[-1].text), why=HOSTILE)
    assert done.status_code == 303
    shown = operator_client.get(done.headers["location"]).text
    assert "3 dead letters discarded." in shown
    assert {letter.state for letter in letters(store, entity=HOSTILE)} == {"discarded"}
