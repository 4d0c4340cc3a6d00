"""The page *reconciliations*: stored reports, findings over time, and what is accepted."""

import dataclasses
import html
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from cli.console.reading.findings_chart import HEIGHT, WIDTH, chart
from reservation.maintenance import finding_decisions, stored_reports
from reservation.maintenance.stored_reports import NewReport
from reservation.postgres.connection import connect
from tests.console.conftest import form_token
from tests.console.filling import HOSTILE

PAGE = "/reconciliations"
FINDING = "conflict-60-9f8e7d6c"


def finding(id_=FINDING, **changes):
    """Return a finding as reports hold it."""
    kind, position, _ = id_.rsplit("-", 2)
    return {
        "id": id_,
        "finding": kind,
        "keyStream": "paymentTransaction-anna-2+o-2/1",
        "streamName": "payment:command-anna-2",
        "globalPosition": int(position),
        "type": "Capture",
        "messageId": "0190163d-8694-739b-aea5-966c26f8ad91",
    } | changes


def content(**changes):
    """Return a report with one conflict, which need not be complete."""
    return {
        "component": "payment",
        "time": "2026-01-02T03:04:05+00:00",
        "inOrder": False,
        "categories": [
            {"commandCategory": "payment:command", "reservationCategory": "p", "conflicts": 1}
        ],
        "samples": [finding()],
        "accepted": [],
        "thresholds": [],
    } | changes


def store(url, *, findings=None, **changes):
    """Store a report."""
    counts = {"conflict": 1} if findings is None else findings
    made = NewReport(content(**changes), counts, {}, "full", 70, timedelta(seconds=5))
    stored_reports.store(url, made)


@pytest.fixture
def connection(filled_url):
    """Give a connection to the store of this test's own."""
    with connect(filled_url, autocommit=True) as connection:
        yield connection


def test_without_reports_the_page_says_how_to_get_some(client):
    """A store in which nothing was kept yet."""
    assert "--store-report" in client.get(PAGE).text


def test_the_findings_of_reports_are_shown_over_time(operator_client, filled_url):
    """The last report comes first, and the chart has a bar for each."""
    for count in (0, 3, 1):
        store(filled_url, findings={"conflict": count}, inOrder=not count)
    store(filled_url, component="order", findings={})
    text = operator_client.get(PAGE, params={"component": "payment"}).text
    assert re.findall(r"conflicts \d", text)[-2:] == ["conflicts 1", "conflicts 3"]
    assert text.count('<rect class="kind-3"') == 3  # with that of the legend
    assert text.count('<rect class="none"') == 1
    assert "3 reconciliations: 1 findings in the last one, 3 at most" in text
    assert (
        "<svg"
        not in operator_client.get(PAGE, params={"component": "order"}).text.split("<main")[1]
    )


def test_more_reports_are_on_further_pages(operator_client, filled_url):
    """Each report is on one page."""
    for number in range(35):
        store(filled_url, findings={"missing": number})
    first = operator_client.get(PAGE).text
    (address,) = re.findall(r'rel="next" href="(.*?)"', first)
    second = operator_client.get(html.unescape(address)).text
    found = re.findall(r"<span>missing (\d+)", first + second)
    assert found == [str(n) for n in range(34, 0, -1)]
    (back,) = re.findall(r'rel="prev" href="(.*?)"', second)
    assert operator_client.get(html.unescape(back)).text.count("/report/") == 30


def test_a_finding_leads_to_the_story_of_its_key(operator_client, filled_url):
    """By the stream that the key names; without a key by its message."""
    store(filled_url, samples=[finding(), finding("missing-7-00000000", keyStream=None)])
    text = operator_client.get(f"{PAGE}/report/1").text
    links = [urlsplit(html.unescape(one)) for one in re.findall(r'href="(/story[^"]*)"', text)]
    asked = [parse_qs(link.query)["q"] for link in links if link.query]
    assert ["paymentTransaction-anna-2+o-2/1"] in asked
    assert ["0190163d-8694-739b-aea5-966c26f8ad91"] in asked


def test_hostile_content_is_only_text(operator_client, filled_url, connection):
    """Whoever may store a report decides on all of it; nothing of it becomes markup."""
    bad = finding(type=HOSTILE, keyStream=HOSTILE, streamName={"a": [1]}, globalPosition=HOSTILE)
    store(
        filled_url,
        component=HOSTILE,
        samples=[bad, 1, None, {"id": 7}, {"id": HOSTILE, "finding": HOSTILE}],
        accepted=[bad | {"reason": HOSTILE, "acceptedBy": None}],
        thresholds=[{"name": HOSTILE}, "x"],
        categories=[{"commandCategory": HOSTILE, "conflicts": HOSTILE}, []],
        findings={"conflict": 10**15, HOSTILE: 1},
    )
    finding_decisions.accept(connection, [FINDING], HOSTILE, ["conflict"], on_behalf_of=HOSTILE)
    for path in (
        f"{PAGE}?component=<b>",
        f"{PAGE}/report/1",
        f"{PAGE}/accepted",
        f"{PAGE}/finding?id={FINDING}",
    ):
        text = operator_client.get(path).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202eevil\\u200b&amp;amp;" in text
        assert "\u202e" not in text
        assert "{{ 7 * 7 }}" in text


@pytest.mark.parametrize("path", ["report/7", f"report/{2**70}", "finding?id=x", "finding"])
def test_what_is_not_there_is_named(client, path):
    """An old address is no error of the console."""
    assert client.get(f"{PAGE}/{path}").status_code == 404


def decide(client, action, why="the sender confirmed 20", id_=FINDING):
    """Send the form about a finding."""
    data = {"form_token": form_token(client), "action": action, "id": id_, "why": why}
    return client.post(f"{PAGE}/finding", data=data, follow_redirects=False)


def test_a_finding_is_accepted_and_reopened(operator_client, connection):
    """With a reason, and who asked; a form that is sent twice decides once."""
    for _ in range(2):
        assert decide(operator_client, "accept").status_code == 303
    (decision,) = finding_decisions.accepted(connection)
    assert (decision.reason, decision.on_behalf_of) == ("the sender confirmed 20", "anna")
    assert FINDING in operator_client.get(f"{PAGE}/accepted").text
    for _ in range(2):
        assert decide(operator_client, "reopen", "it was 30 after all").status_code == 303
    assert len(finding_decisions.history(connection)) == 2
    assert finding_decisions.accepted(connection) == []
    text = operator_client.get(f"{PAGE}/finding", params={"id": FINDING}).text
    assert text.index("it was 30 after all") < text.index("the sender confirmed 20")


def test_a_decision_of_somebody_else_is_shown_instead(operator_client, connection):
    """Nothing is changed, and the page has what was decided meanwhile."""
    finding_decisions.accept(connection, [FINDING], "mine", ["conflict"])
    answer = decide(operator_client, "accept", "another reason")
    assert answer.status_code == 409
    assert "is accepted already" in answer.text
    assert "<blockquote>mine</blockquote>" in answer.text
    assert len(finding_decisions.history(connection)) == 1


@pytest.mark.parametrize("why", ["", "  ", "x" * 2_001, "\0"])
def test_a_finding_is_not_accepted_without_a_reason(operator_client, connection, why):
    """The form is shown again."""
    assert decide(operator_client, "accept", why).status_code == 422
    assert finding_decisions.history(connection) == []


def test_a_console_that_only_reads_accepts_nothing(client):
    """A form that somebody makes by hand is refused."""
    assert decide(client, "accept").status_code == 403


def test_bars_stay_within_the_chart(connection, filled_url):
    """Whatever the numbers are."""
    store(filled_url)
    (one,) = stored_reports.page(connection, "payment", 1)
    for counts in ([0, 0], [1, 10**15], list(range(90)), [7] * 3):
        reports = [dataclasses.replace(one, findings={"missing": n, "orphan": 1}) for n in counts]
        drawn = chart(reports)
        assert len(drawn.bars) == len(counts)
        for bar in drawn.bars:
            assert 0 < bar.x < bar.x + bar.width <= WIDTH
            assert all(0 <= part.y < part.y + part.height <= HEIGHT for part in bar.parts)
    assert chart([one]) is None
