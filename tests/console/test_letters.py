"""The page *dead letters*: looking for them, showing them, and what is done with them."""

import html
import re
from uuid import uuid4

import pytest
from psycopg import connect

from tests.console.filling import HOSTILE, letters
from tests.support.commands import invoke_cli

LIST = "/dead-letters"


@pytest.fixture
def store(filled_url):
    """Give a connection to the store that `operator_client` acts on."""
    with connect(filled_url, autocommit=True) as connection:
        yield connection


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


def send(client, form, **changes):
    """Send a form, and return where it leads."""
    return client.post(f"{LIST}/decide", data={**form, **changes}, follow_redirects=False)


def said(answer):
    """Return the text of the notice of a page."""
    return html.unescape(re.search(r'<p class="notice \w+"[^>]*>(.*?)</p>', answer.text)[1])


def test_the_list_shows_what_is_open(client):
    """Each letter with its state, its message and the fault, and the number of each state."""
    text = client.get(LIST).text
    assert "Discard" not in text  # a console that only reads offers nothing
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
        ({"text": "a\0b"}, "The field text contains a NUL character"),
    ],
)
def test_a_search_that_means_nothing_is_named(client, parameters, problem):
    """One line says what is wrong; the fields keep what was typed."""
    answer = client.get(LIST, params=parameters)
    assert answer.status_code == 400
    assert problem in said(answer)


@pytest.mark.parametrize("position", ["x", "", "-1", "9" * 20, "1\0"])
def test_a_page_that_there_is_not_is_said(client, position):
    """Whoever edits an address sees what is wrong with it, and no error of the console."""
    answer = client.get(LIST, params={"after_position": position})
    assert answer.status_code == 400
    assert "choose one from the list" in said(answer) or "contains a NUL character" in said(answer)


def test_pages_follow_each_other(filled_url, operator_client, store):
    """Every letter is on one page, whichever consumers have letters of one message."""
    store.execute(
        """
        INSERT INTO reservation.dead_letters
        SELECT (jsonb_populate_record(
          NULL::reservation.dead_letters,
          to_jsonb(d) || jsonb_build_object(
            'global_position', 9000 + n / 3, 'consumer', 'c' || n % 3))).*
        FROM (SELECT * FROM reservation.dead_letters WHERE state = 'dead' LIMIT 1) AS d,
             generate_series(1, 130) AS n
        """
    )
    seen, text = [], operator_client.get(LIST).text
    while True:
        seen += re.findall(r'<td data-label="Message"><span><a href="(.*?)"', text)
        further = re.search(r'<a rel="next" href="(.*?)"', text)
        if further is None:
            break
        text = operator_client.get(html.unescape(further[1])).text
    (count,) = store.execute(
        "SELECT count(*) FROM reservation.dead_letters WHERE state IN ('waiting', 'parked', 'dead')"
    ).fetchone()
    assert len(seen) == len(set(seen)) == count


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
    form = confirm(operator_client, f"{LIST}/decide", action="retry", message_id=dead.message_id)
    answer = send(operator_client, form, why="the provider is back")
    assert answer.status_code == 303
    shown = operator_client.get(answer.headers["location"])
    assert said(shown).startswith("1 dead letter will be retried.")
    assert "by anna" in shown.text
    assert "<blockquote>the provider is back</blockquote>" in shown.text
    assert [one.state for one in letters(store, entity="payment-broken")] == [
        "waiting",
        "parked",
        "parked",
    ]


def test_all_that_a_search_has_found_are_retried(operator_client, store):
    """After an outage, by the digest of the fault."""
    (dead, *_) = letters(store, entity="payment-broken")
    (waiting,) = letters(store, entity="payment-waiting")
    form = confirm(operator_client, f"{LIST}/decide", action="retry", consumer=dead.consumer)
    answer = send(operator_client, form, why="the provider is back")
    assert said(operator_client.get(answer.headers["location"])).startswith("2 dead letters will")
    assert {one.state for one in letters(store, message_id=dead.message_id)} == {"waiting"}
    assert {one.state for one in letters(store, message_id=waiting.message_id)} == {"waiting"}


def test_a_form_that_is_sent_twice_does_it_once(operator_client, store):
    """A double click, or a second try after a lost answer, has the result of the first."""
    form = confirm(operator_client, f"{LIST}/decide", action="discard", entity="payment-broken")
    first = send(operator_client, form, why="a test")
    again = send(operator_client, form, why="a test")
    assert first.headers["location"] == again.headers["location"]
    assert said(operator_client.get(again.headers["location"])) == "1 dead letter discarded."
    assert [one.state for one in letters(store, entity="payment-broken")] == [
        "discarded",
        "parked",
        "parked",
    ]


def test_what_comes_after_the_page_was_shown_is_left_alone(operator_client, store):
    """A message that dies meanwhile is not discarded unseen."""
    form = confirm(operator_client, f"{LIST}/decide", action="discard", entity="payment-broken")
    store.execute(
        "INSERT INTO reservation.dead_letters SELECT (jsonb_populate_record(d, "
        '\'{"global_position": 9999, "state": "dead"}\')).* '
        "FROM reservation.dead_letters d WHERE state = 'parked' LIMIT 1"
    )
    assert send(operator_client, form, why="r").status_code == 303
    assert letters(store, entity="payment-broken")[-1].state == "dead"


def test_what_is_no_longer_dead_is_said(operator_client, store, filled_url):
    """Somebody else was quicker; the page says so, with the reason as it was typed."""
    (dead, *_) = letters(store, entity="payment-broken")
    form = confirm(operator_client, f"{LIST}/decide", action="retry", message_id=dead.message_id)
    done = invoke_cli(
        *("dead-letters", "discard", str(dead.global_position), "--yes"),
        env={"RESERVATION_DATABASE_URL": filled_url},
    )
    assert done.returncode == 0, done.stderr
    answer = send(operator_client, form, why="r")
    assert answer.status_code == 409
    assert "none of the letters is dead any more" in said(answer)
    assert letters(store, entity="payment-broken")[0].state == "discarded"


def test_what_cannot_be_retried_is_not_offered(operator_client, store):
    """A parked letter waits for the first of its line, and a conflict is no matter of a retry."""
    for wanted in ({"state": "parked"}, {"reason": "conflict"}):
        (one, *_) = letters(store, **wanted)
        named = {"consumer": one.consumer, "category": one.category}
        text = operator_client.get(
            f"{LIST}/letter", params={**named, "position": one.global_position}
        ).text
        assert ">Retry…</button>" not in text
        asked = operator_client.get(
            f"{LIST}/decide", params={"action": "retry", "message_id": one.message_id}
        )
        assert "None of these letters is dead" in asked.text or "Conflict" in asked.text


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
        {"action": "drop"},
        {"request": "4711"},
        {"last": "-1"},
        {"last": "x"},
        {"state": "other"},
        {"entity": "a\0b"},
        {"message_id": "4711"},
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
    form = {"action": "discard", "request": str(uuid4()), "last": "9999", "why": "r"}
    form |= {"entity": "payment-broken"}
    answer = client.post(f"{LIST}/decide", data=form, follow_redirects=False)
    assert answer.status_code == 403
    with connect(seen_url, autocommit=True) as connection:
        assert letters(connection, entity="payment-broken")[0].state == "dead"


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
    assert "1 dead letter discarded." in shown
    assert letters(store, entity=HOSTILE)[0].state == "discarded"
