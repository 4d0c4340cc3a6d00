"""A report for a terminal."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_jobs.common.result import (
    CommandCounts,
    EffectCounts,
    Events,
    Finding,
    Latency,
    Reissues,
    Report,
    SubscriptionCounts,
)
from spark_jobs.report.thresholds import ExceededThreshold, in_order
from spark_jobs.report.words import (
    ALARMING,
    COUNTS,
    EFFECTS,
    EVENTS,
    STAGES,
    SUBSCRIPTIONS,
    deleted,
    differences,
    duration,
    key,
    shown,
    since,
    type_,
    untimed,
)


def render(report: Report, reached: Sequence[ExceededThreshold]) -> RenderableType:
    """Return the counts, what else was measured, samples, the thresholds and the verdict."""
    parts: list[RenderableType] = []
    if report.since is not None:
        parts.append(Text(since(report.since)))
    if report.categories:
        headings = [
            f"{counts.command_category}\n→ {counts.reservation_category}"
            for counts in report.categories
        ]
        parts.append(_counts(headings, report.categories, COUNTS))
    if report.effects:
        parts.append(
            _counts([effects.category for effects in report.effects], report.effects, EFFECTS)
        )
    if report.subscriptions:
        headings = [counts.category for counts in report.subscriptions]
        parts.append(_counts(headings, report.subscriptions, SUBSCRIPTIONS))
    if report.events.events:
        parts.append(_counts([report.events.category], [report.events], EVENTS))
    latency = [
        measured for measured in report.latency if measured.type is None and measured.hour is None
    ]
    if latency:
        parts.append(_latency(latency))
    if report.reissues is not None:
        parts.append(_reissues(report.reissues))
        if report.reissues.untimed:
            parts.append(Text(untimed(report.reissues), style="bold yellow"))
    if report.deleted:
        parts.append(Text(deleted(report.deleted), style="bold red"))
    if report.findings:
        parts.append(_samples(report))
    if report.accepted:
        parts.append(_accepted(report))
    parts.extend(_threshold(exceeded) for exceeded in reached)
    if report.snapshot_held is not None:
        held = duration(report.snapshot_held)
        parts.append(Text(f"The snapshot of the store was held for {held}."))
    parts.append(_verdict(report, reached))
    return Group(*parts)


def print_report(report: Report, reached: Sequence[ExceededThreshold], console: Console) -> None:
    """Print a report, and the thresholds that it exceeds, to a console."""
    console.print(render(report, reached))


def _verdict(report: Report, reached: Sequence[ExceededThreshold]) -> Text:
    if in_order(reached):
        said, every = [], "every" if report.since is None else "every new"
        if report.categories or not report.subscriptions:
            said.append(f"{every} command is reserved once, still to be read, or a dead letter")
        if report.subscriptions:
            said.append(
                f"{every} subscribed message is handled, still to be read, or a dead letter"
            )
        return Text.assemble(("In order: ", "bold green"), "; ".join(said) + ".")
    return Text.assemble(
        ("Not in order: ", "bold red"),
        "the counts in red need attention; --findings DIR writes all their rows as Parquet.",
    )


def _threshold(reached: ExceededThreshold) -> Text:
    style = "bold red" if reached.threshold.failing else "bold yellow"
    return Text.assemble((f"{reached.heading}: ", style), f"{reached}")


def _counts(
    headings: Sequence[str],
    columns: Sequence[CommandCounts | EffectCounts | SubscriptionCounts | Events],
    rows: Sequence[tuple[str, str]],
) -> Table:
    """Return a table with a column for each category and a row for each count."""
    table = Table()
    table.add_column("")
    for heading in headings:
        lines = "\n".join(shown(line) for line in heading.split("\n"))
        table.add_column(Text(lines), justify="right", overflow="fold")
    for name, label in rows:
        table.add_row(Text(label), *(_count(name, getattr(column, name)) for column in columns))
    return table


def _count(name: str, value: int) -> Text:
    return Text(f"{value:,}", style="bold red" if value and name in ALARMING else "")


def _latency(latency: Sequence[Latency]) -> Table:
    table = Table()
    for column in ("latency", "commands", "p50", "p95", "p99", "longest"):
        table.add_column(column, justify="left" if column == "latency" else "right")
    for stage, label in STAGES:
        for measured in latency:
            if measured.stage == stage:
                spans = (
                    duration(span)
                    for span in (measured.p50, measured.p95, measured.p99, measured.max)
                )
                table.add_row(label, f"{measured.count:,}", *spans)
    return table


def _reissues(reissues: Reissues) -> Text:
    if reissues.longest_gap is None:
        return Text("No key was sent again.")
    return Text(
        f"The longest time between two sends of one key is {duration(reissues.longest_gap)} "
        f"({shown(reissues.longest_gap_key)}); keep what recognizes a reissue for longer than that."
    )


def _accepted(report: Report) -> Table:
    table = _table_of_findings("Accepted; these do not count", "by", "reason")
    for one in report.accepted:
        table.add_row(*_cells(one.finding), Text(shown(one.accepted_by)), Text(shown(one.reason)))
    return table


def _samples(report: Report) -> Table:
    title = f"{len(report.findings)} of the rows that need attention"
    differ = ["differs in"] if any(one.differences for one in report.findings) else []
    table = _table_of_findings(title, *differ)
    for finding in report.findings:
        table.add_row(*_cells(finding), *(Text(differences(finding)) for _ in differ))
    return table


def _table_of_findings(title: str, *more: str) -> Table:
    """Return an empty table, which leaves out what ids contain: positions, and each message."""
    table = Table(title=title)
    table.add_column("id", no_wrap=True)  # it is copied from here
    for column in ("key", "type", "stream", *more):
        table.add_column(column, overflow="fold")
    return table


def _cells(finding: Finding) -> tuple[Text, ...]:
    texts = (finding.id, key(finding), type_(finding), shown(finding.stream_name))
    return tuple(map(Text, texts))
