"""Reports in every form: on the terminal, as a page, as JSON, for CI and as metrics."""

import base64
import dataclasses
import hashlib
import io
import json
import re
from decimal import Decimal
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.cells import cell_len
from rich.console import Console

from spark_jobs.common.errors import ThresholdError
from spark_jobs.common.result import VIOLATIONS
from spark_jobs.follow.persistence import ViolationEvent
from spark_jobs.report import thresholds
from spark_jobs.report.as_json import as_json
from spark_jobs.report.junit import render_junit
from spark_jobs.report.lines import as_line
from spark_jobs.report.page.html import content_policy, inspecting, render_html
from spark_jobs.report.prometheus import render_prometheus
from spark_jobs.report.terminal import print_report
from tests.spark import reports
from tests.support.pages import ROOT

_EMPTY_TAGS = {"meta", "br", "hr", "link", "img", "input", "col"}

REPORTS = {
    "empty": reports.empty(),
    "in order": reports.in_order(),
    "everything": reports.everything(),
    "nasty": reports.everything(reports.NASTY),
    "subscriptions": reports.subscribing(subscribed=12, handled=9, passed=3),
    "one hour": reports.in_order(latency=reports.over_time(1), volume=reports.volume(1)),
    "years": reports.in_order(latency=reports.over_time(10_000), volume=reports.volume(10_000)),
}


class Page(HTMLParser):
    """A page's tags, attributes and texts; it fails if a tag is not closed where it should be."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _EMPTY_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def rendered(render, report, **more):
    """Return a report in one form, with the thresholds that it reaches."""
    return render(report, thresholds.reached(report, **more))


def on_terminal(report, width=100):
    """Return the output where there is no terminal."""
    console = Console(file=io.StringIO(), width=width)
    print_report(report, thresholds.reached(report), console)
    return console.file.getvalue()


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_needs_nothing_else_and_runs_nothing(name):
    """The page has no script and no address, and its policy allows its own style only."""
    text = rendered(render_html, REPORTS[name])
    page = Page(text)
    assert page.tags[0] == "html"
    assert page.tags.count("h1") == 1
    assert not {"script", "iframe", "object", "embed", "link", "img", "form"} & set(page.tags)
    for tag, attribute, value in page.attributes:
        assert not attribute.startswith("on"), (tag, attribute)
        assert attribute not in {"src", "action", "style"}, (tag, attribute)
        if attribute == "href":
            assert value.startswith("#")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [
        value
        for tag, attribute, value in page.attributes
        if (tag, attribute) == ("meta", "content") and "default-src" in value
    ]
    assert policy == content_policy(style)
    assert policy.startswith("default-src 'none'")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "@import" not in style
    assert "url(" not in style


def test_the_page_shows_the_verdict_first_and_all_counts():
    """The page shows the verdict first, all counts, and the rows of each finding."""
    page = Page(rendered(render_html, REPORTS["everything"]))
    words = " ".join(" ".join(page.texts).split())
    for count in ("184,203", "8,154", "175,810", "175,640", "181,002"):
        assert count in words
    for name in VIOLATIONS:
        assert re.search(name.replace("-", "[- ]"), words, re.IGNORECASE), name
    query = inspecting(
        [finding for finding in REPORTS["everything"].findings if finding.finding == "missing"]
    )
    assert query == (
        "SELECT * FROM message_store.messages WHERE global_position IN (4242, 4243, 4244)"
    )
    assert query in words
    well = " ".join(Page(rendered(render_html, REPORTS["in order"])).texts)
    assert "Not in order" in words
    assert "Not in order" not in well


@pytest.mark.parametrize("render", [render_html, render_junit, render_prometheus])
def test_tags_and_control_characters_are_escaped_in_files(render):
    """Tags, bidirectional text and control characters in the data are escaped in files."""
    text = rendered(render, REPORTS["nasty"])
    if render is not render_prometheus:  # in whose texts a tag is no tag
        assert "<script" not in text
    assert not set("\u202e\x1b\x00\ufffe") & set(text)
    assert "gnp" in text  # its text is reported nevertheless
    assert "{{ 7*7 }}" in text  # and nothing from the data is taken for a template


def test_control_characters_are_escaped_on_a_terminal():
    """Control characters in the data are escaped, and none of it is read as markup."""
    text = on_terminal(REPORTS["nasty"])
    assert not set("\u202e\x1b\x00\ufffe") & set(text)
    joined = re.sub(r"[\s│]", "", text)
    assert "[bold]x" in joined
    assert "Not in order" in text
    assert "In order" in on_terminal(REPORTS["in order"])


@pytest.mark.parametrize("name", sorted({*REPORTS} - {"years"}))  # of which each hour takes a while
def test_the_json_is_as_its_schema_says(name):
    """The JSON has the keys of its schema, each described, and no other."""
    schema = json.loads((ROOT / "docs/reference/schemas/reconcile.schema.json").read_text())
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    document = json.loads(json.dumps(rendered(as_json, REPORTS[name])))
    checker.validate(document)
    with pytest.raises(jsonschema.ValidationError):
        checker.validate({**document, "more": 1})
    with pytest.raises(jsonschema.ValidationError):
        checker.validate({key: value for key, value in document.items() if key != "events"})


@pytest.mark.parametrize("name", thresholds.NAMES)
def test_whatever_has_a_threshold_is_counted(name):
    """No name counts as 0 because no field is called so."""
    assert thresholds.reached(REPORTS["everything"], thresholds.parse(name))


def test_the_json_has_what_was_counted():
    """The JSON has all counts under the documented names."""
    document = rendered(as_json, REPORTS["everything"])
    assert document["inOrder"] is False
    assert [category["reservationCategory"] for category in document["categories"]] == [
        "accountTransaction"
    ]
    assert [initiation["commands"] for initiation in document["initiations"]] == [5_310]
    assert document["categories"][0]["wrongType"] == 4
    assert document["events"]["effectTwice"] == 5
    assert document["subscriptions"][0]["passed"] == 1_000
    assert {threshold["name"] for threshold in document["thresholds"]} == set(VIOLATIONS)
    assert len(document["samples"]) == 27


@pytest.mark.parametrize("name", REPORTS)
def test_junit_has_a_case_for_everything_that_is_counted(name):
    """JUnit has a case for every count, and those over their threshold fail."""
    report = REPORTS[name]
    suite = ET.fromstring(rendered(render_junit, report)).find("testsuite")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == list(thresholds.NAMES)
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed == {reached.threshold.name for reached in thresholds.reached(report)}
    assert suite.get("failures") == str(len(failed))
    warned = thresholds.parse("duplicates:1%", failing=False)
    document = render_junit(report, thresholds.reached(report, warned))
    assert ("Warning: " in document) == (name not in {"empty", "subscriptions"})


def test_metrics_are_what_was_counted():
    """Metrics have all counts in Prometheus' text format."""
    text = rendered(render_prometheus, REPORTS["everything"])
    samples = {
        (
            sample.name,
            *sorted(value for name, value in sample.labels.items() if name != "component"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    name = "reservation_reconcile_"
    pair = ("account:command", "accountTransaction")
    assert samples[f"{name}commands", *pair] == 184_203
    assert samples[f"{name}missing", *pair] == 3
    assert samples[f"{name}effects_handled", "accountTransaction"] == 175_640
    assert samples[f"{name}subscriptions_unhandled", "Deposit"] == 19
    assert samples[f"{name}effect_twice", "account"] == 5
    assert samples[f"{name}in_order",] == 0
    assert samples[f"{name}time_seconds",] == reports.TIME.timestamp()
    assert samples[f"{name}snapshot_held_seconds",] == 4.2
    assert samples[f"{name}threshold_reached", "fail", "missing"] == 3


def test_each_exceeded_threshold_is_on_the_page_once():
    """A threshold that fails is a link to its finding, and the verdict does not repeat it."""
    report = REPORTS["everything"]
    text = rendered(render_html, report)
    for reached in thresholds.reached(report):
        link = f'<a href="#{reached.threshold.name}">{reached}</a>'
        assert (text.count(str(reached)), text.count(link)) == (1, 1)
        assert text.count(f'<article id="{reached.threshold.name}">') == 1


def test_the_picture_counts_keys_as_the_tables_do():
    """Commands without a key are no distinct keys, and a percentage names what it is of."""
    text = rendered(render_html, reports.everything())
    assert "181,220 distinct keys (and 12 without a key), less 3 missing" in text
    assert "percentages are of the commands" in text
    assert "Percentages are of the subscribed messages" in text
    assert "Percentages are of the sender's commands" in text


def test_every_output_names_the_key_of_a_finding():
    """The key is in each row of a finding, wherever rows are shown."""
    report = reports.everything("d-17")
    (finding,) = [one for one in report.findings if one.global_position == 4242]
    finding = dataclasses.replace(finding, key_stream="accountTransaction-123+d-17")
    report = dataclasses.replace(report, findings=[finding])
    assert "│ 123+d-17 │" in on_terminal(report)
    assert "<code>123+d-17</code>" in rendered(render_html, report)
    assert ", key 123+d-17, " in rendered(render_junit, report)
    (sample,) = rendered(as_json, report)["samples"]
    assert sample["keyStream"] == "accountTransaction-123+d-17"
    event = ViolationEvent(False, finding.time, finding.time, finding)
    assert "  123+d-17  " in as_line(event).plain
    without = dataclasses.replace(finding, key_stream=None)
    dash = "\N{EN DASH}"
    assert f"│ {dash} " in on_terminal(dataclasses.replace(report, findings=[without]))


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(width):
    """No line is longer than the terminal is wide, and an id is never broken."""
    report = REPORTS["everything"]
    lines = on_terminal(report, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    for finding in report.findings:
        assert any(finding.id in line for line in lines)
    if width == 120:  # each finding is one line
        rows = [line for line in lines if line.startswith("│ missing-")]
        assert all("accountTransaction-123+Deposit" in row for row in rows)


def test_a_terminal_shows_how_long_the_snapshot_was_held():
    """A report says for how long the snapshot kept VACUUM from cleaning up."""
    shown = "The snapshot of the store was held for 4.2 s."
    assert shown in on_terminal(REPORTS["everything"])
    assert "held" not in on_terminal(REPORTS["in order"])


def test_thresholds_are_reached_by_more_than_they_say():
    """A threshold is exceeded by more than its number or its percentage."""
    report = REPORTS["in order"]  # 40 of 1,040 commands are duplicates
    for text, is_reached in {
        "duplicates": True,
        "duplicates:39": True,
        "duplicates:40": False,
        "duplicates:3.8%": True,
        "duplicates:3.9%": False,
        "missing:0%": False,
        "missing, duplicates:4%": False,
    }.items():
        assert bool(thresholds.reached(report, thresholds.parse(text))) == is_reached, text
    (warning,) = thresholds.reached(report, thresholds.parse("duplicates:1%", failing=False))
    assert (warning.count, warning.whole, warning.threshold.limit) == (40, 1_040, Decimal(1))
    assert thresholds.in_order([warning])
    found = thresholds.reached(REPORTS["everything"])
    assert [reached.threshold.name for reached in found] == list(VIOLATIONS)
    assert not thresholds.in_order(found)
    assert thresholds.reached(REPORTS["empty"]) == ()


@pytest.mark.parametrize(
    ("name", "count", "text"),
    [
        ("conflict", 1, "Threshold exceeded: 1 conflict (allowed: 0)"),
        ("conflict", 1_700, "Threshold exceeded: 1,700 conflicts (allowed: 0)"),
        ("missing", 2, "Threshold exceeded: 2 missing (allowed: 0)"),
    ],
)
def test_an_exceeded_threshold_says_how_many_there_are_and_are_allowed(name, count, text):
    """An exceeded threshold says the count and the limit, in singular or plural."""
    exceeded = thresholds.ExceededThreshold(thresholds.Threshold(name), count, 10_000)
    assert f"{exceeded.heading}: {exceeded}" == text


def test_an_exceeded_percentage_says_both_percentages():
    """An exceeded percentage says both percentages and of what; a warning is named as such."""
    (warning,) = thresholds.reached(
        REPORTS["in order"], thresholds.parse("duplicates:1.5%", failing=False)
    )
    text = "Warning: 40 duplicates = 3.85 % (allowed: 1.5 % of the commands)"
    assert f"{warning.heading}: {warning}" == text


@pytest.mark.parametrize(
    "text", ["", "lost", "missing:", "missing:-1", "missing:5 %", "missing:x", "missing,,orphan"]
)
def test_an_unknown_threshold_is_named(text):
    """An unknown threshold is named with the known ones."""
    with pytest.raises(ThresholdError, match="is not a threshold: write name, name:N or name:N%"):
        thresholds.parse(text)


def test_a_threshold_is_given_once():
    """A threshold that is given twice is refused."""
    with pytest.raises(ThresholdError, match="missing is given twice"):
        thresholds.parse("missing,missing:5")


def test_messages_of_others_are_shown_as_commands_are():
    """A component of subscriptions alone has a verdict, a picture and a table of its own."""
    for counts, headline in {
        (): "Nothing was sent yet.",
        (("subscribed", 12), ("handled", 9), ("passed", 3)): "Every message took effect once.",
        (("subscribed", 2), ("handled", 1), ("pending", 1)): "Nothing was lost",
        (("subscribed", 2), ("handled", 1), ("unhandled", 1)): "1 finding needs attention.",
    }.items():
        report = reports.subscribing(**dict(counts))
        page = " ".join(Page(rendered(render_html, report)).texts)
        assert headline in page
        assert "From message to effect" in page
        assert "From command to effect" not in page
        assert "payment" in on_terminal(report)
    assert "3 passed" in " ".join(Page(rendered(render_html, REPORTS["subscriptions"])).texts)


def test_a_percentage_of_unhandled_messages_counts_those_of_others():
    """A percentage of what is unhandled is one of reserved and subscribed messages together."""
    report = reports.subscribing(subscribed=100, handled=90, unhandled=10)
    (reached,) = thresholds.reached(report, thresholds.parse("unhandled:9%"))
    assert (reached.count, reached.whole) == (10, 100)
    assert thresholds.reached(report, thresholds.parse("unhandled:10%")) == ()
