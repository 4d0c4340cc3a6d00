"""A report as a JSON object; ``docs/reference/schemas/reconcile.schema.json`` describes it."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from reservation.serialization.codec import camel_case
from spark_jobs.common.result import AcceptedFinding, CommandCounts, Latency, Reissues, Report
from spark_jobs.report.thresholds import ExceededThreshold, in_order


def as_json(report: Report, reached: Sequence[ExceededThreshold]) -> dict[str, Any]:
    """Return a report, and the thresholds that it exceeds, as one JSON object.

    Texts of the store are not escaped; `json.dumps` escapes them.
    """
    return {
        "component": report.component,
        "time": report.time.isoformat(),
        "since": report.since,
        "deleted": report.deleted,
        "inOrder": in_order(reached),
        "thresholds": [_threshold(exceeded) for exceeded in reached],
        "categories": [_category(counts) for counts in report.categories if not counts.initiates],
        "initiations": [_category(counts) for counts in report.categories if counts.initiates],
        "effects": [as_object(effects) for effects in report.effects],
        "subscriptions": [as_object(counts) for counts in report.subscriptions],
        "events": as_object(report.events),
        "samples": [as_object(finding) for finding in report.findings],
        "accepted": [_accepted(one) for one in report.accepted],
        "latency": [_latency(measured) for measured in report.latency],
        "volume": [as_object(hourly) for hourly in report.volume],
        "snapshotHeldSeconds": _value(report.snapshot_held),
        "reissues": None if report.reissues is None else _reissues(report.reissues),
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


def _accepted(one: AcceptedFinding) -> dict[str, Any]:
    return {
        **as_object(one.finding),
        "reason": one.reason,
        "acceptedBy": one.accepted_by,
        "acceptedAt": one.accepted_at.isoformat(),
    }


def _category(one: CommandCounts) -> dict[str, Any]:
    values = as_object(one)
    del values["initiates"]  # the list that it is in says so
    return values


def _latency(one: Latency) -> dict[str, Any]:
    values = as_object(one)
    spans = {name: values.pop(name) for name in ("p50", "p95", "p99", "max")}
    return {**values, **{f"{name}Seconds": span for name, span in spans.items()}}


def _reissues(one: Reissues) -> dict[str, Any]:
    return {
        "senders": [as_object(sender) for sender in one.senders],
        "longestGapSeconds": _value(one.longest_gap),
        "longestGapKey": one.longest_gap_key,
        "bursts": [as_object(burst) for burst in one.bursts],
        "longestSpanSeconds": _value(one.longest_span),
        "longestSpanKey": one.longest_span_key,
        "untimed": one.untimed,
        "firstUntimed": one.first_untimed,
    }


def as_object(
    one: Any,
) -> dict[str, Any]:  # Any: one of the dataclasses of `spark_jobs.common.result`
    """Return a dataclass as an object: camelCase, time spans in seconds, times as ISO 8601."""
    return {
        camel_case(name) + ("Seconds" if name == "longest_gap" else ""): _value(value)
        for name, value in asdict(one).items()
    }


def _value(value: Any) -> Any:  # Any: a JSON value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value
