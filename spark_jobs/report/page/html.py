"""A report as one self-contained page, without scripts, and without external fonts or pictures."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from xml.etree.ElementTree import Element

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from spark_jobs.common.result import Finding, Latency, Report
from spark_jobs.report import words
from spark_jobs.report.page import charts, flow
from spark_jobs.report.page.svg import markup
from spark_jobs.report.thresholds import ExceededThreshold
from spark_jobs.report.words import KINDS, STAGES, FindingKind

# How many rows of a list the page shows; the JSON object and the Parquet files hold all.
ROWS = 12
SENDERS = 30
BURSTS = 10
ACCEPTED = 50


@dataclass(frozen=True, slots=True)
class FindingRows:
    """One kind of finding with the rows that are shown of it.

    Attributes:
        kind: what it is.
        count: how many there are.
        rows: some of them.
        query: the query that fetches these rows from the store; empty without any.
    """

    kind: FindingKind
    count: int
    rows: Sequence[Finding]
    query: str

    @property
    def differ(self) -> bool:
        """Whether it is known in what they differ from others."""
        return any(row.differences for row in self.rows)


def render_html(report: Report, reached: Sequence[ExceededThreshold]) -> str:
    """Return a report, and the thresholds that it exceeds, as a page."""
    style = _file("page.css")
    found = _found(report)
    way, subscribed = flow.stages(report), flow.subscribed_stages(report)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            style=Markup(style),  # noqa: S704  a file of this package
            policy=content_policy(style),
            verdict=words.verdict(report, reached),
            reached=reached,
            flow=_both(lambda narrow: flow.draw(way, narrow=narrow)) if _flows(way) else None,
            has_commands=bool(report.categories),
            subscribed_flow=_subscribed_flow(subscribed) if _flows(subscribed) else None,
            latency=_latency_pictures(report.latency),
            latency_rows=_latency_rows(report.latency),
            volume=_both(lambda narrow: charts.draw_volume(report.volume, narrow=narrow))
            if report.volume
            else None,
            senders=markup(charts.draw_senders(report.reissues.senders))
            if report.reissues and any(sender.duplicates for sender in report.reissues.senders)
            else None,
            most_senders=SENDERS,
            most_bursts=BURSTS,
            most_accepted=ACCEPTED,
            found=found,
            anchors={one.kind.name for one in found},
            values=any(
                difference.what == "field" and difference.command is not None
                for finding in report.findings
                for difference in finding.differences
            ),
        )
    )


def content_policy(style: str) -> str:
    """Return the content policy of a page: only this style sheet is allowed."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def inspecting(rows: Sequence[Finding]) -> str:
    """Return the query for these rows; only numbers are inserted."""
    numbers = ", ".join(str(int(row.global_position)) for row in rows)
    if not numbers:
        return ""
    condition = f"IN ({numbers})" if len(rows) > 1 else f"= {numbers}"
    table = "message_store.messages"
    return f"SELECT * FROM {table} WHERE global_position {condition}"  # noqa: S608  numbers only


def _found(report: Report) -> list[FindingRows]:
    """Return the kinds with findings."""
    found = []
    for kind in KINDS:
        rows = [row for row in report.findings if row.finding == kind.name][:ROWS]
        count = report.outstanding(kind.name)
        if count or rows:
            found.append(FindingRows(kind, count, rows, inspecting(rows)))
    return found


def _flows(way: Sequence[flow.FlowStage]) -> bool:
    return any(stage.count for stage in way)


def _subscribed_flow(way: Sequence[flow.FlowStage]) -> Markup:
    return _both(lambda narrow: flow.draw(way, narrow=narrow, title="From message to effect"))


def _both(draw: Callable[[bool], Element]) -> Markup:
    """Return a picture for wide pages and one for narrow ones; the style sheet shows one."""
    return markup(draw(False)) + markup(draw(True))


def _latency_pictures(latency: Sequence[Latency]) -> list[tuple[str, Markup]]:
    """Return a title and a picture for each stage whose hours are known."""
    pictures = []
    for stage, title in STAGES:
        hours = [
            measured
            for measured in latency
            if measured.stage == stage and measured.type is None and measured.hour is not None
        ]
        if hours:
            pictures.append((title, _latency_picture(hours, title)))
    return pictures


def _latency_picture(hours: Sequence[Latency], title: str) -> Markup:
    return _both(lambda narrow: charts.draw_latency(hours, f"Latency {title}", narrow=narrow))


def _latency_rows(latency: Sequence[Latency]) -> list[tuple[str, Latency]]:
    """Return what was measured of all hours, by stage, of all types first."""
    rows: list[tuple[str, Latency]] = []
    for stage, title in STAGES:
        of_stage = [
            measured for measured in latency if measured.stage == stage and measured.hour is None
        ]
        of_stage.sort(key=lambda one: (one.type is not None, -one.count, one.type or ""))
        rows.extend((title, measured) for measured in of_stage)
    return rows


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Return the environment of the template: all values are escaped, and none may be missing."""
    environment = Environment(
        loader=FunctionLoader(_file),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=lambda count: f"{count:,}",
        shown=words.shown,
        differences=words.differences,
        untimed=words.untimed,
        at=words.at,
        duration=words.duration,
        key=words.key,
        type=words.type_,
    )
    environment.globals.update(
        COUNTS=words.COUNTS,
        EFFECTS=words.EFFECTS,
        SUBSCRIPTIONS=words.SUBSCRIPTIONS,
        EVENTS=words.EVENTS,
        ALARMING=words.ALARMING,
    )
    return environment
