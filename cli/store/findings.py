"""``reservation findings``: accept what a reconciliation found, and take that back."""

import json
from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from cli.common.errors import CommandGroup, debug_option
from cli.common.options import database_option, json_option
from cli.common.tables import console
from reservation.maintenance import finding_decisions
from reservation.maintenance.finding_decisions import FindingDecision
from reservation.messages.message import printable
from reservation.postgres.connection import connect
from reservation.store.schema.install import check_installed
from spark_jobs.common.result import VIOLATIONS

_findings = click.argument("findings", metavar="ID...", nargs=-1, required=True)


@click.group(cls=CommandGroup)
@debug_option
def findings() -> None:
    """Accept findings of `reservation reconcile` that need no repair.

    An accepted finding is shown apart in the reports and does not change the exit status. A new
    finding does, even of the same key, because it has an id of its own. Every decision is kept,
    with the database user, the time and the reason.

    \b
    Example:
      reservation findings accept conflict-4711-9f8e7d6c --reason "the sender confirmed 20"
    """


@findings.command("accept")
@_findings
@click.option("--reason", metavar="TEXT", required=True, help="Why it is accepted; it is stored.")
@database_option
@json_option
@debug_option
def accept_command(
    findings: tuple[str, ...], reason: str, database_url: str, as_json: bool
) -> None:
    """Accept findings by their ids, as the report of `reservation reconcile` shows them.

    Needs the rights of an operator: `reservation store grants operator ROLE`.

    \b
    Examples:
      reservation findings accept conflict-4711-9f8e7d6c --reason "the sender confirmed 20"
      reservation reconcile bank:account --json | jq -r '.samples[].id' |
        xargs reservation findings accept --reason "known since the move"
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        decisions = finding_decisions.accept(connection, findings, reason, VIOLATIONS)
    _print_decided("Accepted", decisions, as_json)


@findings.command("reopen")
@_findings
@click.option("--reason", metavar="TEXT", help="Why it is open again; it is stored.")
@database_option
@json_option
@debug_option
def reopen_command(
    findings: tuple[str, ...], reason: str | None, database_url: str, as_json: bool
) -> None:
    """Reopen accepted findings, which then count again.

    Needs the rights of an operator: `reservation store grants operator ROLE`.

    \b
    Example:
      reservation findings reopen conflict-4711-9f8e7d6c --reason "30 was meant after all"
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        decisions = finding_decisions.reopen(connection, findings, reason)
    _print_decided("Reopened", decisions, as_json)


@findings.command("list")
@click.option("--all", "every", is_flag=True, help="Every decision, also those that were replaced.")
@database_option
@json_option
@debug_option
def list_command(every: bool, database_url: str, as_json: bool) -> None:
    """List the findings that are accepted.

    \b
    Examples:
      reservation findings list
      reservation findings list --all --json | jq '.decisions[].finding'
    """
    with connect(database_url, autocommit=True) as connection:
        check_installed(connection)
        decisions = (finding_decisions.history if every else finding_decisions.accepted)(connection)
    if as_json:
        click.echo(_as_json(decisions))
    elif not decisions:
        click.echo("No finding is accepted." if not every else "Nothing was decided yet.")
    else:
        console().print(_table(decisions))


def _print_decided(what: str, decisions: Sequence[FindingDecision], as_json: bool) -> None:
    if as_json:
        click.echo(_as_json(decisions))
    else:
        click.echo(f"{what}: {', '.join(decision.finding for decision in decisions)}.")


def _as_json(decisions: Sequence[FindingDecision]) -> str:
    return json.dumps(
        {
            "decisions": [
                {
                    "finding": decision.finding,
                    "accepted": decision.is_accepted,
                    "reason": decision.reason,
                    "decidedBy": decision.decided_by,
                    "decidedAt": decision.decided_at.isoformat(),
                    "onBehalfOf": decision.on_behalf_of,
                }
                for decision in decisions
            ]
        }
    )


def _table(decisions: Sequence[FindingDecision]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("finding", "decision", "by", "at", "reason"):
        table.add_column(title, overflow="fold", no_wrap=title == "finding")
    for decision in decisions:
        cells = [
            decision.finding,
            "accepted" if decision.is_accepted else "reopened",
            _by(decision),
            f"{decision.decided_at:%Y-%m-%d %H:%M:%S%z}",
            decision.reason or "",
        ]
        table.add_row(*[Text(printable(cell)) for cell in cells])
    return table


def _by(decision: FindingDecision) -> str:
    asked = decision.on_behalf_of
    return decision.decided_by if asked is None else f"{asked} (as {decision.decided_by})"
