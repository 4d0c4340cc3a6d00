"""The page *story of a key*."""

import html
import re

import pytest
from psycopg import connect
from psycopg.types.json import Jsonb

from tests.console.filling import HOSTILE


def told(client, text):
    """Return the text of a story's page."""
    answer = client.get("/story", params={"q": text})
    assert answer.status_code == 200
    return answer.text


def kinds(page):
    """Return the kinds of the entries of a story, in order."""
    found = re.findall(r"<h3><span class=\"tag [a-z]*\">([^<]*)</span>", page)
    return [kind.strip() for kind in found]


def test_a_command_is_told_with_what_became_of_it(client):
    """The key alone finds the command, its copy, and the events of both components."""
    page = told(client, "o-3/1")
    assert "asked for" in page
    assert {"command", "reservation", "event"} <= set(kinds(page))
    assert "Handled" in page
    assert ">Paid</strong>" in page


def test_what_led_to_a_command_has_its_event_too(client):
    """An order that was placed is not said to have been read without an event."""
    page = told(client, "o-3/1")
    assert ">Placed</strong>" in page
    assert "no event that follows was found" not in page


def test_a_conflict_leads_to_its_letter(client):
    page = told(client, "o-2/1")
    assert "reissue" in kinds(page)
    assert "In conflict with another command of its key" in page
    (letter,) = re.findall(r'href="(/dead-letters/letter[^"]+)"', page)
    assert client.get(html.unescape(letter)).status_code == 200


def test_what_waits_says_until_when(client):
    page = told(client, "o-waiting/1")
    assert "Waits for its next attempt, after 1 failed" in page
    assert "Next attempt" in page


def test_what_is_scheduled_and_what_was_declined(client):
    assert "scheduled message" in kinds(told(client, "order:command-o-4"))
    assert "Declined" in told(client, "o-declined/1")


def test_a_text_that_names_nothing_is_answered_kindly(client):
    page = told(client, "no such thing")
    assert "The store has no stream, message or reservation of this name." in page


@pytest.mark.parametrize(
    "query",
    ["", "q=", "q=%00", "q=%ED%A0%80", "q=" + "y" * 5000, "q=99999999999999999999", "q=a&q=b"],
)  # fmt: skip
def test_any_query_is_answered(client, query):
    """Nothing in an address makes the page fail."""
    assert client.get(f"/story?{query}").status_code == 200


def test_what_is_stored_is_shown_as_text(client, seen_url):
    """Scripts, signs of HTML and characters that turn a text round are printed, never obeyed."""
    with connect(seen_url, autocommit=True) as connection:
        for stream in (f"hostile-{HOSTILE}", f"{HOSTILE.replace('-', '')}-1"):
            metadata = {
                "correlationStreamName": HOSTILE,
                "properties": {HOSTILE: [HOSTILE]},
                "causationMessageStreamName": HOSTILE,
                "causationMessageGlobalPosition": 1,
            }
            connection.execute(
                "SELECT message_store.write_message(gen_random_uuid()::varchar, %s, %s, %s, %s)",
                [stream, HOSTILE, Jsonb({HOSTILE: HOSTILE, "nested": [{HOSTILE: HOSTILE}]}),
                 Jsonb(metadata)],
            )  # fmt: skip
            page = told(client, stream)
            (field,) = re.findall(r'<input id="q".*?>', page, re.DOTALL)
            shown = page.replace(field, "")
            assert "alert(1)" in shown
            assert "\\u202e" in shown
            assert "<script>alert" not in page
            assert not {"\u202e", "\u200b"} & set(shown)
            assert "{{ 7 * 7 }}" in shown
