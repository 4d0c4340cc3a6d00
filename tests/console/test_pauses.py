"""Pausing and resuming in the console: who may, what is stored, and what others see."""

import html
import re

import pytest
from psycopg import connect
from starlette.testclient import TestClient

from tests.console.browsing import check_look
from tests.console.conftest import built, signed_in
from tests.console.filling import HOSTILE
from tests.console.test_overview import text

GIVEN = {"component": "payment", "category": "paymentTransaction", "why": "provider migration"}


@pytest.fixture
def store(filled_url):
    """Give a connection to the store that `operator_client` acts on."""
    with connect(filled_url, autocommit=True) as connection:
        yield connection


def paused(store):
    """Return what is paused, and on whose behalf."""
    return store.execute(
        "SELECT component, category, type, entity, reason, on_behalf_of FROM reservation.pauses"
    ).fetchall()


def send(client, path, **fields):
    return client.post(path, data=fields, follow_redirects=False)


def test_a_consumer_is_paused_and_resumed(operator_client, store):
    """With the name of who signed in, which every page shows with the reason."""
    form = operator_client.get("/pauses", params=GIVEN).text
    assert 'name="category" value="paymentTransaction"' in form
    assert send(operator_client, "/pauses", **GIVEN).headers["location"] == "/consumers"
    assert paused(store) == [
        ("payment", "paymentTransaction", None, None, "provider migration", "anna")
    ]
    for page in ("/", "/consumers"):
        said = text(operator_client.get(page).text)
        assert re.search(r"paused by anna since [-\d]+ [:\d]+ : “provider migration”", said)
    resumed = send(operator_client, "/pauses/resume", component="payment", **_only("category"))
    assert resumed.headers["location"] == "/consumers"
    assert paused(store) == []


def _only(*names):
    return {name: GIVEN[name] for name in names}


def test_messages_of_a_type_or_an_entity_are_paused(operator_client, store):
    """Empty fields do not narrow it."""
    narrow = {"component": "payment", "category": "", "type": "Capture", "entity": "payment-anna"}
    send(operator_client, "/pauses", **narrow, why="dispute")
    assert paused(store) == [("payment", None, "Capture", "payment-anna", "dispute", "anna")]
    page = operator_client.get("/consumers").text
    assert "Capture payment-anna paused by anna" in text(page)
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="(.*?)"', page))
    send(operator_client, "/pauses/resume", **hidden)
    assert paused(store) == []


@pytest.mark.parametrize(
    ("changes", "status", "problem"),
    [
        ({"why": " "}, 422, "Give a reason of at most"),
        ({"why": "x\0"}, 422, "Give a reason of at most"),
        ({"component": "nobody"}, 409, "No consumer is named nobody; there is order, payment"),
        ({"category": "else"}, 409, "payment reads no category else; there is payment:command"),
    ],
)
def test_what_cannot_be_paused_is_refused(operator_client, store, changes, status, problem):
    """One line says why, and the form keeps what was typed."""
    answer = send(operator_client, "/pauses", **{**GIVEN, **changes})
    assert answer.status_code == status
    assert problem in html.unescape(answer.text)
    assert paused(store) == []


def test_what_was_done_already_is_said(operator_client):
    """Two people may look at the same page."""
    send(operator_client, "/pauses", **GIVEN)
    again = send(operator_client, "/pauses", **GIVEN)
    assert (again.status_code, "is paused by anna already" in again.text) == (409, True)
    names = _only("component", "category")
    send(operator_client, "/pauses/resume", **names)
    again = send(operator_client, "/pauses/resume", **names)
    assert (again.status_code, "is not paused" in again.text) == (409, True)


def test_what_people_write_is_escaped(operator_client, store):
    """On every page that shows it, and in the form that comes back."""
    send(operator_client, "/pauses", **{**GIVEN, "why": HOSTILE, "entity": HOSTILE})
    assert paused(store)[0][3:5] == (HOSTILE, HOSTILE)
    pages = [operator_client.get(page).text for page in ("/", "/consumers")]
    refused = {**GIVEN, "why": HOSTILE, "component": "nobody"}
    pages.append(send(operator_client, "/pauses", **refused).text)
    for page in pages:
        assert "<script>alert" not in page
        assert "{{ 7 * 7 }}" in page
    shown = dict(re.findall(r'type="hidden" name="(\w+)" value="(.*?)"', pages[1]))
    send(operator_client, "/pauses/resume", **{k: html.unescape(v) for k, v in shown.items()})
    assert paused(store) == []


def test_other_sites_cannot_pause(operator_client, store):
    """Their forms come with another origin."""
    for path in ("/pauses", "/pauses/resume"):
        answer = operator_client.post(path, data=GIVEN, headers={"origin": "https://evil.example"})
        assert answer.status_code == 403
    assert paused(store) == []


def test_a_console_that_only_reads_offers_nothing(filled_url, store):
    """It shows what is paused, and refuses the rest."""
    store.execute("INSERT INTO reservation.pauses (component, reason) VALUES ('payment', 'why')")
    with TestClient(built(filled_url)) as client:
        page = signed_in(client).get("/consumers").text
        assert "“why”" in page
        assert "/pauses" not in page
        assert "only reads" in client.get("/pauses", params=GIVEN).text
        for path in ("/pauses", "/pauses/resume"):
            assert send(client, path, **GIVEN).status_code == 403


def test_series_are_shown_with_their_state(operator_client, store):
    """A function that fails is seen at a glance."""
    store.execute(
        "INSERT INTO reservation.series (component, name, expression, zone, missed, reached,"
        " attempts, error) VALUES"
        " ('order', 'night', '0 2 * * *', 'Europe/Berlin', 'all', now(), 0, NULL),"
        " ('order', 'hour', '0 * * * *', 'UTC', 'all', now(), 2, 'it raised <b>')"
    )
    assert "Recurring 2 1 failing" in text(operator_client.get("/").text)
    page = text(operator_client.get("/consumers").text)
    assert re.search(
        r"hour order failing it raised &lt;b&gt; [-\d]+ [:\d]+ .{1} 0 \* \* \* \* UTC 0", page
    )
    assert re.search(r"night order scheduled [-\d]+ [:\d]+ .{1} 0 2 \* \* \* Europe/Berlin 0", page)


def test_the_pages_look_right_with_a_pause(acting, open_page, store):
    """In light and dark, on a desktop and a phone."""
    store.execute(
        "INSERT INTO reservation.pauses (component, type, reason) VALUES"
        " ('payment', NULL, 'provider migration'), ('payment', 'Capture', %s)",
        ["a long reason, " * 20],
    )
    page = open_page(acting)
    for path in ("/", "/consumers", "/pauses?component=payment&category=payment:command"):
        check_look(page, f"{acting.url}{path}")
