"""The page *reconciliations*: the reports that were stored, and the findings of each."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import Entry, console_of
from cli.console.reading.findings_chart import MOST, chart, found
from cli.console.reading.keyset import Cursor, slice_of
from reservation.maintenance import finding_decisions, stored_reports
from spark_jobs.report.words import COUNTS, EFFECTS, KINDS, SUBSCRIPTIONS

ENTRY = Entry("reconciliations", "Reconciliations", "/reconciliations", "r")
REPORT = f"{ENTRY.path}/report/{{number}}"

SIZE = 30

# Findings that are shown of one report; it holds 20 of each kind, and all that were accepted.
_SHOWN = 500

_LARGEST = 2**63


def show(request: Request) -> Response:
    """Show the reports of a component, and how its findings became more or fewer."""
    console = console_of(request)
    cursor = Cursor.of(request.query_params, parts=1)
    with console.reading() as connection:
        components = stored_reports.components(connection)
        wanted = request.query_params.get("component", "")
        component = wanted if wanted in components else next(iter(components), None)
        reports, last = [], []
        if component is not None:
            key = number_in(cursor)
            reports = stored_reports.page(
                connection,
                component,
                SIZE + 1,
                key=key,
                backward=cursor.backward and key is not None,
            )
            last = stored_reports.page(connection, component, MOST)
    return console.page(
        request,
        "reconciliations.html",
        page=ENTRY,
        components=components,
        component=component,
        reports=slice_of(reports, cursor, SIZE, key=lambda report: [report.number]),
        chart=chart(last[::-1]),
        found=found,
    )


def show_report(request: Request) -> Response:
    """Show one report: what was counted, and the findings with the stories of their keys."""
    console = console_of(request)
    number = _number(request.path_params["number"])
    with console.reading() as connection:
        stored = None if number is None else stored_reports.read(connection, number)
        if stored is None:
            return console.page(
                request,
                "problem.html",
                status=404,
                title="There is no such report",
                text="It was removed by reservation prune, or never was there.",
                retry=False,
            )
        report, text = stored
        content = _Content.of(text)
        samples, accepted = content.rows("samples")[:_SHOWN], content.rows("accepted")
        decisions = finding_decisions.of_findings(connection, [one["id"] for one in samples])
    return console.page(
        request,
        "reconciliation.html",
        page=ENTRY,
        report=report,
        found=found(report),
        counts=_counted(content),
        thresholds=content.rows("thresholds"),
        kinds={kind.name: kind for kind in KINDS},
        samples=samples,
        accepted=accepted[:_SHOWN],
        more=max(len(accepted) - _SHOWN, 0),
        decisions=decisions,
        story=story,
    )


def story(finding: dict[str, Any]) -> str | None:
    """Return what the story of a finding is looked up by: its key, or its message."""
    for name in ("keyStream", "messageId", "streamName"):
        value = finding.get(name)
        if isinstance(value, str) and value:
            return value
    return None


class _Content:
    """What a report holds. Whoever may store one decides on that, so nothing is relied on."""

    def __init__(self, content: Any) -> None:  # Any: JSON
        self._content = content

    @classmethod
    def of(cls, text: str) -> "_Content":
        """Return what a report's text holds; nothing if Python does not read it.

        The store takes numbers of more digits, and values nested more deeply.
        """
        try:
            return cls(json.loads(text))
        except (ValueError, RecursionError):
            return cls({})

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return a list of objects that have an id, if they are findings."""
        rows = self._content.get(name)
        found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        if name in ("samples", "accepted"):
            return [row for row in found if isinstance(row.get("id"), str)]
        return found


def _counted(content: _Content) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return what was counted of each category, under its title."""
    tables = []
    for name, columns in (
        ("categories", COUNTS),
        ("initiations", COUNTS),
        ("effects", EFFECTS),
        ("subscriptions", SUBSCRIPTIONS),
    ):
        for row in content.rows(name):
            title = str(row.get("category", row.get("commandCategory", "")))
            into = row.get("reservationCategory")
            numbers = [(label, row.get(_camel(field))) for field, label in columns]
            kept = [(label, n) for label, n in numbers if isinstance(n, int) and n]
            tables.append((f"{title} → {into}" if into else title, kept))
    return tables


def _camel(field: str) -> str:
    first, *others = field.split("_")
    return first + "".join(word.capitalize() for word in others)


def _number(text: str) -> int | None:
    """Return the number of a report in an address; None if there can be none of it."""
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    number = int(text) if is_number else _LARGEST
    return number if number < _LARGEST else None


def number_in(cursor: Cursor) -> int | None:
    """Return the number that a cursor holds, None for the first page."""
    key = cursor.key[0] if cursor.key else None
    return key if isinstance(key, int) else None


ROUTES = [Route(ENTRY.path, show), Route(REPORT, show_report)]
