"""A check's report, as one table: a row for each type, and one for everything else found."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from consumers.checking.report import CheckedType, CheckFinding, CheckReport
from reservation.inspection.tally import Knowledge
from reservation.messages.message import printable

_STYLES = {"finding": "bold red", "note": "yellow"}


def render(report: CheckReport) -> RenderableType:
    """Return a report as a table, with a line that sums it up."""
    table = Table()
    for heading, right in (
        ("category", False),
        ("type, process or role", False),
        ("messages", True),
        ("looked at", True),
        ("result", False),
        ("what to do", False),
    ):
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    by_type: dict[tuple[str | None, str | None], list[CheckFinding]] = {}
    for finding in report.findings:
        by_type.setdefault((finding.category, finding.name), []).append(finding)
    for one in report.types:
        _add_type(table, one, by_type.pop((one.category, one.type), []))
    for findings in by_type.values():
        for finding in findings:
            _add(table, finding, finding.category, finding.name)
    return Group(table, Text(_summary(report), style="green" if report.in_order else "bold red"))


def _add_type(table: Table, one: CheckedType, findings: list[CheckFinding]) -> None:
    """Add the row of a type, with what was found about it in further rows."""
    name = "others" if one.type is None else printable(one.type)
    messages = f"{'' if one.exact else '~'}{one.messages:,}"
    first = findings[0] if findings else None
    if first is None:
        result = {Knowledge.IGNORED: "ignored", Knowledge.UNKNOWN: "none stored"}.get(
            one.knowledge, "in order" if one.looked_at else "not looked at"
        )
        text = Text(result if one.messages or one.looked_at else "none stored", style="green")
    else:
        text = Text(first.text, style=_STYLES[first.severity])
    table.add_row(
        Text(printable(one.category)),
        Text(name),
        Text(messages),
        Text(f"{one.looked_at:,}"),
        text,
        Text("" if first is None else first.action),
    )
    for finding in findings[1:]:
        _add(table, finding, None, None)


def _add(table: Table, finding: CheckFinding, category: str | None, name: str | None) -> None:
    table.add_row(
        Text(printable(category or "")),
        Text(printable(name or "")),
        Text("" if name or category or finding.count is None else f"{finding.count:,}"),
        Text(""),
        Text(finding.text, style=_STYLES[finding.severity]),
        Text(finding.action),
    )


def _summary(report: CheckReport) -> str:
    found = sum(finding.severity == "finding" for finding in report.findings)
    looked = (
        "Every message was decoded."
        if report.full
        else f"Up to {report.sample:,} messages of each category were decoded; --full decodes all."
    )
    if not found:
        return f"In order. {looked}"
    return f"{found} finding{'' if found == 1 else 's'} to be looked at first. {looked}"
