"""Decisions of people about the findings of reconciliations.

A finding that somebody has looked at, and that needs no mending, is accepted: reports show it apart
from then on, and it no longer changes the exit status. Decisions are only added, so the history of
a finding stays; the last one counts. The server notes who decided, and when.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import Connection

from reservation.errors import MissingRightError, ReservationError
from reservation.postgres.error_translation import translated
from reservation.postgres.queries import load_queries

_QUERIES = load_queries("reservation.maintenance", "finding_decisions.sql")

# What the reconciliation names a finding by: its kind, the global position of its message, and a
# hash of the component and the message's id.
_ID = re.compile(r"(?P<kind>[a-z]+(-[a-z]+)*)-(?P<position>[0-9]{1,18})-[0-9a-f]{8}")


class FindingError(ReservationError):
    """A finding cannot be accepted or reopened as requested."""


@dataclass(frozen=True, slots=True)
class FindingDecision:
    """A person's decision about a finding.

    Attributes:
        finding: the finding's id, such as ``conflict-4711-9f8e7d6c``.
        is_accepted: whether it is accepted; else it was reopened.
        reason: why; None where none was given, which only reopening allows.
        decided_by: the database user.
        decided_at: when.
        on_behalf_of: who asked the program that was connected, as that program says; None where it
            says nothing.
    """

    finding: str
    is_accepted: bool
    reason: str | None
    decided_by: str
    decided_at: datetime
    on_behalf_of: str | None = None


def accept(
    connection: Connection[Any],
    findings: Collection[str],
    reason: str,
    kinds: Collection[str],
    *,
    on_behalf_of: str | None = None,
) -> list[FindingDecision]:
    """Accept findings: all of them, or none."""
    if not reason.strip():
        raise FindingError("A reason is needed to accept a finding, and the one given is empty")
    for finding in findings:
        match = _ID.fullmatch(finding)
        if match is None or match["kind"] not in kinds:
            raise FindingError(
                f"{finding!r} is not the id of a finding; `reservation reconcile` shows the ids, "
                f"such as conflict-4711-9f8e7d6c"
            )
    return _decide(
        connection,
        findings,
        is_accepted=True,
        reason=reason.strip(),
        on_behalf_of=on_behalf_of,
    )


def reopen(
    connection: Connection[Any],
    findings: Collection[str],
    reason: str | None = None,
    *,
    on_behalf_of: str | None = None,
) -> list[FindingDecision]:
    """Take back that findings were accepted: all of them, or none."""
    given = (reason or "").strip() or None
    return _decide(connection, findings, is_accepted=False, reason=given, on_behalf_of=on_behalf_of)


def accepted(connection: Connection[Any]) -> list[FindingDecision]:
    """Return the last decision about each finding that is accepted, the first one first."""
    return _fetch(connection, "accepted", {})


def history(connection: Connection[Any]) -> list[FindingDecision]:
    """Return every decision, the first one first."""
    return _fetch(connection, "history", {})


def _decide(
    connection: Connection[Any],
    findings: Collection[str],
    *,
    is_accepted: bool,
    reason: str | None,
    on_behalf_of: str | None,
) -> list[FindingDecision]:
    wanted = list(dict.fromkeys(findings))
    with translated():
        ((role, may),) = connection.execute(_QUERIES["may_decide"]).fetchall()
    if not may:
        raise MissingRightError(
            f"The role {role} may not accept findings; let the owner of the store run "
            f"`reservation store grants operator {role}`, or connect as an operator"
        )
    with translated(), connection.transaction():
        connection.execute(_QUERIES["lock"])
        known = {decision.finding: decision for decision in accepted(connection)}
        for finding in wanted:
            before = known.get(finding)
            if is_accepted and before is not None:
                raise FindingError(
                    f"The finding {finding} is accepted already, by {before.decided_by}; nothing "
                    f"was changed"
                )
            if not is_accepted and before is None:
                raise FindingError(f"The finding {finding} is not accepted; nothing was changed")
        values = {
            "findings": wanted,
            "is_accepted": is_accepted,
            "reason": reason,
            "on_behalf_of": on_behalf_of,
        }
        return _fetch(connection, "decide", values)


def _fetch(
    connection: Connection[Any], query: str, values: dict[str, Any]
) -> list[FindingDecision]:
    with translated():
        rows = connection.execute(_QUERIES[query], values).fetchall()
    return [FindingDecision(*row) for row in rows]
