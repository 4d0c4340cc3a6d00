"""A reconciliation as people read it on a terminal."""

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from reservation.message import printable
from spark_jobs.reconcile import Reconciled
from spark_jobs.run import Report

_COUNTS = (
    ("commands", "commands"),
    ("keys", "distinct keys"),
    ("duplicates", "duplicates"),
    ("reserved", "reserved"),
    ("pending", "pending"),
    ("missing", "missing"),
    ("dead", "dead letters"),
    ("orphans", "orphans"),
    ("multiple", "more than one message"),
    ("conflicts", "conflicts"),
    ("keyless", "without a key"),
)
_VIOLATIONS = frozenset({"missing", "orphans", "multiple", "conflicts"})


def render(report: Report) -> RenderableType:
    """Return the verdict, a table of the counts, and samples of what needs attention."""
    parts: list[RenderableType] = [_table([*report.categories, *report.initiations])]
    if report.samples:
        parts.append(_samples(report))
    parts.append(_verdict(report))
    return Group(*parts)


def print_report(report: Report, console: Console) -> None:
    """Print a report to a console."""
    console.print(render(report))


def _verdict(report: Report) -> Text:
    if report.in_order:
        return Text.assemble(
            ("In order: ", "bold green"),
            "every command is reserved once, still to be read, or a dead letter.",
        )
    return Text.assemble(
        ("Not in order: ", "bold red"),
        "the counts in red need attention; --output DIR writes every row of them as Parquet.",
    )


def _table(reconciled: list[Reconciled]) -> Table:
    table = Table(title_justify="left")
    table.add_column("")
    for one in reconciled:
        heading = Text(f"{one.command_category}\n→ {one.reservation_category}")
        table.add_column(heading, justify="right", overflow="fold")
    for name, label in _COUNTS:
        cells = [_count(name, getattr(one, name)) for one in reconciled]
        table.add_row(Text(label), *cells)
    return table


def _count(name: str, value: int) -> Text:
    style = "bold red" if value and name in _VIOLATIONS else ""
    return Text(f"{value:,}", style=style)


def _samples(report: Report) -> Table:
    table = Table(title=f"{len(report.samples)} of the rows that need attention")
    for column in ("finding", "stream", "type", "global position", "message id"):
        table.add_column(column, overflow="fold")
    for sample in report.samples:
        table.add_row(
            sample["finding"],
            Text(printable(sample["stream_name"])),
            Text(printable(sample["type"])),
            str(sample["global_position"]),
            str(sample["message_id"]),
        )
    return table
