"""A report as a file for the textfile collector of Prometheus' node-exporter."""

from collections.abc import Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from spark_jobs.common.result import Report
from spark_jobs.report.thresholds import ExceededThreshold, in_order
from spark_jobs.report.words import shown

_CATEGORIES = {
    "commands": "Commands that are stored",
    "keys": "Distinct idempotence keys of the commands",
    "keyless": "Commands that have no usable key",
    "duplicates": "Commands that say the same as an earlier one of their key",
    "reserved": "Keys that have a reservation",
    "corrected": "Keys whose command was corrected, and is handled with other content",
    "missing": "Keys without a reservation although the consumer has read their command",
    "pending": "Keys without a reservation whose command was not read yet",
    "dead": "Keys without one whose command was set aside: waiting, parked, dead or discarded",
    "orphans": "Reservations without a command",
    "multiple": "Reservation streams with more than one message",
    "conflicts": "Commands whose content is not that of their key",
    "conflict_mismatches": "Commands that the consumers judged otherwise to be a conflict or none",
    "wrong_type": "Messages of a type that is not reserved in their category",
}
_EFFECTS = {
    "reserved": "Reserved commands",
    "handled": "Reserved commands that an event follows",
    "silent": "Reserved commands that were handled in a way that leaves nothing in the log",
    "pending": "Reserved commands that were not read yet",
    "unhandled": "Reserved commands that were read and that no event follows",
    "dead": "Reserved commands that were set aside: waiting, parked, dead or discarded",
}
_SUBSCRIPTIONS = {
    "subscribed": "Messages of another category that the component subscribes to",
    "handled": "Subscribed messages that an event follows",
    "passed": "Subscribed messages that no event follows, recorded as handled",
    "pending": "Subscribed messages that were not read yet",
    "unhandled": "Subscribed messages that were read and that neither an event follows nor a pass",
    "dead": "Subscribed messages that were set aside: waiting, parked, dead or discarded",
}
_EVENTS = {
    "events": "Events of the component's entities",
    "causes": "Messages that events or pseudo events follow",
    "effect_twice": "Messages that had their effect twice",
    "without_cause": "Events that follow no message of the component",
}
_QUANTILES = {"p50": "0.5", "p95": "0.95", "p99": "0.99", "max": "1"}


class _Gauges:
    """The gauges of one component, made when they are first needed."""

    def __init__(self, component: str) -> None:
        self.registry = CollectorRegistry()
        self._component = shown(component)
        self._gauges: dict[str, Gauge] = {}

    def set(self, name: str, help_: str, value: float, /, **labels: str) -> None:
        """Set a gauge; its labels are made printable."""
        name = f"reservation_reconcile_{name}"
        if name not in self._gauges:
            names = ["component", *labels]
            self._gauges[name] = Gauge(name, help_, names, registry=self.registry)
        printed = {label: shown(text) for label, text in labels.items()}
        self._gauges[name].labels(component=self._component, **printed).set(value)


def render_prometheus(report: Report, reached: Sequence[ExceededThreshold]) -> str:
    """Return a gauge for each count, for the latencies, the thresholds reached and the verdict."""
    gauges = _Gauges(report.component)
    gauges.set("in_order", "Whether no threshold that fails was reached", in_order(reached))
    gauges.set(
        "time_seconds", "When the snapshot was taken, in seconds of Unix", report.time.timestamp()
    )
    if report.snapshot_held is not None:
        gauges.set(
            "snapshot_held_seconds",
            "How long the snapshot was held, which keeps VACUUM from cleaning up",
            report.snapshot_held.total_seconds(),
        )
    gauges.set(
        "deleted", "Deleted messages that the positions of consumers stand at", report.deleted
    )
    for counts in report.categories:
        labels = {
            "command_category": counts.command_category,
            "category": counts.reservation_category,
        }
        for name, help_ in _CATEGORIES.items():
            gauges.set(name, help_, asdict(counts)[name], **labels)
    for effects in report.effects:
        for name, help_ in _EFFECTS.items():
            gauges.set(f"effects_{name}", help_, asdict(effects)[name], category=effects.category)
    for subscribed in report.subscriptions:
        for name, help_ in _SUBSCRIPTIONS.items():
            value = asdict(subscribed)[name]
            gauges.set(f"subscriptions_{name}", help_, value, category=subscribed.category)
    for name, help_ in _EVENTS.items():
        value = asdict(report.events)[name]
        gauges.set(name, help_, value, category=report.events.category)
    for kind, count in sorted(report.accepted_counts.items()):
        gauges.set("accepted", "Findings that were accepted, by their kind", count, name=kind)
    for reach in reached:
        gauges.set(
            "threshold_reached",
            "What was counted, for each threshold that was reached",
            reach.count,
            name=reach.threshold.name,
            level="fail" if reach.threshold.failing else "warn",
        )
    _set_latency(gauges, report)
    _set_reissues(gauges, report)
    return generate_latest(gauges.registry).decode()


def _set_latency(gauges: _Gauges, report: Report) -> None:
    for measured in report.latency:
        if measured.hour is not None:
            continue
        labels = {"stage": measured.stage, "type": measured.type or ""}
        gauges.set(
            "latency_commands",
            "Commands that came to a stage, of a type or all",
            measured.count,
            **labels,
        )
        for name, quantile in _QUANTILES.items():
            gauges.set(
                "latency_seconds",
                "Time to a stage, by command type or of all; quantile 1 is the longest",
                asdict(measured)[name],
                **labels,
                quantile=quantile,
            )


def _set_reissues(gauges: _Gauges, report: Report) -> None:
    if report.reissues is None:
        return
    gap, span = report.reissues.longest_gap, report.reissues.longest_span
    gauges.set(
        "longest_gap_seconds",
        "Longest time between two sends of one key that follow each other; 0 if there are none",
        gap.total_seconds() if gap else 0,
    )
    gauges.set(
        "longest_span_seconds",
        "Longest time from the first to the last send of one key; 0 if none was sent again",
        span.total_seconds() if span else 0,
    )
    for sender in report.reissues.senders:
        labels = {"sender": sender.sender or "", "type": sender.type}
        gauges.set("sender_commands", "Commands by sender and type", sender.commands, **labels)
        gauges.set(
            "sender_duplicates",
            "Commands that say the same as an earlier one of their key, by sender and type",
            sender.duplicates,
            **labels,
        )
