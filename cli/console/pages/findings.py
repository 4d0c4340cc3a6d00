"""Findings of reconciliations: accepting them, taking that back, and those that are accepted."""

from urllib.parse import urlencode

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cli.console.console import action, actor_of, console_of, see
from cli.console.pages.reconciliations import ENTRY, SIZE, number_in
from cli.console.reading.keyset import Cursor, slice_of
from reservation.maintenance import finding_decisions
from reservation.maintenance.finding_decisions import FindingError
from spark_jobs.common.result import VIOLATIONS
from spark_jobs.report.words import KINDS

FINDING = f"{ENTRY.path}/finding"
ACCEPTED = f"{ENTRY.path}/accepted"

LONGEST_REASON = 2_000


def show(request: Request) -> Response:
    """Show one finding, what was decided about it, and the form to decide."""
    return _shown(request, request.query_params)


def show_accepted(request: Request) -> Response:
    """Show the findings that are accepted."""
    console = console_of(request)
    cursor = Cursor.of(request.query_params, parts=1)
    key = number_in(cursor)
    with console.reading() as connection:
        rows = finding_decisions.page(
            connection, SIZE + 1, key=key, backward=cursor.backward and key is not None
        )
    return console.page(
        request,
        "accepted_findings.html",
        page=ENTRY,
        decisions=slice_of(rows, cursor, SIZE, key=lambda row: [row[0]]),
        finding_path=FINDING,
    )


def decide(request: Request, form: FormData) -> Response:
    """Accept a finding, or take that back; what is so already stays."""
    finding, reason = str(form.get("id", "")), str(form.get("why", "")).strip()
    accepts = form.get("action") == "accept"
    if not reason or len(reason) > LONGEST_REASON or "\0" in reason:
        return _shown(request, form, problem="Give a reason; it is kept.", status=422)
    actor = actor_of(request) or None
    with console_of(request).acting() as connection:
        try:
            if accepts:
                finding_decisions.accept(
                    connection, [finding], reason, VIOLATIONS, on_behalf_of=actor
                )
            else:
                finding_decisions.reopen(connection, [finding], reason, on_behalf_of=actor)
        except FindingError as error:
            last = next(iter(finding_decisions.of_finding(connection, finding)), None)
            # A form that is sent twice has the result of the first.
            if last is None or (last.is_accepted, last.reason, last.on_behalf_of) != (
                accepts,
                reason,
                actor,
            ):
                return _shown(request, form, problem=f"{error}.", status=409)
    return see(f"{FINDING}?{urlencode({'id': finding})}")


def _shown(
    request: Request,
    parameters: QueryParams | FormData,
    *,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    console = console_of(request)
    finding = str(parameters.get("id", ""))
    if not finding_decisions.is_id(finding, VIOLATIONS):
        return console.page(
            request,
            "problem.html",
            status=404,
            title="There is no such finding",
            text="Choose one from a report.",
            retry=False,
        )
    with console.reading() as connection:
        decisions = finding_decisions.of_finding(connection, finding)
        message = finding_decisions.message_of(connection, finding)
    name, position, _ = finding.rsplit("-", 2)
    return console.page(
        request,
        "finding.html",
        status=status,
        page=ENTRY,
        finding=finding,
        kind=next(kind for kind in KINDS if kind.name == name),
        position=position,
        message=message,
        decisions=decisions,
        is_accepted=bool(decisions and decisions[0].is_accepted),
        why=str(parameters.get("why", "")),
        longest=LONGEST_REASON,
        problem=problem,
    )


ROUTES = [
    Route(FINDING, show, methods=["GET"]),
    Route(FINDING, action(decide), methods=["POST"]),
    Route(ACCEPTED, show_accepted),
]
