"""What people have decided about the findings of reconciliations.

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

# Beyond every number.
_LAST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """The message of a finding.

    Attributes:
        id: its id.
        stream_name: its stream.
        type: its type.
        time: when it was stored, in UTC.
    """

    id: str
    stream_name: str
    type: str
    time: datetime


class FindingError(ReservationError):
    """A finding cannot be accepted or reopened as requested."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What somebody decided about a finding.

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
) -> list[Decision]:
    """Accept findings: all of them, or none.

    Args:
        connection: in autocommit, of a role that may accept.
        findings: their ids.
        reason: why they are accepted.
        kinds: the kinds of findings that there are.
        on_behalf_of: who asked; None for the one who is connected.

    Raises:
        FindingError: an id is none, a finding is accepted already, or the reason is empty.
        MissingRightError: the role may not accept.
    """
    if not reason.strip():
        raise FindingError("To accept a finding needs a reason, and the one given is empty")
    for finding in findings:
        if not is_id(finding, kinds):
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
) -> list[Decision]:
    """Take back that findings were accepted: all of them, or none.

    Args:
        connection: in autocommit, of a role that may accept.
        findings: their ids.
        reason: why; None for no reason.
        on_behalf_of: who asked; None for the one who is connected.

    Raises:
        FindingError: a finding is not accepted.
        MissingRightError: the role may not accept.
    """
    given = (reason or "").strip() or None
    return _decide(connection, findings, is_accepted=False, reason=given, on_behalf_of=on_behalf_of)


def accepted(connection: Connection[Any]) -> list[Decision]:
    """Return the last decision about each finding that is accepted, the first one first."""
    return _fetch(connection, "accepted", {})


def history(connection: Connection[Any]) -> list[Decision]:
    """Return every decision, the first one first."""
    return _fetch(connection, "history", {})


def page(
    connection: Connection[Any],
    limit: int,
    *,
    key: int | None = None,
    backward: bool = False,
) -> list[tuple[int, Decision]]:
    """Return the last decisions by which findings are accepted, the last one first.

    Args:
        connection: to the store.
        limit: how many at most.
        key: begin behind the decision of this number; None for the last one.
        backward: return those before that decision instead, those next to it first.

    Returns:
        The decisions, each with its number.
    """
    edge = _LAST if key is None else key
    query = _QUERIES["newer" if backward else "older"]
    with translated():
        rows = connection.execute(query, {"edge": edge, "limit": limit}).fetchall()
    return [(int(number), Decision(*row)) for number, *row in rows]


def of_findings(connection: Connection[Any], findings: Collection[str]) -> dict[str, Decision]:
    """Return the last decision about each of some findings, by their ids."""
    found = _fetch(connection, "of_findings", {"findings": list(findings)})
    return {decision.finding: decision for decision in found}


def of_finding(connection: Connection[Any], finding: str) -> list[Decision]:
    """Return the last decisions about a finding, the last one first."""
    return _fetch(connection, "of_finding", {"finding": finding})


def is_id(text: str, kinds: Collection[str]) -> bool:
    """Return whether a text can be the id of a finding of one of some kinds."""
    match = _ID.fullmatch(text)
    return match is not None and match["kind"] in kinds


def message_of(connection: Connection[Any], finding: str) -> FoundMessage | None:
    """Return the message at the position that a finding's id names; None if it is not there."""
    match = _ID.fullmatch(finding)
    position = 0 if match is None else int(match["position"])
    with translated():
        rows = connection.execute(_QUERIES["message"], {"global_position": position}).fetchall()
    return FoundMessage(*rows[0]) if rows else None


def _decide(
    connection: Connection[Any],
    findings: Collection[str],
    *,
    is_accepted: bool,
    reason: str | None,
    on_behalf_of: str | None,
) -> list[Decision]:
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


def _fetch(connection: Connection[Any], query: str, values: dict[str, Any]) -> list[Decision]:
    with translated():
        rows = connection.execute(_QUERIES[query], values).fetchall()
    return [Decision(*row) for row in rows]
