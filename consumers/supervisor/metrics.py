"""The figures of a supervisor's consumers, as Prometheus metrics.

They are gathered at each request, from the reports of the processes and from what was last read in
the store. (The collector is of the kind that prometheus-client's own documentation describes for
figures that are kept elsewhere.)
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from consumers.group.inspection.stored_positions import ConsumerId
from consumers.runtime.observability.telemetry import BUCKETS
from consumers.supervisor.health import Board, ConsumerCounts, Life
from consumers.supervisor.store_metrics import store_metrics
from consumers.supervisor.store_reader import StoreReader

# The outcomes of messages; each is there from the beginning, so that a rate can be computed.
OUTCOMES = (
    "handled",
    "rejected",
    "reserved",
    "duplicate",
    "conflict",
    "ignored",
    "redelivered",
    "differing",
    "dead",
    "waiting",
    "parked",
)
STATES = ("starting", "up", "degraded")

_LABELS = ("consumer", "category")


class Metrics:
    """The answer to a request for the figures."""

    def __init__(self, board: Board, store: StoreReader) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Figures(board, store))

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the text, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Figures(Collector):
    def __init__(self, board: Board, store: StoreReader) -> None:
        self._board = board
        self._store = store

    def collect(self) -> Iterator[Metric]:
        counts = self._board.counts()
        yield from _counters(dict(counts))
        yield from self._gauges(list(counts))
        yield from store_metrics(list(counts), self._store.latest())

    def _gauges(self, consumer_ids: list[ConsumerId]) -> Iterator[Metric]:
        """Give what holds at this moment."""
        workers = GaugeMetricFamily(
            "reservation_workers", "Processes of a consumer, by state", labels=[*_LABELS, "state"]
        )
        held = GaugeMetricFamily(
            "reservation_partitions_held", "Partitions that are held here", labels=_LABELS
        )
        position = GaugeMetricFamily(
            "reservation_position",
            "Global position of the last message handled, of each partition held here",
            labels=[*_LABELS, "partition"],
        )
        head = GaugeMetricFamily(
            "reservation_head", "Global position of the category's last message", labels=_LABELS
        )
        scheduled = GaugeMetricFamily(
            "reservation_scheduled_messages",
            "Scheduled messages of the store that are not written, up to 100,000",
            labels=_LABELS,
        )
        overdue = GaugeMetricFamily(
            "reservation_scheduled_overdue_seconds",
            "For how long the oldest of them is overdue",
            labels=_LABELS,
        )
        latest: dict[ConsumerId, Life] = {}
        waiting = GaugeMetricFamily(
            "reservation_messages_waiting",
            "Messages of what is held here that wait for their next attempt",
            labels=_LABELS,
        )
        waits: defaultdict[ConsumerId, int] = defaultdict(int)
        states: defaultdict[tuple[ConsumerId, str], int] = defaultdict(int)
        holds: defaultdict[ConsumerId, int] = defaultdict(int)
        heads: dict[ConsumerId, int] = {}
        for life in self._board.lives():
            states[life.consumer_id, life.report.state] += 1
            holds[life.consumer_id] += len(life.report.positions)
            if life.consumer_id not in latest or life.heard_at > latest[life.consumer_id].heard_at:
                latest[life.consumer_id] = life
            waits[life.consumer_id] += life.report.waiting
            if life.report.head:
                heads[life.consumer_id] = max(heads.get(life.consumer_id, 0), life.report.head)
            for partition, reached in life.report.positions.items():
                position.add_metric([*life.consumer_id, str(partition)], reached)
        for consumer in consumer_ids:
            for state in STATES:
                workers.add_metric([*consumer, state], states[consumer, state])
            held.add_metric(consumer, holds[consumer])
            waiting.add_metric(consumer, waits[consumer])
            if consumer in heads:
                head.add_metric(consumer, heads[consumer])
            if consumer in latest:
                scheduled.add_metric(consumer, latest[consumer].report.scheduled)
                overdue.add_metric(consumer, latest[consumer].report.overdue)
        yield from (workers, held, position, head, waiting, scheduled, overdue)


def _counters(counts: dict[ConsumerId, ConsumerCounts]) -> Iterator[Metric]:
    """Give what was done since the supervisor was started."""
    messages = CounterMetricFamily(
        "reservation_messages", "Messages by what became of them", labels=[*_LABELS, "outcome"]
    )
    batches = CounterMetricFamily(
        "reservation_batches", "Batches that were committed", labels=_LABELS
    )
    seconds = HistogramMetricFamily(
        "reservation_batch_seconds",
        "How long batches took, from reading to commit",
        labels=_LABELS,
    )
    errors = CounterMetricFamily(
        "reservation_database_errors", "Errors of the database that pass", labels=_LABELS
    )
    written = CounterMetricFamily(
        "reservation_scheduled_written", "Scheduled messages that were written", labels=_LABELS
    )
    refused = CounterMetricFamily(
        "reservation_scheduled_refused",
        "Attempts to write a scheduled message that the log refused",
        labels=_LABELS,
    )
    for consumer_id, total in counts.items():
        for outcome in dict.fromkeys([*OUTCOMES, *total.counts]):
            messages.add_metric([*consumer_id, outcome], total.counts[outcome])
        cumulative = list(accumulate(total.buckets))
        buckets = list(zip([*map(str, BUCKETS), "+Inf"], cumulative, strict=True))
        batches.add_metric(consumer_id, cumulative[-1])
        seconds.add_metric(consumer_id, buckets=buckets, sum_value=total.seconds)
        errors.add_metric(consumer_id, total.errors)
        written.add_metric(consumer_id, total.scheduled_written)
        refused.add_metric(consumer_id, total.scheduled_refused)
    yield from (messages, batches, seconds, errors, written, refused)
