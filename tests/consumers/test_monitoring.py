"""The alert rules and the dashboard of the documentation, and what finds mistakes in them.

`tests/processes/test_metrics.py` compares them with what a real host serves.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import promql_parser as promql
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from spark_jobs.report.prometheus import render_prometheus
from spark_jobs.report.thresholds import parse, reached
from tests.spark.reports import everything
from tests.support.pages import ROOT, anchors, blocks

FOLDER = ROOT / "docs/how-to/monitoring"
METRICS = ROOT / "docs/reference/metrics.md"
RUNBOOK = ROOT / "docs/how-to/respond-to-alerts.md"


class Known(NamedTuple):
    """What is known of a metric: its type, and the values of each of its labels."""

    type: str
    labels: dict[str, set[str]]


def known_from(text: str) -> dict[str, Known]:
    """Return every sample of an exposition by its name."""
    known: dict[str, Known] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = known.setdefault(sample.name, Known(family.type, {})).labels
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return known


def rules() -> list[dict[str, object]]:
    """Return the alert rules."""
    groups = YAML(typ="safe").load(FOLDER / "alerts.yml")["groups"]
    assert all(set(group) == {"name", "rules"} for group in groups)
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, object]:
    return json.loads((FOLDER / "dashboard.json").read_text())


def targets() -> Iterator[tuple[str, str]]:
    """Give the expression and the legend of every query of the dashboard."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield re.sub(r"\$__rate_interval", "5m", target["expr"]), target["legendFormat"]


def nodes(expression: promql.Expr) -> list[promql.Expr]:
    """Return an expression and all that it is made of."""
    found: list[promql.Expr] = []
    promql.walk(expression, found.append)
    return found


def selectors(expression: promql.Expr) -> list[promql.VectorSelector]:
    ranges = [
        node.vector_selector for node in nodes(expression) if hasattr(node, "vector_selector")
    ]
    plain = [node for node in nodes(expression) if isinstance(node, promql.VectorSelector)]
    return [*ranges, *(one for one in plain if str(one) not in map(str, ranges))]


def labels_of(expression: promql.Expr, known: dict[str, Known]) -> set[str]:
    """Return the labels that the result has."""
    match expression:
        case promql.AggregateExpr():
            return set(expression.modifier.labels) if expression.modifier else set()
        case promql.BinaryExpr():
            return labels_of(expression.lhs, known) | labels_of(expression.rhs, known)
        case promql.ParenExpr():
            return labels_of(expression.expr, known)
        case promql.Call():
            if expression.func.name == "absent":
                return set()
            return set().union(*(labels_of(one, known) for one in expression.args))
        case promql.VectorSelector() | promql.MatrixSelector():
            (selector,) = selectors(expression)
            return set(known[selector.name].labels) if selector.name in known else set()
    return set()


def problems(text: str, known: dict[str, Known]) -> list[str]:
    """Return what is wrong with an expression."""
    try:
        expression = promql.parse(text)
    except ValueError as error:
        return [str(error)]
    found = []
    for selector in selectors(expression):
        if selector.name not in known:
            found.append(f"there is no {selector.name}")
            continue
        labels = known[selector.name].labels
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                found.append(f"{selector.name} has no label {matcher.name}")
            elif "$" not in matcher.value and matcher.value not in labels[matcher.name]:
                found.append(f"{selector.name} has no {matcher.name} {matcher.value}")
    if not found:
        found = [*misused(expression, known), *ungrouped(expression, known)]
    return found


def misused(expression: promql.Expr, known: dict[str, Known]) -> Iterator[str]:
    """Give counters of which no rate is taken, rates of gauges, and quantiles of no buckets."""
    rates = []
    for node in nodes(expression):
        if isinstance(node, promql.Call) and node.func.name in ("rate", "increase"):
            (selector,) = selectors(node)
            rates.append(str(selector))
            if known[selector.name].type == "gauge":
                yield f"{node.func.name} of the gauge {selector.name}"
        if isinstance(node, promql.Call) and node.func.name == "histogram_quantile":
            (selector,) = selectors(node)
            if not selector.name.endswith("_bucket"):
                yield f"a quantile of {selector.name}"
            elif "le" not in labels_of(node.args[1], known):
                yield f"a quantile of {selector.name} without le"
    for selector in selectors(expression):
        if known[selector.name].type != "gauge" and str(selector) not in rates:
            yield f"the counter {selector.name} without a rate"


def ungrouped(expression: promql.Expr, known: dict[str, Known]) -> Iterator[str]:
    """Give groupings by labels that there are not."""
    for node in nodes(expression):
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            for label in set(node.modifier.labels) - labels_of(node.expr, known):
                yield f"grouped by {label}, which there is not"


def wrong_expressions(served: str) -> dict[str, list[str]]:
    """Return what is wrong with the expressions, beside what a host and a reconciliation serve."""
    report = everything()
    exceeded = [
        *reached(report, parse("conflict", failing=True)),
        *reached(report, parse("duplicates:1%", failing=False)),
    ]
    known = {**known_from(served), **known_from(render_prometheus(report, exceeded))}
    assert {name for name in known if not name.startswith("reservation_")} == set()
    described = set(re.findall(r"`(reservation_\w+)`", METRICS.read_text()))
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in known if "batch" in name}
    assert families <= described
    wrong = {}
    for text, names in [
        *((rule["expr"], mentioned(rule)) for rule in rules()),
        *((text, set(re.findall(r"{{(\w+)}}", legend))) for text, legend in targets()),
        *((block.text, set()) for block in blocks(ROOT / "docs/how-to/monitor.md", "promql")),
    ]:
        found = problems(text, known)
        if not found:
            absent = names - labels_of(promql.parse(text), known)
            found = [f"the text names {name}, which the result has not" for name in absent]
        if found:
            wrong[text] = found
    return wrong


def mentioned(rule: dict[str, dict[str, str]]) -> set[str]:
    return set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))


KNOWN = {
    "gauge": Known("gauge", {"state": {"up"}}),
    "things_total": Known("counter", {"outcome": {"dead"}}),
    "time_bucket": Known("histogram", {"le": {"1", "+Inf"}}),
    "time_count": Known("histogram", {}),
}


def test_nobody_is_woken_by_the_lag_of_a_paused_consumer():
    """Every rule about what is not handled in time leaves those out that are paused."""
    late = "reservation_lag_|reservation_next_retry_"
    about = {rule["alert"]: rule["expr"] for rule in rules() if re.search(late, rule["expr"])}
    assert {"ReservationLag", "ReservationBacklogNotShrinking", "ReservationRetryOverdue"} == {
        *about
    }
    left_out = "unless max by (consumer, category) (reservation_paused) == 1"
    assert [name for name, text in about.items() if not text.endswith(left_out)] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("sum(gauge", "unclosed left parenthesis"),
        ("gaugge > 1", "there is no gaugge"),
        ('gauge{level="up"}', "gauge has no label level"),
        ('gauge{state="down"}', "gauge has no state down"),
        ("rate(gauge[5m])", "rate of the gauge gauge"),
        ("things_total > 0", "the counter things_total without a rate"),
        ("sum by (state) (rate(things_total[5m]))", "grouped by state, which there is not"),
        ("histogram_quantile(0.9, rate(time_count[5m]))", "a quantile of time_count"),
        (
            "histogram_quantile(0.9, sum(rate(time_bucket[5m])))",
            "a quantile of time_bucket without le",
        ),
    ],
)
def test_a_wrong_expression_is_found(text, problem):
    """The check that the rules pass finds each kind of mistake."""
    assert problems(text, KNOWN) == [problem]


@pytest.mark.parametrize(
    "text",
    [
        'absent(gauge{state="up"})',
        'sum by (outcome) (rate(things_total{outcome="dead"}[5m])) > 0',
        "histogram_quantile(0.9, sum by (le) (rate(time_bucket[5m])))",
        "time() - max by (state) (gauge) > 3",
    ],
)
def test_a_right_expression_passes(text):
    """The check lets pass what is right."""
    assert problems(text, KNOWN) == []


def test_each_alert_says_what_to_do():
    """Each alert has a severity, a summary, and a link to a heading of the page that helps."""
    for rule in rules():
        assert set(rule) | {"for"} == {"alert", "expr", "for", "labels", "annotations"}, rule
        assert rule["labels"].keys() == {"severity"}, rule
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
        assert set(rule["annotations"]) == {"summary", "runbook_url"}, rule
        url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert url == f"https://git.example/reservation/blob/main/{RUNBOOK.relative_to(ROOT)}"
        assert anchor in anchors(RUNBOOK), rule
        assert f"`{rule['alert']}`" in RUNBOOK.read_text(), rule
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert set(re.findall(r"`(Reservation\w+)`", RUNBOOK.read_text())) == set(names)


def test_the_dashboard_is_one_that_grafana_reads():
    """Grafana's own model takes every field of the dashboard, and panels do not overlap."""
    given = dashboard()
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(given)))
    assert list(lost(given, read)) == []
    panels = given["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [place for panel in panels for place in places(panel["gridPos"])]
    assert len(set(taken)) == len(taken)
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"], panel
            used = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert {one["uid"] for one in used} == {"${datasource}"}
    assert [one["name"] for one in given["templating"]["list"]] == ["datasource", "component"]
    assert all('="$component"' in text for text, _ in targets())


def lost(given: object, read: object, path: str = "") -> Iterator[str]:
    """Give the fields that are not as they were given."""
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            yield from lost(value, read.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for n, value in enumerate(given):
            yield from lost(value, read[n], f"{path}[{n}]")
    elif given != read:
        yield path


def places(at: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Give the cells of the grid that a panel takes."""
    assert at["x"] + at["w"] <= 24
    return (
        (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    )
