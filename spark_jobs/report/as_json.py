"""A report as a JSON object; ``docs/reference/schemas/reconcile.schema.json`` describes it."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from reservation.serialization.codec import camel_case
from spark_jobs.common.result import Report
from spark_jobs.report.thresholds import ExceededThreshold, in_order

# The fields that are time spans.
_SPANS = {"p50", "p95", "p99", "max", "longest_gap", "longest_span"}


def as_json(report: Report, reached: Sequence[ExceededThreshold]) -> dict[str, Any]:
    """Return a report, and the thresholds that it exceeds, as one JSON object.

    Texts of the store are not escaped; `json.dumps` escapes them.
    """
    accepted = as_object(report.accepted)
    categories: dict[bool, list[Any]] = {False: [], True: []}  # by whether they initiate
    for one in as_object(report.categories):
        categories[one.pop("initiates")].append(one)
    return {
        "component": report.component,
        "time": as_object(report.time),
        "since": report.since,
        "deleted": report.deleted,
        "inOrder": in_order(reached),
        "thresholds": [_threshold(exceeded) for exceeded in reached],
        "categories": categories[False],
        "initiations": categories[True],
        "effects": as_object(report.effects),
        "subscriptions": as_object(report.subscriptions),
        "events": as_object(report.events),
        "samples": as_object(report.findings),
        "accepted": [{**one.pop("finding"), **one} for one in accepted],
        "latency": as_object(report.latency),
        "volume": as_object(report.volume),
        "snapshotHeldSeconds": as_object(report.snapshot_held),
        "reissues": as_object(report.reissues),
    }


def _threshold(reached: ExceededThreshold) -> dict[str, Any]:
    threshold = reached.threshold
    whole = threshold.limit == threshold.limit.to_integral_value()
    return {
        "name": threshold.name,
        "fails": threshold.failing,
        "count": reached.count,
        "limit": int(threshold.limit) if whole else float(threshold.limit),
        "percentOf": threshold.of if threshold.percent else None,
        "whole": reached.whole if threshold.percent else None,
    }


def as_object(one: Any) -> Any:  # Any: what the fields of `spark_jobs.common.result` hold, as JSON
    """Return a dataclass as an object: camelCase, time spans in seconds, times as ISO 8601."""
    if is_dataclass(one):
        return {
            camel_case(field.name) + ("Seconds" if field.name in _SPANS else ""): as_object(
                getattr(one, field.name)
            )
            for field in fields(one)
        }
    if isinstance(one, (list, tuple)):
        return [as_object(item) for item in one]
    if isinstance(one, datetime):
        return one.isoformat()
    return one.total_seconds() if isinstance(one, timedelta) else one
