"""A check's report, as one JSON object."""

from typing import Any

from consumers.checking.report import CheckedType, CheckFinding, CheckReport, FieldCount


# Any: the values of JSON.
def as_json(report: CheckReport) -> dict[str, Any]:
    """Return a report as `reservation check --json` prints it."""
    return {
        "component": report.component,
        "time": report.time.isoformat(),
        "storeId": str(report.store_id),
        "inOrder": report.in_order,
        "full": report.full,
        "sample": report.sample,
        "types": [_type(one) for one in report.types],
        "findings": [_finding(one) for one in report.findings],
    }


def _type(one: CheckedType) -> dict[str, Any]:
    return {
        "category": one.category,
        "role": one.role.value,
        "type": one.type,
        "declared": one.knowledge.value,
        "messages": one.messages,
        "exact": one.exact,
        "lookedAt": one.looked_at,
        "unreadable": one.unreadable,
        "firstUnreadable": one.first_unreadable,
        "problem": one.problem,
        "missingFields": _fields(one.missing),
        "addedFields": _fields(one.added),
    }


def _fields(fields: tuple[FieldCount, ...]) -> list[dict[str, Any]]:
    return [{"field": one.field, "messages": one.messages} for one in fields]


def _finding(one: CheckFinding) -> dict[str, Any]:
    return {
        "kind": one.kind.value,
        "severity": one.severity,
        "category": one.category,
        "name": one.name,
        "count": one.count,
        "text": one.text,
        "action": one.action,
    }
